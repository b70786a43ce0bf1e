"""What `make paper` writes into docs/paper.md, from made-up results."""

from __future__ import annotations

import doctest
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.paper import __main__ as command
from benchmarks.paper import figures, guarantees, table
from benchmarks.paper import results as stored
from benchmarks.paper.claims import DEPENDS, NO, YES
from benchmarks.paper.findings import BGT, RIVALS, gains_of, of_print
from benchmarks.paper.page import blank, body_of, marks, put
from benchmarks.paper.plan import (
    COMPARED,
    CORNERS,
    DATASETS,
    FIGURES,
    READINGS,
    RUNS,
    SEEDS,
    TEN_USERS,
    Figure,
    Job,
    Reading,
    jobs_of,
)
from benchmarks.paper.results import Results

from bgtplanner.cli import app
from bgtplanner.errors import ConfigError, InterruptedRunError
from bgtplanner.paper.table2 import HEADLINE
from bgtplanner.runs import execute
from bgtplanner.runs.cells import Cell, Outcome
from bgtplanner.runs.folder import RunFolder

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
    runs: Path, part: Reading | Figure, dataset: str, seeds: tuple[int, ...], of: Of = summary
) -> None:
    """Put results where a command would have put them."""
    folder = runs / part.name / dataset
    asked = part.asked(dataset, seeds)
    for cell in asked.cells():
        place = folder / cell.place
        place.mkdir(parents=True)
        (place / "summary.json").write_text(json.dumps(of(cell)), encoding="utf-8")
    asked.write(folder)


def finish_table(runs: Path, datasets: list[str], seeds: tuple[int, ...]) -> None:
    for reading in READINGS:
        for dataset in datasets:
            finish(runs, reading, dataset, seeds)


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


def test_other_pages_say_what_this_one_does() -> None:
    """How many cells are near print, wherever that is said."""
    number, _, near, _ = row(body_of(DOCS.read_text(encoding="utf-8"), "closeness"), "RMSE")
    for name in ("README.md", "docs/concepts/published-setting.md"):
        text = " ".join((DOCS.parents[1] / name).read_text(encoding="utf-8").split())
        assert f"{near} of the {number} RMSE cells" in text, name


def test_examples() -> None:
    for module in (table, guarantees):
        assert doctest.testmod(module).failed == 0


def test_every_method_of_the_table_has_one_reading_that_is_laid_beside_print() -> None:
    assert list(COMPARED) == ["BGTplanner", "DPSGD", "ADPML", "ADAP", "FedSGD"]
    compared = [reading for reading in READINGS if reading.compared]
    assert len(compared) == len(COMPARED)
    cells = [
        (reading.name, dataset, mechanism)
        for reading in compared
        for dataset in DATASETS
        for mechanism in reading.mechanisms
        if of_print(reading, dataset, mechanism, "rmse") is not None
    ]
    assert len(cells) == 24


def test_the_papers_gains_follow_from_its_own_table() -> None:
    found = gains_of(of_print, RIVALS, list(DATASETS))
    assert tuple(round(value or 0, 2) for value in found) == HEADLINE


def test_gains_by_hand() -> None:
    rmse = {"bgt": 0.30, "uniform": 0.32, "adpml": 0.40}

    def lookup(reading: Any, dataset: str, mechanism: str, kind: str) -> float | None:
        if mechanism == "laplace" and reading.policy == "uniform":
            return None
        value = rmse[reading.policy]
        return value if kind == "rmse" else 1 - value

    found = gains_of(lookup, RIVALS[:2], ["ml-100k"])
    assert found.gaussian == pytest.approx(100 * 0.02 / 0.32)
    assert found.laplace == pytest.approx(100 * 0.10 / 0.40)
    assert found.f1 == pytest.approx(100 * (0.02 / 0.68 + 0.10 / 0.60) / 2)


def test_tables_of_one_data_set(tmp_path: Path, page: Path) -> None:
    runs = tmp_path / "runs"
    finish_table(runs, ["ml-100k"], (0, 2))
    (runs / "half.json").write_text(json.dumps({"ml-100k": [0.3, 0.31]}), encoding="utf-8")
    written = command.write_page(Results(runs), page)
    assert written == [
        "table2", "deviations", "commands", "closeness", "misses", "clip", "gains", "theorem",
        "guarantee", "provenance",
    ]  # fmt: skip
    text = part(page, "table2")
    assert row(text, "**BGTplanner, as its authors coded it**") == [
        ".3100 / .3223",
        ".3100 / .3449",
    ]
    assert row(text, "DPSGD, as BGTplanner is accounted for") == [".3300 / .3356", ".3300"]
    assert row(text, "**DPSGD, moments accountant**") == [".3300 / .3356", ""]
    assert row(text, "**FedSGD, no noise**") == [".2100 / .2017", ""]
    assert row(text, "*0.5 for everything*") == [".3050", ""]
    assert row(text, "*one constant for all*") == [".2500", ""]
    assert "mean of 2 seeds" in text
    assert "Nothing of FilmTrust and ML-1M yet" in text
    assert "ten users in each client" not in text
    # Two seeds .02 apart deviate by .02 / sqrt 2.
    found = row(part(page, "deviations"), "BGTplanner, as its authors coded it")
    assert found == [".0141, .000, 84", ".0141, .000, 84"]
    text = part(page, "gains")
    assert row(text, "as the paper says") == ["+3.40 %", "+10.12 %", "+0.71 %"]
    against = row(text, "ours, against even charges under the same accountant")
    assert against[:2] == ["+6.06 %", "+6.06 %"]  # .02 of .33
    assert row(text, "ours, under the readings in bold")[1] == "+3.13 %"  # .01 of .32
    assert row(text, "mean, seed by seed") == ["-.0200", "-.0200"]
    assert "Ours over ML-100K only" in text
    text = part(page, "theorem")
    assert row(text, "ML-100K") == ["943", "35", "303", "10", "70", "no"]
    text = part(page, "guarantee")
    assert row(text, "ML-100K G") == ["10", "288", "2,395", "–"]
    assert row(text, "ML-100K L") == ["10", "288", "2,395", "407"]
    text = part(page, "closeness")
    assert "of ours, 7 of 7 of the paper's" in text
    assert row(text, "FedSGD, no noise") == ["+4.1 %", ""]  # .21 against .2017
    assert row(text, "BGTplanner, as its authors coded it") == ["-3.8 %", "-10.1 %"]
    # -3.8, -10.1, -1.7, +19.1, -16.1, +15.4, +0.2 and +4.1 %, and as many of F1.
    assert row(text, "RMSE") == ["8", "2", "4", "4"]
    assert "**ADAP.** RMSE on ML-100K G +15.4 %" in part(page, "misses")
    assert "2 to" not in part(page, "provenance")
    assert "`bgtplanner compare --preset paper --dataset DATASET" in part(page, "commands")
    assert row(part(page, "clip"), "clip 0.001") == [".3300", ".3300"]


def test_the_commands_of_the_page_are_those_of_the_runs() -> None:
    for reading in READINGS:
        job = Job(part=reading, dataset="ml-100k", seeds=SEEDS)
        assert job.command(RUNS).startswith(f"bgtplanner {job.plain_words()} --out ")


def test_claims_are_judged_by_the_results(
    tmp_path: Path, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BGTplanner is best of all, but for ADPML with Laplace noise on one set."""
    monkeypatch.setattr(figures, "picture", lambda *_: "<svg></svg>")

    def of(cell: Cell) -> dict[str, Any]:
        rmse = {"bgt": 0.30, "uniform": 0.32, "unlimited": 0.20}.get(cell.policy, 0.40)
        if (cell.dataset, cell.mechanism, cell.policy) == ("ml-100k", "laplace", "adpml"):
            rmse = 0.29
        for epsilon, extra in (("=5", 0.02), ("=20", -0.02)):
            rmse += extra * (f"privacy.epsilon{epsilon}" in cell.variant)
        rmse += 0.01 * (cell.mechanism == "laplace") * ("rounds=150" in cell.variant)
        return summary(cell) | {"rmse_best": rmse + 1e-4 * cell.seed, "f1_best": 1 - rmse}

    for reading in READINGS:
        for dataset in DATASETS:
            finish(tmp_path, reading, dataset, (0, 1), of)
    assert command.write_page(Results(tmp_path), page)
    assert part(page, "claims").startswith("Not run yet;")  # not without the figures
    for figure in FIGURES[:3]:
        for dataset in DATASETS:
            finish(tmp_path, figure, dataset, (0, 1), of)
    assert "claims" in command.write_page(Results(tmp_path), page)
    found = {
        line.split("|")[1].strip().split(" (in print")[0]: line.split("|")[2].strip()
        for line in part(page, "claims").splitlines()
        if line.startswith("| ")
    }
    assert found["BGTplanner is best on FilmTrust G"] == YES
    assert found["BGTplanner is best on ML-100K L"] == NO
    assert found["ADPML and ADAP do worse than BGTplanner"] == DEPENDS
    assert found["A larger total budget gives a better model"] == YES
    assert found["With Gaussian noise more rounds T help"] == NO
    assert found["With Laplace noise more rounds T do harm"] == YES
    assert found["BGTplanner is robust against T_min"] == YES


def test_writing_twice_changes_nothing(tmp_path: Path, page: Path) -> None:
    runs = tmp_path / "runs"
    finish_table(runs, ["ml-100k"], (0,))
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
    finish_table(runs, ["ml-100k"], (0, 1, 2))
    cell = runs / "adap-noise-6" / "ml-100k" / "ml-100k" / "laplace" / "adap"
    (cell / "seed-1" / "summary.json").unlink()
    (cell / "seed-2" / "summary.json").write_text("{}", encoding="utf-8")  # has no figures
    for place in (runs / "dpsgd" / "ml-100k").rglob("summary.json"):
        place.unlink()
    command.write_page(Results(runs), page)
    text = part(page, "table2")
    assert "mean of 3 seeds" in text
    assert "Fewer seeds: ADAP, noise 6 over the clip on ML-100K (1)." in text
    assert "--policy uniform --seeds 0-4 --out runs/paper/dpsgd/ml-100k" in text


def test_other_settings_are_told(tmp_path: Path, page: Path) -> None:
    short = Reading(
        name="bgt", method="BGTplanner", label="", policy="bgt",
        settings={"federation.rounds": 20, "data.data_dir": "elsewhere"},
    )  # fmt: skip
    finish(tmp_path, short, "ml-100k", (0,))
    command.write_page(Results(tmp_path), page)
    said = "BGTplanner, as printed on ML-100K was run with `federation.rounds = 20`."
    assert said in part(page, "table2")


def test_a_folder_with_runs_of_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    job = Job(part=READINGS[0], dataset="ml-100k", seeds=(0,))
    cell, config = next(iter(job.asked.cells().items()))
    other = config.model_copy(
        update={"federation": config.federation.model_copy(update={"rounds": 7})}
    )
    place = job.folder(tmp_path) / cell.place
    with RunFolder.create(place, other, fingerprint="of some data"):
        pass
    with pytest.raises(ConfigError, match=r"with other settings \(federation\.rounds\)"):
        command.run([job], tmp_path, 1)
    assert not (job.folder(tmp_path) / "study.json").exists()


@pytest.mark.parametrize("lost", ["<!-- begin: gains -->", "<!-- end: gains -->"])
def test_a_page_without_a_mark_is_refused(tmp_path: Path, page: Path, lost: str) -> None:
    finish(tmp_path / "runs", READINGS[0], "ml-100k", (0,))
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
    assert "--figure min-rounds --preset paper --dataset ml-1m-merged" in text
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

    monkeypatch.setattr(execute, "run_study", instead)
    jobs = list(jobs_of(list(DATASETS), (0, 1, 2), quick=quick))
    parts = len(READINGS) + (3 if quick else 4)
    assert len(jobs) == 3 * parts + len(COMPARED)  # and the other reading of ML-1M
    for job in jobs:
        with pytest.raises(InterruptedRunError):
            app(job.words(tmp_path, 2), standalone_mode=False)
        assert asked.pop() == (job.asked, job.folder(tmp_path))


def test_the_table_has_135_runs_on_each_data_set() -> None:
    jobs = [job for job in jobs_of(list(DATASETS), SEEDS) if isinstance(job.part, Reading)]
    numbers = dict.fromkeys((*DATASETS, TEN_USERS), 0)
    for job in jobs:
        numbers[job.dataset] += len(job.asked.cells())
    assert numbers == {"filmtrust": 135, "ml-100k": 135, "ml-1m-merged": 135, "ml-1m": 40}


def test_only_a_whole_table_goes_into_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    finish_table(tmp_path / "runs" / "paper", ["ml-100k"], SEEDS)
    assert command.main([]) == 0
    assert "build/paper.md: table2" in capsys.readouterr().out
    finish_table(tmp_path / "runs" / "paper", ["filmtrust", "ml-1m-merged"], SEEDS)
    assert command.main([]) == 0
    assert "docs/paper.md: table2" in capsys.readouterr().out
    assert BGT.label in (tmp_path / "docs" / "paper.md").read_text(encoding="utf-8")


def test_all_runs_are_carried_out_together_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [Job(part=reading, dataset="ml-100k", seeds=(0,)) for reading in READINGS[:2]]
    finish(tmp_path, READINGS[0], "ml-100k", (0,))
    ran: list[Path] = []

    def instead(cells: Any, configs: Any, out: Path, *_: Any) -> Any:
        for cell in cells:
            ran.append(out / cell.place)
            failed = "no memory" if cell.mechanism == "laplace" else None
            yield Outcome(cell=cell, error=failed, seconds=1.0)

    monkeypatch.setattr(command, "one_by_one", instead)
    monkeypatch.setattr(command, "side_by_side", instead)
    for at_once in (1, 4):
        ran.clear()
        assert not command.run(jobs, tmp_path, at_once)
        place = tmp_path / "bgt" / "ml-100k" / "ml-100k"
        assert ran == [place / kind / "bgt" / "seed-0" for kind in ("gaussian", "laplace")]
        assert "2/2 bgt/ml-100k/ml-100k/laplace/bgt/seed-0: FAILED: no memory" in (
            capsys.readouterr().out
        )
        assert (tmp_path / "bgt" / "ml-100k" / "study.json").exists()


def test_what_was_stopped_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def instead(cells: Any, *_: Any) -> Any:
        yield Outcome(cell=cells[0], interrupted=True)

    monkeypatch.setattr(command, "one_by_one", instead)
    jobs = [Job(part=READINGS[0], dataset="ml-100k", seeds=(0,))]
    with pytest.raises(InterruptedRunError, match="stopped after 0 of 2 runs; go on likewise"):
        command.run(jobs, tmp_path, 1)


def test_predicting_a_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_half", lambda dataset, seed: 0.3 + 0.01 * seed)
    stored.write_halves(tmp_path, ["ml-100k"], (0, 1))
    found = Results(tmp_path).reference("ml-100k", "rmse_half")
    assert found is not None
    assert found.mean == pytest.approx(0.305)


def test_the_plan_says_how_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finish(tmp_path, READINGS[0], "ml-100k", (0,))
    given = ["--plan", "--quick", "--runs", str(tmp_path), "--jobs", "2"]
    assert command.main(given) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "35 runs in 18 grids, 33 of them to do, about 2 min"
    assert said[1].startswith("bgtplanner compare --preset paper --dataset ml-100k")
    assert len(said) == 19
