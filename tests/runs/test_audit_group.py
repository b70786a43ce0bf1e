"""The audit of sums on real machines: they hold, and groups with a fault are refuted."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import ConfigError, MessageError, MissingExtraError
from bgtplanner.federation.aggregation import masks
from bgtplanner.federation.guard import Guard
from bgtplanner.flower import client as flower_client
from bgtplanner.flower.client import Client
from bgtplanner.flower.sums import RoundStore
from bgtplanner.privacy.accountants import default_accountant
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.mechanisms import Gaussian, Mechanism
from bgtplanner.privacy.noise import SeededNoise
from bgtplanner.privacy.shares import Shares, Tolerance, sum_of_shares
from bgtplanner.runs import audits, groupdoor
from bgtplanner.runs.audits import Audit, audit
from bgtplanner.runs.doors import Setting
from bgtplanner.runs.groupdoor import AFTER, BEFORE, Group, MachinesDoor, SharesDoor, members_of

pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALLER = "the noise is smaller than stated"
FURTHER = "an upload reaches further than its clip allows"


def setting(
    *, dropouts: int = 0, colluders: int = 0, epsilon: float = 1.0, **more: Any
) -> Setting:
    options: dict[str, Any] = {
        "mechanism": "gaussian", "trust": "secagg", "unit": "client",
        "accountant": default_accountant("gaussian"), "budget": Budget(epsilon, 1e-5),
        "rounds": 1, "blocks": 1, "size": 4, "canaries": 1, "neighbours": "replace-special",
        "dropouts": dropouts, "colluders": colluders,
    }  # fmt: skip
    return Setting(**{**options, **more})


def attacked(door: Any, releases: int) -> Audit:
    part = audits._Part("releases", door, releases)
    return audits._attacked(door.setting, "client", [part], 0.99, 0, lambda _: None)


@pytest.fixture
def groups() -> Iterator[Any]:
    made: list[Group] = []

    def group(asked: Setting) -> Group:
        made.append(Group(asked))
        return made[-1]

    yield group
    for one in made:
        one.site.close()


# ---- what was meant to be


def test_sums_of_real_clients_keep_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groupdoor, "_TIMES", 2)
    steps: list[tuple[int, str]] = []
    real, shown = Client.step, list[float]()

    def step(self: Client, asked: Any) -> bytes:
        steps.append((int(self.file.state.parent.name), asked.step))
        return real(self, asked)

    monkeypatch.setattr(Client, "step", step)
    found = audit(trust="secagg", releases=3000, opened=20, seed=1, on_progress=shown.append)
    assert (found.verdict, found.faults, found.path) == ("holds", [], "client")
    assert (found.members, found.dropouts, found.colluders) == (5, 1, 1)
    assert [(part["what"], part["releases"]) for part in found.parts] == [
        ("sums of shares, without masks", 3000),
        ("masked and opened, drop-outs before the upload", 10),
        ("masked and opened, drop-outs after the upload", 10),
    ]
    assert 0.4 < found.epsilon_lower <= 1.0
    last = [check["name"] for check in found.checks if check["part"] == found.parts[-1]["what"]]
    games = ["masked uploads", "same request again", "no ratings", "less noise", "paid for"]
    assert last[-5:] == games
    # The last of the first five folders drops out: at each step before its upload, then after.
    stayed, left = ([name for place, name in steps if place == one] for one in (1, 5))
    assert stayed.count("open") == 20
    assert left.count("upload") < stayed.count("upload")
    assert left.count("open") < 10
    assert shown == sorted(shown)
    assert shown[-1] == 1.0


def test_a_group_in_which_no_one_drops_out_or_colludes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groupdoor, "_TIMES", 1)
    found = audit(
        trust="secagg", path="client", neighbours="replace-one", dropouts=0, colluders=0,
        releases=1000, opened=20,
    )  # fmt: skip
    assert found.faults == []
    assert (found.members, found.neighbours) == (2, "replace-one")
    assert [part["releases"] for part in found.parts] == [1000, 20]


@pytest.mark.parametrize("leaving", [None, *BEFORE, *AFTER])
def test_the_masked_sum_is_the_sum_of_the_shares(groups: Any, leaving: str | None) -> None:
    # To the last bit: what is audited without masks is what masks hide.
    group = groups(setting(dropouts=1, colluders=1))
    group.desks[0].rate(group.site.rows(1))
    group.seed([3])
    total, places = group.opened(group.asked(), leaving)
    assert places == set(range(4 if leaving in BEFORE else 5))
    uploads = np.zeros((len(places), group.size))
    uploads[0] = group.site.canary.uploads()[0][0]
    sources = [SeededNoise(group.desks[place].seed) for place in sorted(places)]
    assert total.tolist() == sum_of_shares(group.shares, uploads, sources).tolist()


def test_what_colluders_have_sent_is_taken_away(groups: Any) -> None:
    group = groups(setting(colluders=1))
    group.seed([5])
    total, places = group.opened(group.asked())
    left = groupdoor._without(group.shares, total, group.known(), len(places))
    others = [SeededNoise(group.desks[place].seed) for place in (0, 2)]
    steps = sum(group.shares.draw(source, group.size) for source in others)
    np.testing.assert_array_equal(left, steps * group.shares.step)


# ---- faults


def scaled(by: float) -> Any:
    """Every client adds a share that is smaller than it should be."""

    def broken(monkeypatch: pytest.MonkeyPatch) -> None:
        real = Shares.draw
        monkeypatch.setattr(
            Shares, "draw", lambda *args: np.rint(by * real(*args)).astype(np.int64)
        )

    return broken


def tolerance_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tolerance, "honest", lambda self, invited: invited)


def sensitivity_of_half(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Mechanism.scale
    monkeypatch.setattr(Mechanism, "scale", lambda *args, **options: real(*args, **options) / 2)


def unclipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gaussian, "clip", lambda self, uploads, bound: np.array(uploads))


FAULTS: list[tuple[Any, str]] = [
    (scaled(0.7), SMALLER),
    (tolerance_ignored, SMALLER),
    (sensitivity_of_half, SMALLER),
    (unclipped, FURTHER),
]


@pytest.mark.parametrize(("broken", "fault"), FAULTS)
def test_sums_of_faulty_shares_are_refuted(
    broken: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = setting(dropouts=1, colluders=1, epsilon=4.0)
    assert attacked(SharesDoor(asked), 600).faults == []
    broken(monkeypatch)
    found = attacked(SharesDoor(asked), 600)
    assert found.verdict == "refuted"
    assert found.faults == [fault]


@pytest.mark.parametrize(("broken", "fault"), FAULTS)
def test_a_group_of_faulty_clients_is_refuted(
    broken: Any, fault: str, groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    # Nobody drops out, and the colluders are those that the faulty share has forgotten.
    colluders = 1 if broken is tolerance_ignored else 0
    door = MachinesDoor(groups(setting(colluders=colluders, epsilon=8.0)), (), last=False)
    found = attacked(door, 28 if broken is unclipped else 12)
    assert found.verdict == "refuted"
    assert fault in found.faults


def test_the_tolerance_matters_when_members_really_drop_out(
    groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tolerance_ignored(monkeypatch)
    group = groups(setting(dropouts=1, epsilon=8.0))
    assert SMALLER in attacked(MachinesDoor(group, BEFORE, last=False), 16).faults
    # After the upload it is in the sum, with its noise: as much as was meant for all of them.
    after = MachinesDoor(group, AFTER, last=False)
    assert after.stated.scale > MachinesDoor(group, BEFORE, last=False).stated.scale


# ---- games


class WithoutLedger(Client):
    """Pays from a ledger that is new each time."""

    def _pay(self, ledger: Ledger, request: Any) -> Any:
        budgets = Budgets.same(Budget(1e5, 1e-5), 1)
        full = Ledger.in_memory(budgets, ledger.accountant, neighbours=ledger.neighbours)
        guard = Guard(full, trust="secagg")
        return guard, guard.reserve(request.charge, run=request.run, round=request.round)


class SilentWithoutRatings(Client):
    """Refuses to upload what its ratings do not allow for."""

    def _train(self, model: Any, shared: Any, request: Any) -> Any:
        upload, kept = super()._train(model, shared, request)
        if not upload.any():
            raise MessageError("no ratings")
        return upload, kept


class Forgetful(RoundStore):
    """Forgets a round when the ratings have changed since."""

    def load(self, key: str) -> bytes | None:
        ratings = (self._folder.parent.parent / "ratings.csv").read_bytes()
        noted = self._folder.parent / "noted"
        before = noted.read_bytes() if noted.exists() else ratings
        noted.write_bytes(ratings)
        if before != ratings and self._folder.exists():
            shutil.rmtree(self._folder)
        return super().load(key)


def other_client(kind: type[Client]) -> Any:
    return lambda monkeypatch: monkeypatch.setattr(flower_client, "Client", kind)


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_client, "RoundStore", Forgetful)


def any_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "check_shares", lambda *args, **options: None)


def no_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "mask", lambda key, size: np.zeros(size, np.uint64))


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (no_masks, "masked uploads"),
        (forgetful, "same request again"),
        (other_client(SilentWithoutRatings), "no ratings"),
        (any_noise, "less noise"),
        (other_client(WithoutLedger), "paid for"),
    ],
)
def test_what_carries_no_noise_is_looked_at_too(
    broken: Any, name: str, groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    door = MachinesDoor(groups(setting()), (), last=True)
    play = {"masked uploads": door._masks, "less noise": door._less_noise}.get(name)
    if name == "masked uploads":
        door.release(np.ones((2, 1)), mark=None)
    elif name == "paid for":
        play = door._payments
    checks = door._steps_again() if play is None else [play()]
    assert name in [check.name for check in checks]
    # Below the risk of a check at the default confidence.
    assert [check.name for check in checks if check.p_value < 2.5e-4] == [name]


def test_nothing_is_seen_where_there_is_nothing(groups: Any) -> None:
    door = MachinesDoor(groups(setting()), (), last=True)
    door.release(np.ones((2, 1)), mark=None)
    assert all(check.p_value > 2.5e-4 for check in door.games())


# ---- arguments


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mechanism": "laplace"}, "--mechanism = 'laplace': expected gaussian"),
        ({"unit": "row"}, "--unit = 'row': expected client"),
        ({"rounds": 2}, "--rounds = 2: expected 1"),
        ({"canaries": 2}, "--canaries = 2: expected 1"),
        ({"beside": 2.0}, "--beside = 2.0: expected None"),
        ({"dropouts": -1}, "--dropouts = -1: expected a whole number from 0"),
        ({"colluders": -1}, "--colluders = -1: expected a whole number from 0"),
        ({"dropouts": 40}, "--dropouts = 40: expected at most 30, for a group of at most 64"),
        ({"opened": 19}, "--opened = 19: expected at least 20"),
        ({"releases": 999}, "--releases = 999: expected at least 1,000"),
        ({"trust": "local", "opened": 20}, "--opened = 20: expected none, except with --path"),
        ({"path": "guard", "dropouts": 1}, "--dropouts = 1: expected none, except with --path"),
        ({"path": "simulation", "colluders": 1}, "--colluders = 1: expected none, except"),
        ({"path": "auto", "rounds": 2, "opened": 20}, "--opened = 20: expected none, except"),
    ],
)
def test_what_no_group_does_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        audit(**{"path": "client", "trust": "secagg", **options})


def test_which_path_is_taken_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "_attacked", lambda setting, path, *_: path)
    monkeypatch.setattr(audits, "_sums", lambda *_: [])
    assert audit(trust="secagg") == "client"
    assert audit() == "guard"
    for other in ({"mechanism": "laplace"}, {"rounds": 2}, {"canaries": 2}, {"path": "guard"}):
        assert audit(trust="secagg", **other) == "guard"  # type: ignore[arg-type]


def test_a_group_is_as_small_as_it_may_be() -> None:
    assert [members_of(setting(dropouts=d, colluders=c)) for d, c in ((0, 0), (1, 1))] == [2, 5]


def test_without_flower_another_path_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(MissingExtraError, match="without --path guard or simulation needs the"):
        audit(trust="secagg")
