"""What `make paper` writes into docs/paper.md, from made-up results."""

from __future__ import annotations

import doctest
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.paper import __main__ as command
from benchmarks.paper import guarantees, table
from benchmarks.paper.findings import ADAP, ADPML, BGT, DPSGD, gains_of
from benchmarks.paper.page import blank, body_of, marks, put
from benchmarks.paper.plan import CORNERS, DATASETS, FIGURES, GRIDS, SEEDS, Figure, Grid, jobs_of
from benchmarks.paper.results import Results

from bgtplanner.cli import app
from bgtplanner.errors import InterruptedRunError
from bgtplanner.experiments import grid as grids
from bgtplanner.experiments.cells import Cell
from bgtplanner.experiments.table2 import HEADLINE, published

DOCS = Path(__file__).parents[1] / "docs" / "paper.md"
Of = Callable[[Cell], dict[str, Any]]


def summary(cell: Cell) -> dict[str, Any]:
    """RMSE .30 for BGTplanner, .32 for uniform, .31 for ADPML with Laplace noise, else .40."""
    rmse = {"bgt": 0.30, "uniform": 0.32, "unlimited": 0.20}.get(cell.policy, 0.40)
    if (cell.policy, cell.mechanism) == ("adpml", "laplace"):
        rmse = 0.31
    names = ("final", "best", "constant", "user_mean", "client_alone")
    found = {f"{kind}_{name}": 0.25 for kind in ("rmse", "f1") for name in names}
    found |= {"rmse_best": rmse + 0.01 * cell.seed, "f1_best": 1 - rmse}
    found |= {"rounds_run": 84, "clients": 943, "epsilon": 10.0, "seconds_total": 2.0}
    found |= {"epsilon_client_level": 2395.4, "epsilon_client_level_median": 288.2}
    return found | {"epsilon_client_level_pure": 407.0 if cell.mechanism == "laplace" else None}


def finish(
    runs: Path, part: Grid | Figure, dataset: str, seeds: tuple[int, ...], of: Of = summary
) -> None:
    """Put results where a command would have put them."""
    folder = runs / part.name / dataset
    asked = part.asked(dataset, seeds)
    for cell in asked.cells():
        place = folder / cell.place
        place.mkdir(parents=True)
        (place / "summary.json").write_text(json.dumps(of(cell)), encoding="utf-8")
    asked.write(folder)


def part(page: Path, name: str) -> str:
    return body_of(page.read_text(encoding="utf-8"), name)


def row(text: str, label: str) -> list[str]:
    """Cells of the first line of a table with this label."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "docs" / "paper.md"
    path.parent.mkdir()
    path.write_text(blank(command.TITLES), encoding="utf-8")
    return path


def test_the_docs_have_all_parts() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name in command.TITLES:
        assert body_of(text, name), name


def test_examples() -> None:
    for module in (table, guarantees):
        assert doctest.testmod(module).failed == 0


def test_the_papers_gains_follow_from_its_own_table() -> None:
    def theirs(method: Any, dataset: str, mechanism: str, kind: str) -> float | None:
        found = published(dataset, mechanism, method.policy)
        return None if found is None else float(getattr(found, kind))

    found = gains_of(theirs, [DPSGD, ADPML, ADAP], list(DATASETS))
    assert tuple(round(value or 0, 2) for value in found) == HEADLINE


def test_gains_by_hand() -> None:
    rmse = {"bgt": 0.30, "uniform": 0.32, "adpml": 0.40}

    def lookup(method: Any, dataset: str, mechanism: str, kind: str) -> float | None:
        if mechanism == "laplace" and method.policy == "uniform":
            return None
        value = rmse[method.policy]
        return value if kind == "rmse" else 1 - value

    found = gains_of(lookup, [DPSGD, ADPML], ["ml-100k"])
    assert found.gaussian == pytest.approx(100 * 0.02 / 0.32)
    assert found.laplace == pytest.approx(100 * 0.10 / 0.40)
    assert found.f1 == pytest.approx(100 * (0.02 / 0.68 + 0.10 / 0.60) / 2)


def test_tables_of_one_data_set(tmp_path: Path, page: Path) -> None:
    runs = tmp_path / "runs"
    finish(runs, GRIDS[0], "ml-100k", (0, 2))
    written = command.write_page(Results(runs), page)
    assert written == ["table2", "deviations", "closeness", "gains", "theorem", "guarantee"]
    text = part(page, "table2")
    assert row(text, "BGTplanner") == [".3100 / .3223", ".3100 / .3449"]
    assert row(text, "DPSGD (`uniform`)") == [".3300 / .3356", ".3300 / –"]
    assert row(text, "FedSGD, no noise") == [".2100 / .2017", ""]
    assert row(text, "*one constant for all*") == [".2500", ""]
    assert "mean of 2 seeds" in text
    assert "Nothing of FilmTrust and ML-1M yet" in text
    assert "--set planning.options.shape=saturating" in text
    # Two seeds .02 apart deviate by .02 / sqrt 2.
    assert row(part(page, "deviations"), "BGTplanner")[0] == ".0141, .000, 84"
    text = part(page, "gains")
    assert row(text, "as the paper says") == ["3.40 %", "10.12 %", "0.71 %"]
    assert row(text, "ours, against DPSGD alone")[:2] == ["6.06 %", "6.06 %"]  # .02 of .33
    assert row(text, "ours, against DPSGD and ADPML")[:2] == ["6.06 %", "3.13 %"]  # .01 of .32
    assert row(text, "mean, seed by seed") == ["-.0200", "-.0200"]
    assert "Ours over ML-100K only" in text
    text = part(page, "theorem")
    assert row(text, "ML-100K") == ["943", "35", "303", "10", "70", "no"]
    text = part(page, "guarantee")
    assert row(text, "ML-100K G") == ["10", "288", "2,395", "–"]
    assert row(text, "ML-100K L") == ["10", "288", "2,395", "407"]
    text = part(page, "closeness")
    assert "8 of 8 of ours, 7 of 7 of the paper's" in text
    assert row(text, "FedSGD, RMSE") == ["1", ".0083", "ML-100K", "+.0083"]


def test_writing_twice_changes_nothing(tmp_path: Path, page: Path) -> None:
    runs = tmp_path / "runs"
    finish(runs, GRIDS[0], "ml-100k", (0,))
    finish(runs, CORNERS[0], "ml-100k", (0,))
    command.write_page(Results(runs), page)
    before = page.read_text(encoding="utf-8")
    command.write_page(Results(runs), page)
    assert page.read_text(encoding="utf-8") == before


def test_parts_without_results_are_left_alone(tmp_path: Path, page: Path) -> None:
    text = put(page.read_text(encoding="utf-8"), "table2", "| of before |")
    page.write_text(text + "\nProse.\n", encoding="utf-8")
    assert command.write_page(Results(tmp_path / "none"), page) == []
    assert part(page, "table2") == "| of before |"
    assert page.read_text(encoding="utf-8").endswith("\nProse.\n")
    assert part(page, "figure-rounds").startswith("Not run yet; ")
    assert "bgtplanner sweep --figure rounds" in part(page, "figure-rounds")


def test_seeds_that_are_missing_are_told(tmp_path: Path, page: Path) -> None:
    runs = tmp_path / "runs"
    finish(runs, GRIDS[0], "ml-100k", (0, 1, 2))
    cell = runs / "table2" / "ml-100k" / "ml-100k" / "laplace" / "adap"
    (cell / "seed-1" / "summary.json").unlink()
    (cell / "seed-2" / "summary.json").write_text("{}", encoding="utf-8")  # has no figures
    finish(runs, GRIDS[2], "ml-100k", (0,))
    command.write_page(Results(runs), page)
    text = part(page, "table2")
    assert "mean of 3 seeds" in text
    assert (
        "Fewer seeds: ADPML, saturating, until it is spent on ML-100K (1), ADAP, noise 6 on"
        in text
    )
    assert "(1)." in text


def test_other_settings_are_told(tmp_path: Path, page: Path) -> None:
    short = Grid(name="table2", policies=("bgt",), settings={"federation.rounds": 20})
    finish(tmp_path, short, "ml-100k", (0,))
    command.write_page(Results(tmp_path), page)
    assert "table2 on ML-100K was run with `federation.rounds = 20`" in part(page, "table2")
    assert row(part(page, "gains"), "ours, against DPSGD alone") == ["–", "–", "–"]


@pytest.mark.parametrize("lost", ["<!-- begin: gains -->", "<!-- end: gains -->"])
def test_a_page_without_a_mark_is_refused(tmp_path: Path, page: Path, lost: str) -> None:
    finish(tmp_path / "runs", GRIDS[0], "ml-100k", (0,))
    before = page.read_text(encoding="utf-8").replace(lost, "")
    page.write_text(before, encoding="utf-8")
    with pytest.raises(SystemExit, match="one place for 'gains': <!-- begin: gains -->"):
        command.write_page(Results(tmp_path / "runs"), page)
    assert page.read_text(encoding="utf-8") == before


def test_parts_do_not_overlap() -> None:
    (begin, end), (other, _) = marks("a"), marks("b")
    with pytest.raises(SystemExit, match="another part begins within 'a'"):
        body_of(f"{begin}\n{other}\n{end}", "a")


def test_figures(tmp_path: Path, page: Path) -> None:
    runs = tmp_path / "runs"

    def of(cell: Cell) -> dict[str, Any]:
        extra = 0.02 if "min_rounds=90" in cell.variant else 0.0
        extra += 0.1 if "epsilon=5," in cell.variant else 0.0
        return summary(cell) | {"rmse_best": 0.3 + extra + 0.01 * cell.seed}

    finish(runs, FIGURES[1], "filmtrust", (0, 1), of)
    finish(runs, CORNERS[0], "ml-100k", (0,))
    assert command.write_page(Results(runs), page) == ["figure-budget", "figure-min-rounds"]
    text = part(page, "figure-min-rounds")
    assert "at `privacy.epsilon` = 10, mean of 2 seeds" in text
    name = "figures/min-rounds-filmtrust-gaussian.svg"
    plain = [".3050"] * 4
    assert row(text, f"[FilmTrust G]({name})") == ["bgt", *plain, ".3250", ".0200", ".0071"]
    assert (page.parent / name).read_text(encoding="utf-8").startswith("<svg")
    assert "--figure min-rounds --preset paper --dataset ml-1m" in text
    assert f"![FilmTrust, gaussian]({name})" in text
    text = part(page, "figure-budget")
    assert "mean of 1 seed;" in text
    assert "| uniform | .3200 | .3200 | .0000 | – |" in text
    assert "![ML-100K, gaussian](figures/budget-ml-100k-gaussian.svg)" in text


@pytest.mark.parametrize("quick", [False, True])
def test_commands_ask_for_what_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    asked: list[Any] = []

    def instead(request: Any, out: Path, **_: Any) -> Any:
        asked.append((request, out))
        raise InterruptedRunError("stopped")

    monkeypatch.setattr(grids, "run_grid", instead)
    jobs = list(jobs_of(list(DATASETS), (0, 1, 2), quick=quick))
    assert len(jobs) == 3 * 8
    for job in jobs:
        with pytest.raises(InterruptedRunError):
            app(job.words(tmp_path, 2), standalone_mode=False)
        assert asked.pop() == (job.asked, job.folder(tmp_path))


def test_the_table_has_120_private_runs() -> None:
    jobs = [job for job in jobs_of(list(DATASETS), SEEDS) if job.part is GRIDS[0]]
    cells = [cell for job in jobs for cell in job.asked.cells()]
    assert sum(cell.mechanism != "none" for cell in cells) == 120
    assert sum(cell.mechanism == "none" for cell in cells) == 15


def test_only_a_whole_table_goes_into_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    finish(tmp_path / "runs" / "paper", GRIDS[0], "ml-100k", SEEDS)
    assert command.main([]) == 0
    assert "build/paper.md: table2" in capsys.readouterr().out
    for dataset in ("filmtrust", "ml-1m"):
        finish(tmp_path / "runs" / "paper", GRIDS[0], dataset, SEEDS)
    assert command.main([]) == 0
    assert "docs/paper.md: table2" in capsys.readouterr().out
    assert BGT.label in (tmp_path / "docs" / "paper.md").read_text(encoding="utf-8")


def test_the_plan_says_how_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finish(tmp_path, GRIDS[0], "ml-100k", (0,))
    given = ["--plan", "--quick", "--runs", str(tmp_path), "--jobs", "2"]
    assert command.main(given) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "25 runs in 8 grids, 16 of them to do, about 64 s"
    assert said[1].startswith("bgtplanner compare --preset paper --dataset ml-100k")
    assert len(said) == 9


def test_a_grid_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    begun: list[Any] = []

    def instead(words: list[str], **_: Any) -> int:
        begun.append(words)
        return 1 if len(begun) == 1 else 0

    monkeypatch.setattr(command, "app", instead)
    assert command.main(["--run", "--quick"]) == 1
    assert len(begun) == 8
    assert "[8/8] bgtplanner sweep" in capsys.readouterr().out
