"""What a study asks for, how it is written down, and what it shows."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.errors import ConfigError, RunFolderError
from bgtplanner.runs.compare import run_study
from bgtplanner.runs.statistics import Outcome, summed_up
from bgtplanner.runs.study import Cell, Study, Variation
from bgtplanner.runs.sweeps import FIGURES, figure_named, parse_axis, parse_seeds


def made(*axes: str, **changes: Any) -> Study:
    given: dict[str, Any] = {"policies": ("bgt",), "seeds": (0, 1)} | changes
    return Study(**given, variations=(Variation(axes=tuple(map(parse_axis, axes))),))


def request_of(**changes: Any) -> Study:
    given: dict[str, Any] = {"policies": ("bgt", "uniform"), "seeds": (0, 1)} | changes
    return Study(**given)


def figures(value: float) -> dict[str, float]:
    names = ("final", "best", "constant", "user_mean", "client_alone")
    return {f"{kind}_{name}": value for kind in ("rmse", "f1") for name in names}


class TestPlaces:
    def test_every_name_is_a_folder_of_its_own(self) -> None:
        cell = Cell(dataset="ml-100k", mechanism="gaussian", policy="two-phase", seed=3)
        assert cell.place == Path("ml-100k/gaussian/two-phase/seed-3")
        names = ["csv:a/b.csv", "csv:a-b.csv", "csv:../../etc", "csv:" + "x" * 300, ".."]
        places = {
            Cell(dataset=name, mechanism="none", policy="unlimited", seed=0).place
            for name in names
        }
        assert len(places) == len(names)
        for place in places:
            assert len(place.parts) == 4
            assert ".." not in place.parts
            assert max(map(len, place.parts)) < 60


class TestAsked:
    def test_seeds_come_last_to_their_end(self) -> None:
        request = request_of(datasets=("demo", "synthetic"), mechanisms=("gaussian", "laplace"))
        cells = list(request.cells())
        assert len(cells) == 2 * 2 * 2 * 2
        assert [cell.seed for cell in cells] == [0] * 8 + [1] * 8
        assert [cell.dataset for cell in cells[:8]] == ["demo"] * 4 + ["synthetic"] * 4

    def test_settings_of_a_cell(self) -> None:
        request = request_of(settings={"privacy.epsilon": 3.0}, preset="paper")
        cell, config = list(request.cells().items())[-1]
        assert cell == Cell(dataset="demo", mechanism="gaussian", policy="uniform", seed=1)
        assert (config.preset, config.privacy.epsilon) == ("paper", 3.0)
        assert (config.planning.policy, config.run.seed) == ("uniform", 1)

    def test_unlimited_is_run_once_and_without_mechanism(self) -> None:
        request = request_of(
            mechanisms=("gaussian", "laplace"), policies=("unlimited", "bgt"), seeds=(3,)
        )
        found = {(cell.mechanism, cell.policy) for cell in request.cells()}
        assert found == {("none", "unlimited"), ("gaussian", "bgt"), ("laplace", "bgt")}
        config = next(c for cell, c in request.cells().items() if cell.policy == "unlimited")
        assert config.privacy.mechanism == "none"

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"datasets": ()}, "--dataset = "),
            ({"seeds": ()}, "--seeds = "),
            ({"datasets": ("ml100k",)}, "--dataset: .*Did you mean 'ml-100k'"),
            ({"policies": ("bgd",)}, "--policy: .*expected one of bgt"),
            ({"mechanisms": ("gauss",)}, "--mechanism"),
            ({"mechanisms": ("none",)}, "--policy = 'bgt': expected unlimited"),
            ({"mechanisms": ("gaussian", "none")}, "--mechanism = 'none'"),
            ({"seeds": (-1,)}, "--seed"),
            ({"preset": "papers"}, "--preset"),
            ({"baseline": "adap"}, "--baseline = 'adap'"),
            ({"settings": {"planning.policy": "bgt"}}, "--set planning.policy: .*--policy"),
            ({"settings": {"run.seed": 1}}, "--set run.seed: .*--seeds"),
            ({"settings": {"privacy.epsilon": -1}}, "--epsilon"),
            ({"settings": {"privacy.epsilom": 1}}, "did you mean .*epsilon"),
        ],
    )
    def test_errors_name_the_flag(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            request_of(**changes).cells()

    @pytest.mark.parametrize(
        ("policies", "baseline", "against"),
        [
            (("bgt", "uniform", "adap"), None, "uniform"),
            (("uniform", "bgt"), None, "uniform"),
            (("bgt", "adap", "uniform"), None, "uniform"),
            (("bgt", "unlimited", "adap"), None, "adap"),
            (("unlimited", "bgt", "adap"), None, "adap"),
            (("bgt", "unlimited"), None, "unlimited"),
            (("bgt",), None, None),
            (("bgt", "uniform"), "bgt", "bgt"),
        ],
    )
    def test_baseline(
        self, policies: tuple[str, ...], baseline: str | None, against: str | None
    ) -> None:
        assert request_of(policies=policies, baseline=baseline).against == against

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "cannot be read"),
            ("[]", "cannot be read"),
            ("{}", "cannot be read"),
            ('{"schema": 99}', "schema 99"),
            ('{"schema": 1, "seeds": ["x"]}', "cannot be read"),
            ('{"schema": 1, "policies": ["bgd"]}', "cannot be read.*--policy"),
        ],
    )
    def test_damaged_notes(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "study.json").write_text(text)
        with pytest.raises(RunFolderError, match=f"study.json: .*{message}"):
            Study.read(tmp_path)


class TestNames:
    @pytest.mark.parametrize(
        ("text", "seeds"),
        [("0-4", (0, 1, 2, 3, 4)), ("0,1,2", (0, 1, 2)), ("7", (7,)), ("3, 0-1,1", (3, 0, 1))],
    )
    def test_seeds(self, text: str, seeds: tuple[int, ...]) -> None:
        assert parse_seeds(text) == seeds

    @pytest.mark.parametrize("text", ["", "a", "1-", "-1", "4-2", "0-99999", "1.5", "²", "0,,1"])
    def test_no_seeds(self, text: str) -> None:
        with pytest.raises(ConfigError, match="--seeds"):
            parse_seeds(text)


class TestAxis:
    @pytest.mark.parametrize(
        ("text", "values"),
        [
            ("privacy.epsilon=5,10.5", (5, 10.5)),
            ("privacy.epsilon = 5, 5, 10", (5, 10)),
            ("server.optimizer=sgd,adam", ("sgd", "adam")),
            ('data.delimiter=",",";"', (",", ";")),
            ("planning.options={gamma=1},{gamma=2}", ({"gamma": 1}, {"gamma": 2})),
            ("model.fixed_pseudo_items=true,false", (True, False)),
        ],
    )
    def test_values_as_toml_or_as_text(self, text: str, values: tuple[Any, ...]) -> None:
        assert parse_axis(text).values == values

    @pytest.mark.parametrize(
        "text",
        ["x", "x=1", "a.b", "a.b=", "a.b= ", ".b=1", "a.b=1,,x", "a.b=nan", "a.b=1979-05-27"],
    )
    def test_what_is_none_names_the_flag(self, text: str) -> None:
        with pytest.raises(ConfigError, match=r"--vary .*: expected SECTION\.KEY=V1,V2,\.\.\."):
            parse_axis(text)


class TestCells:
    def test_every_combination_first_seed_first(self) -> None:
        cells = made("privacy.epsilon=5,20", "planning.min_rounds=2,3").cells()
        assert len(cells) == 8
        assert [cell.seed for cell in cells] == [0] * 4 + [1] * 4
        cell, config = list(cells.items())[1]
        assert (config.privacy.epsilon, config.planning.min_rounds) == (5, 3)
        assert str(cell.place) == (
            "privacy.epsilon=5,planning.min_rounds=3/demo/gaussian/bgt/seed-0"
        )
        assert cell.name.endswith("seed 0, privacy.epsilon=5,planning.min_rounds=3")

    def test_keys_inside_tables(self) -> None:
        given = {"planning.options": {"cheapest": 0.4}}
        sweep = made("planning.options.gamma=1,2", settings=given, seeds=(0,))
        found = [config.planning.options for config in sweep.cells().values()]
        assert found == [{"cheapest": 0.4, "gamma": 1}, {"cheapest": 0.4, "gamma": 2}]
        assert given == {"planning.options": {"cheapest": 0.4}}

    @pytest.mark.parametrize(
        ("axes", "message"),
        [
            (["run.seed=1,2"], "--vary run.seed: this is given by --seeds"),
            (["federation.rounds=1,2"], "--vary federation.rounds: also given by --set"),
            (["privacy.clip=1", "privacy.clip=2"], "--vary privacy.clip: given twice"),
            (
                ["privacy.epsilom=1"],
                "--vary privacy.epsilom=1: unknown key .*mean .privacy.epsilon",
            ),
            (["privacy.epsilon=1,-1"], "--vary privacy.epsilon=-1: --epsilon .*greater than 0"),
        ],
    )
    def test_what_cannot_be_varied(self, axes: list[str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            made(*axes, settings={"federation.rounds": 3}).cells()


class TestFigures:
    @pytest.mark.parametrize("preset", ["paper", "recommended"])
    @pytest.mark.parametrize("name", FIGURES)
    def test_all_can_be_run(self, name: str, preset: str) -> None:
        cells = replace(figure_named(name, preset), mechanisms=("gaussian",), seeds=(0,)).cells()
        assert len(cells) == {"budget": 16, "min-rounds": 20, "rounds": 16, "small": 22}[name]

    def test_the_paper_s_share_of_rounds_is_kept_unless_given(self) -> None:
        def pairs(settings: dict[str, Any]) -> set[tuple[int, int | None]]:
            cells = replace(figure_named("rounds"), settings=settings).cells().values()
            return {(of.federation.rounds, of.planning.min_rounds) for of in cells}

        assert pairs({}) == {(50, 35), (75, 52), (100, 70), (150, 105)}
        assert {least for _, least in pairs({"planning.min_rounds": 40})} == {40}


class TestFolder:
    def test_remembers(self, tmp_path: Path) -> None:
        for study in (Study(), *map(figure_named, FIGURES)):
            study.write(tmp_path)
            assert Study.read(tmp_path) == study

    def test_what_earlier_versions_did_not_know(self, tmp_path: Path) -> None:
        """Cells that are added to their studies are like those that are there."""
        tree = {"schema": 1, "seeds": [0], "policies": ["bgt", "unlimited"]}
        (tmp_path / "study.json").write_text(json.dumps(tree | {"settings": {"privacy.clip": 2}}))
        study = Study.read(tmp_path)
        assert study is not None
        assert study.older
        limited, unlimited = study.cells().values()
        assert (limited.model.name, unlimited.model.name) == ("biases", "factorization")
        assert (limited.planning.objective, limited.privacy.relation) == ("last", "replace-one")
        assert (limited.data.items, limited.privacy.clip) == ("none", 2)

    def test_of_somebody_else(self, tmp_path: Path) -> None:
        request_of().write(tmp_path)
        with pytest.raises(ConfigError, match="something other than a sweep"):
            run_study(made("privacy.epsilon=5"), tmp_path)
        made("privacy.epsilon=5").write(tmp_path)
        with pytest.raises(ConfigError, match="something other than a comparison"):
            run_study(request_of(), tmp_path)


def test_what_it_has_shown() -> None:
    sweep = made("privacy.epsilon=5,20")
    outcomes = [
        Outcome(cell=cell, summary=figures(config.privacy.epsilon + cell.seed))
        if (config.privacy.epsilon, cell.seed) != (20, 1)
        else Outcome(cell=cell, error="lost")
        for cell, config in sweep.cells().items()
    ]
    found = summed_up(sweep, outcomes)
    assert found.reported == ("rmse_final",)
    assert [outcome.error for outcome in found.failed] == ["lost"]
    tree = json.loads(json.dumps(found.as_json()))
    policies = [row for row in tree["rows"] if not row["reference"]]
    assert [row["varied"] for row in policies] == [{"privacy.epsilon": 5}, {"privacy.epsilon": 20}]
    alone = [row for row in tree["rows"] if row["policy"] == "client_alone"]
    assert [row["varied"] for row in alone] == [row["varied"] for row in policies]
    assert [row["figures"]["rmse_final"]["mean"] for row in alone] == [5.5, 20]
    assert tree["rows"][0]["figures"]["rmse_final"]["mean"] == 5.5
    assert tree["rows"][0]["figures"]["rmse_final"]["std"] == pytest.approx(0.5**0.5)
    assert tree["cells"] == 4
    assert tree["failed"][0]["variant"] == "privacy.epsilon=20"
    assert tree["differences"] == []
    lines = list(csv.DictReader(io.StringIO(found.as_csv())))
    assert list(lines[0])[:3] == ["privacy.epsilon", "kind", "dataset"]
    lines = [line for line in lines if line["kind"] == "policy"]
    assert len(lines) == 8
    assert (lines[4]["privacy.epsilon"], lines[4]["seeds"], lines[4]["mean"]) == (
        "20",
        "1",
        "20.0",
    )


def test_policies_are_compared_in_every_combination() -> None:
    sweep = made("privacy.epsilon=5,20", policies=("bgt", "uniform"))
    outcomes = [
        Outcome(cell=cell, summary=figures(config.privacy.epsilon * (cell.policy == "bgt")))
        for cell, config in sweep.cells().items()
    ]
    found = summed_up(sweep, outcomes)
    apart = [(entry.varied, entry.figures["rmse_final"].mean) for entry in found.differences]  # type: ignore[union-attr]
    assert apart == [({"privacy.epsilon": 5}, 5.0), ({"privacy.epsilon": 20}, 20.0)]
