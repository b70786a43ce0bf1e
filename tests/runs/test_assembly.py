"""From a config to a federation, a ledger and a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.models.bias import Biases
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.learner import Size
from bgtplanner.models.tastes import Tastes
from bgtplanner.paper.extras import PaperExtras
from bgtplanner.paper.planners import AsPrinted, Repaired
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.policy import LedgerPolicy, Policy
from bgtplanner.planning.schedules import Uniform
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.assembly import (
    accountant_of,
    budgets_of,
    federation_of,
    learner_of,
    policy_of,
)
from bgtplanner.runs.config import Config, load_config


def config(preset: str = "recommended", **changes: Any) -> Config:
    settings = {key.replace("__", "."): value for key, value in changes.items()}
    return load_config(preset=preset, settings=settings)


class TestFederation:
    def test_recommended(self) -> None:
        federation = federation_of(config(), 100)
        protection = federation.protection
        assert protection is not None
        assert (protection.mechanism, protection.trust) == ("gaussian", "secagg")
        assert (protection.unit, protection.noise) == ("client", "sum")
        assert isinstance(federation.model, Biases)
        assert federation.server.optimizer == "posterior"
        assert federation.extras is None

    @pytest.mark.parametrize("name", ["factorization", "fedgnn"])
    def test_recommended_for_gradients(self, name: str) -> None:
        federation = federation_of(config(**{"model.name": name}), 100)
        assert federation.server.optimizer == "shrunk"
        assert type(federation.model).__name__.lower() == name

    def test_recommended_without_privacy(self) -> None:
        for chosen in (
            config(**{"privacy.mechanism": "none"}),
            config(**{"privacy.mechanism": "none", "model.name": "biases"}),
        ):
            assert federation_of(chosen, 100).protection is None
            assert chosen.planning.policy == "unlimited"

    def test_a_learner_is_suited_to_the_noise_of_the_relation_in_force(self) -> None:
        """Against nothing in its place, a client needs half the noise: more axes are worth it."""
        seen: list[Size] = []

        class Spy(Tastes):
            def suited(self, size: Size) -> Self:
                seen.append(size)
                return super().suited(size)

        axes = []
        for relation in ("auto", "replace-special", "replace-one"):
            chosen = config(**{"privacy.neighbours": relation})
            model = federation_of(chosen, 200, Spy(), clients=500, implicit=True).model
            assert isinstance(model, Tastes)
            assert isinstance(learner_of(chosen), Tastes)
            axes.append(model.axes)
        by_default, special, one = seen
        assert by_default == special
        assert special == Size(500, 200, special.noise, implicit=True)
        assert special.noise > 0
        assert one.noise == pytest.approx(2 * special.noise)
        assert axes[0] == axes[1] > axes[2] > 0
        free = config(**{"privacy.mechanism": "none"})
        federation_of(free, 200, Spy(), clients=500)
        assert seen[-1] == Size(500, 200, 0.0)

    def test_paper(self) -> None:
        federation = federation_of(config("paper"), 30)
        protection = federation.protection
        assert protection is not None
        assert (protection.mechanism, protection.trust) == ("gaussian", "local")
        assert protection.unit == "row"
        assert isinstance(federation.model, FedGNN)
        assert federation.extras == PaperExtras(pseudo_items=30)  # there are no more items

    def test_without_privacy(self) -> None:
        assert federation_of(config(privacy__mechanism="none"), 100).protection is None

    @pytest.mark.parametrize(
        ("changes", "name"),
        [
            ({"privacy__unit": "row", "privacy__trust": "secagg"}, "unit"),
            ({"privacy__noise": "per-client", "privacy__trust": "secagg"}, "noise"),
            (
                {
                    "privacy__noise": "per-client",
                    "privacy__trust": "local",
                    "privacy__unit": "row",
                },
                "noise",
            ),
        ],
    )
    def test_what_cannot_be(self, changes: dict[str, Any], name: str) -> None:
        with pytest.raises(ConfigError, match=f"^{name} = "):
            federation_of(config(**changes), 100)


class TestRule:
    @pytest.mark.parametrize(
        ("mechanism", "accounting", "expected"),
        [
            ("gaussian", "auto", "gaussian/gdp"),
            ("laplace", "auto", "laplace/zcdp"),
            ("gaussian", "authors", "gaussian/authors"),
            ("laplace", "authors", "laplace/basic"),
            ("gaussian", "gaussian/rdp", "gaussian/rdp"),
            ("laplace", "laplace/filter", "laplace/filter"),
        ],
    )
    def test_by_name(self, mechanism: str, accounting: str, expected: str) -> None:
        found = accountant_of(config(privacy__mechanism=mechanism, privacy__accounting=accounting))
        assert found.name == expected

    @pytest.mark.parametrize(
        ("mechanism", "accounting", "words"),
        [
            ("gaussian", "laplace/basic", "an accountant for gaussian noise"),
            ("laplace", "gaussian/gdp", "an accountant for laplace noise"),
            ("laplace", "nonsense", "laplace/zcdp"),
        ],
    )
    def test_of_another_mechanism(self, mechanism: str, accounting: str, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            accountant_of(config(privacy__mechanism=mechanism, privacy__accounting=accounting))


class TestBudgets:
    def test_the_same_for_all(self) -> None:
        found = budgets_of(config(privacy__epsilon=3.0, privacy__delta=1e-6), 4)
        assert found == Budgets.same(Budget(3.0, 1e-6), 4)

    def test_shares(self) -> None:
        found = budgets_of(config(privacy__budgets="1:0.25,8:0.75", run__seed=3), 8)
        assert [budget.epsilon for budget in found.classes] == [1.0, 8.0]
        assert np.bincount(found.class_of_client).tolist() == [2, 6]
        other = budgets_of(config(privacy__budgets="1:0.25,8:0.75", run__seed=4), 8)
        assert found != other

    def test_a_file_with_one_a_line(self, tmp_path: Path) -> None:
        file = tmp_path / "epsilons.txt"
        file.write_text("2.5\n1\n2.5\n")
        found = budgets_of(config(privacy__budgets=str(file), privacy__delta=1e-4), 3)
        assert found == Budgets.per_client([2.5, 1.0, 2.5], 1e-4)
        with pytest.raises(ConfigError, match="4 numbers, one per client"):
            budgets_of(config(privacy__budgets=str(file)), 4)

    @pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom"])
    def test_a_file_without_an_end(self, path: str) -> None:
        with pytest.raises(ConfigError, match=r"--budgets /dev/.*is not a plain file"):
            budgets_of(config(privacy__budgets=path), 3)

    def test_a_file_that_is_too_long(self, tmp_path: Path) -> None:
        with (tmp_path / "epsilons.txt").open("wb") as file:
            file.truncate(1 << 40)  # takes no room on the disk
        with pytest.raises(ConfigError, match="is longer than"):
            budgets_of(config(privacy__budgets=str(tmp_path / "epsilons.txt")), 3)

    @pytest.mark.parametrize("text", ["1:0.5,8:0.6", "1:", "nonsense", "one\ntwo\n"])
    def test_neither(self, text: str, tmp_path: Path) -> None:
        given = text
        if "\n" in text:
            file = tmp_path / "epsilons.txt"
            file.write_text(text)
            given = str(file)
        with pytest.raises(ConfigError, match="EPSILON:SHARE"):
            budgets_of(config(privacy__budgets=given), 3)


def policy(preset: str = "recommended", **changes: Any) -> Policy:
    settled = config(preset, federation__rounds=20, **changes)
    return policy_of(settled, Ledger.in_memory(budgets_of(settled, 5), accountant_of(settled)))


class TestPolicy:
    @pytest.mark.parametrize(
        "name", ["bgt", "uniform", "adpml", "adap", "hong", "two-phase", "random"]
    )
    def test_by_name(self, name: str) -> None:
        found = policy(planning__policy=name, privacy__clip=0.25, run__seed=7)
        assert isinstance(found, LedgerPolicy)
        assert (found.rounds, found.clip, found.seed) == (20, 0.25, 7)
        assert found.accountant.name == "gaussian/gdp"
        plan = found.ask(np.zeros(6))
        assert plan is not None
        assert plan.clip == 0.25

    def test_options(self) -> None:
        options = {"noise_multiplier": 11.0}
        found = policy(planning__policy="adap", planning__options=options)
        plan = found.ask()
        assert plan is not None
        assert plan.noise_multiplier == pytest.approx(5.5)

    @pytest.mark.parametrize("name", ["uniform", "bgt", "adap", "random"])
    @pytest.mark.parametrize("constants", ["own", "repaired", "paper"])
    def test_an_option_that_is_none(self, name: str, constants: str) -> None:
        options = {"no_such_thing": 1}
        with pytest.raises(ConfigError, match=f"planning.options: {name} does not accept them"):
            policy(planning__policy=name, planning__options=options, planning__constants=constants)

    @pytest.mark.parametrize(("name", "highest"), [("bgt", 3), ("random", 2)])
    def test_levels(self, name: str, highest: int) -> None:
        """The planner's level 0 is to sit a round out."""
        drawn = set()
        for seed in range(3):
            found = policy(
                planning__policy=name, planning__levels=3, planning__min_rounds=10, run__seed=seed
            )
            for _ in range(10):
                if (plan := found.ask(np.zeros(6))) is not None:
                    found.tell(plan, reward=0.0)
                    drawn.add(plan.level)
        assert max(drawn) == highest

    def test_of_the_paper(self) -> None:
        found = policy("paper", planning__min_rounds=14)
        assert isinstance(found, LedgerPolicy)
        assert found.accountant.name == "gaussian/authors"
        plan = found.ask(np.ones(5))
        assert plan is not None
        # From an even share of 10 over 20 rounds to one over 14.
        assert 0.5 * (1 - 1e-9) <= plan.charge <= 10 / 14 * (1 + 1e-9)

    @pytest.mark.parametrize(
        ("constants", "kind"),
        [
            ("own", BGTPlanner),
            ("repaired", Repaired),
            ("paper", AsPrinted),
        ],
    )
    @pytest.mark.parametrize("preset", ["paper", "recommended"])
    def test_constants(self, preset: str, constants: str, kind: type) -> None:
        """Which planner, in the paper's setting and in the sound one.

        The preset's 70 rounds are cut to the 20 of the run, but by our own planner.
        """
        fewer = {"planning__min_rounds": 14} if constants == "own" else {}
        found = policy(preset, planning__policy="bgt", planning__constants=constants, **fewer)
        assert type(found) is kind
        plan = found.ask(np.ones(5))
        assert plan is not None
        found.tell(plan, reward=0.0)

    def test_constants_are_those_of_bgt(self) -> None:
        found = policy("paper", planning__policy="uniform", planning__constants="paper")
        assert isinstance(found, Uniform)

    @pytest.mark.parametrize(
        ("constants", "given", "fewest", "dearest"),
        [
            ("repaired", None, 14, 1.0),
            ("paper", None, 14, 1.0),
            ("repaired", 10, 10, 1.0),
            ("paper", 10, 10, 1.0),
        ],
    )
    def test_levels_of_the_paper_and_of_its_authors(
        self, constants: str, given: int | None, fewest: int, dearest: float
    ) -> None:
        found: Any = policy("paper", planning__constants=constants, planning__min_rounds=given)
        steps = dearest * np.arange(5) / 4
        np.testing.assert_allclose(found.charges[0], 0.5 + steps * (10 / fewest - 0.5))
