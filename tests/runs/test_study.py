"""What a study asks for, and how it is written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.errors import ConfigError, RunFolderError
from bgtplanner.runs.study import Cell, Study, parse_grid, parse_seeds, run_study


def request_of(*varied: str, **changes: Any) -> Study:
    given: dict[str, Any] = {"policies": ("bgt", "uniform"), "seeds": (0, 1)} | changes
    return Study(**given, variations=(parse_grid(varied),) if varied else ())


def test_every_name_is_a_folder_of_its_own() -> None:
    cell = Cell(dataset="ml-100k", mechanism="gaussian", policy="two-phase", seed=3)
    assert cell.place == Path("ml-100k/gaussian/two-phase/seed-3")
    names = ["csv:a/b.csv", "csv:a-b.csv", "csv:../../etc", "csv:" + "x" * 300, ".."]
    places = {
        Cell(dataset=name, mechanism="none", policy="unlimited", seed=0).place for name in names
    }
    assert len(places) == len(names)
    for place in places:
        assert len(place.parts) == 4
        assert ".." not in place.parts
        assert max(map(len, place.parts)) < 60


class TestCells:
    def test_all_cells_of_a_seed_come_before_those_of_the_next(self) -> None:
        request = request_of(
            datasets=("demo", "synthetic"), mechanisms=("gaussian", "laplace"), preset="paper",
            settings={"privacy.epsilon": 3.0},
        )  # fmt: skip
        cells = request.cells()
        assert [cell.seed for cell in cells] == [0] * 8 + [1] * 8
        cell, config = list(cells.items())[-1]
        assert cell == Cell(dataset="synthetic", mechanism="laplace", policy="uniform", seed=1)
        assert (config.preset, config.privacy.epsilon) == ("paper", 3.0)
        assert (config.data.dataset, config.privacy.mechanism) == ("synthetic", "laplace")
        assert (config.planning.policy, config.run.seed) == ("uniform", 1)

    def test_unlimited_is_run_once_and_without_mechanism(self) -> None:
        request = request_of(
            mechanisms=("gaussian", "laplace"), policies=("unlimited", "bgt"), seeds=(3,)
        )
        found = {(cell.mechanism, cell.policy): of for cell, of in request.cells().items()}
        assert set(found) == {("none", "unlimited"), ("gaussian", "bgt"), ("laplace", "bgt")}
        assert found["none", "unlimited"].privacy.mechanism == "none"

    def test_every_combination_of_varied_settings(self) -> None:
        varied = ("privacy.epsilon=5,20", "planning.min_rounds=2,3")
        cells = request_of(*varied, policies=("bgt",)).cells()
        assert [cell.seed for cell in cells] == [0] * 4 + [1] * 4
        cell, config = list(cells.items())[1]
        assert (config.privacy.epsilon, config.planning.min_rounds) == (5, 3)
        assert str(cell.place) == (
            "privacy.epsilon=5,planning.min_rounds=3/demo/gaussian/bgt/seed-0"
        )
        assert cell.name.endswith("seed 0, privacy.epsilon=5,planning.min_rounds=3")

    def test_one_grid_after_the_other(self) -> None:
        grids = ({"privacy.epsilon": (5, 20)}, {"planning.levels": (3,)})
        cells = Study(policies=("bgt",), seeds=(0,), variations=grids).cells()
        names = ["privacy.epsilon=5", "privacy.epsilon=20", "planning.levels=3"]
        assert [cell.variant for cell in cells] == names

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"datasets": ()}, "--dataset = "),
            ({"datasets": ("ml100k",)}, "--dataset: .*did you mean 'ml-100k'"),
            ({"policies": ("bgd",)}, "--policy .*expected 'bgt'"),
            ({"mechanisms": ("none",)}, "--mechanism = 'none': expected with --policy unlimited"),
            ({"mechanisms": ("gaussian", "none")}, "--mechanism = 'none'"),
            ({"preset": "papers"}, "--preset"),
            ({"baseline": "adap"}, "--baseline = 'adap'"),
            ({"settings": {"run.seed": 1}}, "--set run.seed: .*--seeds"),
            ({"settings": {"privacy.epsilom": 1}}, "did you mean .*epsilon"),
        ],
    )
    def test_errors_name_the_flag(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            request_of(**changes).cells()

    @pytest.mark.parametrize(
        ("varied", "message"),
        [
            ("run.seed=1,2", "--vary run.seed: this is given by --seeds"),
            ("federation.rounds=1,2", "--vary federation.rounds: also given by --set"),
            ("privacy.epsilom=1", "--vary privacy.epsilom=1: unknown key .*mean .privacy.epsilon"),
            ("privacy.epsilon=1,-1", "--vary privacy.epsilon=-1: --epsilon .*greater than 0"),
        ],
    )
    def test_what_cannot_be_varied(self, varied: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            request_of(varied, settings={"federation.rounds": 3}).cells()


@pytest.mark.parametrize(
    ("policies", "baseline", "against"),
    [
        (("bgt", "adap", "uniform"), None, "uniform"),
        (("unlimited", "bgt", "adap"), None, "adap"),
        (("bgt", "unlimited"), None, "unlimited"),
        (("bgt",), None, None),
        (("bgt", "uniform"), "bgt", "bgt"),
    ],
)
def test_baseline(policies: tuple[str, ...], baseline: str | None, against: str | None) -> None:
    assert request_of(policies=policies, baseline=baseline).against == against


class TestCommandLine:
    @pytest.mark.parametrize("text", ["", "1-", "-1", "4-2", "0-99999", "²", "0,,1"])
    def test_no_seeds(self, text: str) -> None:
        with pytest.raises(ConfigError, match="--seeds"):
            parse_seeds(text)

    @pytest.mark.parametrize(
        ("text", "values"),
        [
            ("privacy.epsilon = 5, 5, 10.5", (5, 10.5)),
            ("server.optimizer=sgd,adam", ("sgd", "adam")),
            ('data.delimiter=",",";"', (",", ";")),
            ("planning.options={gamma=1},{gamma=2}", ({"gamma": 1}, {"gamma": 2})),
        ],
    )
    def test_values_as_toml_or_as_text(self, text: str, values: tuple[Any, ...]) -> None:
        assert list(parse_grid([text]).values()) == [values]

    @pytest.mark.parametrize(
        "text", ["x=1", "a.b", "a.b= ", ".b=1", "a.b=1,,x", "a.b=nan", "a.b=1979-05-27"]
    )
    def test_what_is_none_names_the_flag(self, text: str) -> None:
        with pytest.raises(ConfigError, match=r"--vary .*: expected SECTION\.KEY=V1,V2,\.\.\."):
            parse_grid([text])

    def test_a_key_is_given_once(self) -> None:
        with pytest.raises(ConfigError, match=r"--vary privacy\.clip: given twice"):
            parse_grid(["privacy.clip=1", "privacy.clip=2"])


class TestFolder:
    @pytest.mark.parametrize("study", [Study(), request_of("planning.options={gamma=1},{}")])
    def test_remembers(self, tmp_path: Path, study: Study) -> None:
        study.write(tmp_path)
        assert Study.read(tmp_path) == study

    def test_of_0_2(self, tmp_path: Path) -> None:
        """Axes were written otherwise, and there were settings that are gone."""
        grid = {"axes": [{"key": "privacy.clip", "values": [1, 2], "along": {}}], "settings": {}}
        request_of(policies=("bgt",), seeds=(0,)).write(tmp_path)
        file = tmp_path / "study.json"
        old = {"schema": 1, "variations": [grid], "settings": {"run.devices": 2}, "older": False}
        file.write_text(json.dumps(json.loads(file.read_text()) | old))
        study = Study.read(tmp_path)
        assert study is not None
        assert [config.privacy.clip for config in study.cells().values()] == [1, 2]

    def test_of_another_kind(self, tmp_path: Path) -> None:
        sweep, comparison = request_of("privacy.epsilon=5"), request_of()
        for there, asked, kind in ((sweep, comparison, "comp"), (comparison, sweep, "sweep")):
            there.write(tmp_path)
            with pytest.raises(ConfigError, match=f"something other than a {kind}"):
                run_study(asked, tmp_path)

    @pytest.mark.parametrize(
        ("found", "message"),
        [
            ("{", "cannot be read"),
            ("[]", "cannot be read"),
            ({"schema": 99}, "another version"),
            ({"seeds": ["x"]}, "valid integer"),
            ({"policies": ["bgd"]}, "--policy"),
            ({"variations": [{"axes": 3}]}, "cannot be read"),
        ],
    )
    def test_damaged(self, tmp_path: Path, found: Any, message: str) -> None:
        request_of().write(tmp_path)
        file = tmp_path / "study.json"
        if isinstance(found, dict):
            found = json.dumps(json.loads(file.read_text()) | found)
        file.write_text(found)
        with pytest.raises(RunFolderError, match=f"study.json: .*{message}"):
            Study.read(tmp_path)
