"""What is varied, how it is written, and what comes of it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.errors import ConfigError, InterruptedRunError, RunFolderError
from bgtplanner.experiments import runner
from bgtplanner.experiments.cells import Outcome
from bgtplanner.experiments.config import Config
from bgtplanner.experiments.grid import Request, run_grid
from bgtplanner.experiments.store import RunFolder
from bgtplanner.experiments.sweeps import (
    FIGURES,
    Study,
    Sweep,
    evaluate,
    figure_named,
    parse_axis,
)


def made(*axes: str, settings: dict[str, Any] | None = None, **base: Any) -> Sweep:
    request = Request(**({"policies": ("bgt",), "seeds": (0, 1)} | base), settings=settings or {})
    return Sweep(base=request, studies=(Study(axes=tuple(map(parse_axis, axes))),))


def figures(value: float) -> dict[str, float]:
    names = ("final", "best", "constant", "user_mean", "client_alone")
    return {f"{kind}_{name}": value for kind in ("rmse", "f1") for name in names}


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
            (["federation.rounds=1,2"], "--vary federation.rounds: given by --set too"),
            (["privacy.clip=1", "privacy.clip=2"], "--vary privacy.clip: given twice"),
            (["privacy.epsilom=1"], "--vary privacy.epsilom=1: unknown key .*mean .epsilon"),
            (["privacy.epsilon=1,-1"], "--vary privacy.epsilon=-1: --epsilon .*greater than 0"),
        ],
    )
    def test_what_cannot_be_varied(self, axes: list[str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            made(*axes, settings={"federation.rounds": 3}).cells()

    def test_other_mistakes_are_not_blamed_on_it(self) -> None:
        with pytest.raises(ConfigError, match=r"^--policy"):
            made("privacy.epsilon=1", policies=("nobody",)).cells()


class TestFigures:
    @pytest.mark.parametrize("preset", ["paper", "recommended"])
    @pytest.mark.parametrize("name", FIGURES)
    def test_all_can_be_run(self, name: str, preset: str) -> None:
        policies, studies = figure_named(name, preset)
        base = Request(policies=policies, seeds=(0,), preset=preset)
        cells = Sweep(base=base, studies=studies, figure=name).cells()
        assert len(cells) == {"budget": 16, "min-rounds": 20, "rounds": 16, "small": 22}[name]

    def test_the_paper_s_share_of_rounds_is_kept_unless_given(self) -> None:
        def pairs(settings: dict[str, Any]) -> set[tuple[int, int | None]]:
            _, studies = figure_named("rounds")
            base = Request(policies=("bgt",), seeds=(0,), preset="paper", settings=settings)
            cells = Sweep(base=base, studies=studies).cells().values()
            return {(of.federation.rounds, of.planning.min_rounds) for of in cells}

        assert pairs({}) == {(50, 35), (75, 52), (100, 70), (150, 105)}
        assert {least for _, least in pairs({"planning.min_rounds": 40})} == {40}

    @pytest.mark.parametrize(
        ("preset", "expected"),
        [
            ("paper", {"forgetting": 0.0001}),
            (
                "recommended",
                {
                    "predictor": {
                        "fit": True,
                        "noise": 3.0,
                        "length_scale": 4.0,
                        "forgetting": 0.0001,
                    }
                },
            ),
        ],
    )
    def test_what_is_not_varied_of_the_predictor_stays(
        self, preset: str, expected: dict[str, Any]
    ) -> None:
        policies, studies = figure_named("small", preset)
        base = Request(policies=policies, seeds=(0,), preset=preset)
        cells = Sweep(base=base, studies=studies).cells().items()
        given = [of.planning.options for cell, of in cells if "forg" in cell.variant]
        assert given[0] == expected

    def test_unknown(self) -> None:
        with pytest.raises(ConfigError, match="--figure = 'none': expected one of budget"):
            figure_named("none")


class TestFolder:
    def test_remembers(self, tmp_path: Path) -> None:
        assert Sweep.read(tmp_path) is None
        for name in FIGURES:
            policies, studies = figure_named(name)
            sweep = Sweep(base=Request(policies=policies), studies=studies, figure=name)
            sweep.write(tmp_path)
            assert Sweep.read(tmp_path) == sweep

    @pytest.mark.parametrize("text", ["{", "[]", '{"schema": 2}', '{"schema": 1}'])
    def test_broken(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "vary.json").write_text(text)
        with pytest.raises(RunFolderError, match=r"vary.json: (cannot be read|written by)"):
            Sweep.read(tmp_path)

    def test_finished_cells_are_not_run_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run: list[float] = []

        def execute(config: Config, *, out: Path, observer: Any) -> None:
            if len(run) == 3:
                raise InterruptedRunError("stopped")
            run.append(config.privacy.epsilon)
            with RunFolder.create(out, config, fingerprint="x") as folder:
                folder.write_summary(figures(0.5))

        monkeypatch.setattr(runner, "execute", execute)
        out = tmp_path / "sweep"
        with pytest.raises(InterruptedRunError, match=r"3 of 4 .* bgtplanner sweep --out"):
            run_grid(made("privacy.epsilon=5,20"), out)
        assert run == [5, 20, 5]
        run.clear()
        run_grid(made("privacy.epsilon=5,20,30", seeds=(0,)), out)
        assert run == [30]

    def test_of_somebody_else(self, tmp_path: Path) -> None:
        (tmp_path / "grid.json").write_text("{}")
        with pytest.raises(ConfigError, match="other things than a sweep"):
            run_grid(made("privacy.epsilon=5"), tmp_path)


def test_what_it_has_shown() -> None:
    sweep = made("privacy.epsilon=5,20")
    outcomes = [
        Outcome(cell=cell, summary=figures(config.privacy.epsilon + cell.seed))
        if (config.privacy.epsilon, cell.seed) != (20, 1)
        else Outcome(cell=cell, error="lost")
        for cell, config in sweep.cells().items()
    ]
    found = evaluate(sweep, outcomes)
    assert found.reported == ("rmse_final", "f1_final")
    assert [outcome.error for outcome in found.failed] == ["lost"]
    tree = json.loads(json.dumps(found.as_json()))
    assert [row["varied"] for row in tree["rows"]] == [
        {"privacy.epsilon": 5},
        {"privacy.epsilon": 20},
    ]
    assert tree["rows"][0]["figures"]["rmse_final"]["mean"] == 5.5
    assert tree["rows"][0]["figures"]["rmse_final"]["std"] == pytest.approx(0.5**0.5)
    assert tree["cells"] == 4
    assert tree["failed"][0]["variant"] == "privacy.epsilon=20"
    lines = list(csv.DictReader(io.StringIO(found.as_csv())))
    assert len(lines) == 8
    assert (lines[4]["privacy.epsilon"], lines[4]["seeds"], lines[4]["mean"]) == (
        "20",
        "1",
        "20.0",
    )


def test_paper_reports_the_best_round() -> None:
    assert evaluate(made("privacy.epsilon=5", preset="paper"), []).reported[0] == "rmse_best"
