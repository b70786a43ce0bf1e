"""The study of limits: its plan, its figures, and that the pages say what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks.limits import __main__ as command
from benchmarks.limits.findings import GAINS, Rows, as_markdown, gain, stored
from benchmarks.limits.plan import CLIENTS, EPSILONS, REAL, SEEDS, cell, cells, pieces
from benchmarks.paper.page import body_of

REPOSITORY = Path(__file__).parents[1]
STORED = REPOSITORY / "benchmarks" / "limits" / "runs.jsonl"
PAGE = REPOSITORY / "docs" / "right-for-me.md"


@pytest.fixture(scope="module")
def rows() -> Rows:
    return stored(STORED)


class TestPlan:
    def test_every_size_epsilon_and_seed(self) -> None:
        runs = cells(CLIENTS)
        assert len(runs) == 8 * 5 * 3
        assert len({run.key for run in runs}) == len(runs)
        assert {run.config.synthetic.clients for run in runs} == set(CLIENTS)
        assert all(run.config.preset == "recommended" for run in runs[:3])

    def test_the_device_makes_no_other_run(self) -> None:
        assert cell(300, 1.0, 0, "gpu").mark == cell(300, 1.0, 0, "cpu").mark

    @pytest.mark.parametrize("jobs", [1, 3, 16])
    def test_pieces_share_people_and_miss_none(self, jobs: int) -> None:
        runs = cells(CLIENTS)
        found = pieces(runs, jobs)
        assert sorted(run.key for piece in found for run in piece) == sorted(
            run.key for run in runs
        )
        for piece in found:
            assert len({(run.name, run.seed) for run in piece}) == 1
        assert found[0][0].name == "clients=100000"  # the longest is not left for the end


class TestGain:
    def test_by_hand(self, tmp_path: Path) -> None:
        with (tmp_path / "runs.jsonl").open("w") as file:
            for seed, error in zip((0, *SEEDS), (0.1, 0.18, 0.19, 0.20), strict=True):
                figures = {"rmse_served": error, "rmse_client_alone_served": 0.2}
                print(json.dumps({"key": cell(300, 1.0, seed).key, **figures}), file=file)
        made = stored(tmp_path / "runs.jsonl")  # of seed 0, the newest
        found = gain(made, 300, 1.0, "served")
        assert found is not None
        assert found.mean == pytest.approx(5.0)
        assert gain(made, 300, 1.0, "lists") is None  # nothing was released
        assert gain(made, 300, 3.0, "served") is None  # not run
        assert "| 300 | – | +5.0 ± 12.4 | – | – | – |" in as_markdown(made)

    def test_the_lucky_seeds_alone_do_not_count(self) -> None:
        runs = [cell(300, 1.0, seed) for seed in SEEDS]
        figures = {"ndcg_at_10": 0.3, "ndcg_at_10_popularity_released": 0.2}
        made = {run.key: figures for run in runs}
        assert gain(made, 300, 1.0, "lists") is not None
        made[runs[0].key] = {"ndcg_at_10": 0.3}
        assert gain(made, 300, 1.0, "lists") is None

    def test_more_is_better_for_lists(self) -> None:
        row = {"ndcg_at_10": 0.3, "ndcg_at_10_popularity_released": 0.2}
        assert GAINS["lists"].of(row) == pytest.approx(50.0)
        assert GAINS["last"].of({"rmse_final": 0.3, "rmse_client_alone": 0.2}) == pytest.approx(
            -50
        )


class TestPages:
    def test_all_cells_are_stored(self, rows: Rows) -> None:
        assert [run.key for run in cells([*CLIENTS, *REAL]) if run.key not in rows] == []

    def test_the_table_is_that_of_the_stored_runs(self, rows: Rows) -> None:
        assert body_of(PAGE.read_text(encoding="utf-8"), "limits") == as_markdown(rows), (
            "run `python -m benchmarks.limits`"
        )

    def test_how_to_choose_quotes_the_table(self, rows: Rows) -> None:
        text = (REPOSITORY / "docs" / "howto" / "choose.md").read_text(encoding="utf-8")
        found = {
            (clients * epsilon, clients, epsilon): gain(rows, clients, epsilon, "served")
            for clients in CLIENTS
            for epsilon in EPSILONS
        }
        for low, high, label in (
            (0, 800, "under 800"),
            (800, 4_000, "800 to 4,000"),
            (4_000, 50_001, "4,000 to 50,000"),
            (50_001, 1e9, "over 50,000"),
        ):
            means = [one.mean for key, one in found.items() if one and low <= key[0] < high]
            row = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
            said = re.search(r"\| (−?[\d.]+) to ([\d.]+) %", row)
            assert said is not None, label
            assert said[1].replace("−", "-") == f"{min(means):.1f}", label
            assert said[2] == f"{max(means):.1f}", label
        known = gain(rows, "ml-100k", 0.5, "served")
        assert known is not None
        assert f"the error is {known.mean:.1f} % lower" in text

    def test_what_is_read_from_the_picture(self, rows: Rows) -> None:
        text = " ".join(PAGE.read_text(encoding="utf-8").split())

        def means(service: int | str, what: str) -> list[float]:
            found = [gain(rows, service, epsilon, what) for epsilon in EPSILONS]
            return [one.mean for one in found if one is not None]

        ends = {
            name: f"{min(means(name, 'served')):.1f} to {max(means(name, 'served')):.1f} %"
            for name in ("filmtrust", "ml-100k")
        }
        assert f"gains {ends['filmtrust']} where MovieLens gains {ends['ml-100k']}" in text
        lists = means("ml-100k", "lists")
        made = [value for clients in CLIENTS for value in means(clients, "lists")]
        assert f"{min(lists):.0f} to {max(lists):.0f} % over popularity as released" in text
        plain = []
        for epsilon in (EPSILONS[0], EPSILONS[-1]):
            runs = [rows[cell("ml-100k", epsilon, seed).key] for seed in SEEDS]
            shares = [run["ndcg_at_10"] / run["ndcg_at_10_popularity"] - 1 for run in runs]
            plain.append(100 * sum(shares) / len(shares))
        assert f"the gain is {plain[0]:.0f} to {plain[1]:.0f} %" in text
        assert f"lines are at {min(made):.0f} to {max(made):.0f} %" in text
        most = means(100_000, "served")
        assert f"{most[1]:.1f} % lower at epsilon 1, and {most[4]:.1f} % at 20" in text
        for clients, epsilon in ((100, 10.0), (300, 3.0), (1000, 1.0), (3000, 0.5)):
            found = gain(rows, clients, epsilon, "served")
            assert found is not None
            assert found.half is not None
            assert found.mean - found.half > 0
        for clients, epsilon, wasted in (
            (30, 3.0, False), (100, 1.0, False), (30, 10.0, True), (100, 3.0, True),
            (300, 0.5, True), (300, 1.0, True), (1000, 0.5, True),
        ):  # fmt: skip
            found = gain(rows, clients, epsilon, "served")
            assert found is not None
            assert found.half is not None
            assert found.mean - found.half < 0  # no gain
            runs = [rows[cell(clients, epsilon, seed).key] for seed in SEEDS]
            spent = [run["epsilon_spent_max"] / epsilon for run in runs]
            assert min(spent) > 0.99 if wasted else max(spent) < 0.23
        worst = min(value for clients in CLIENTS for value in means(clients, "served"))
        assert f"a loss of up to {-worst:.1f} %" in text

    def test_the_picture_is_drawn_without_running(self, tmp_path: Path) -> None:
        picture, page = tmp_path / "limits.svg", tmp_path / "page.md"
        assert command.main(["--picture", str(picture), "--page", str(page)]) == 0
        text = picture.read_text(encoding="utf-8")
        assert all(f"epsilon {epsilon:g}" in text for epsilon in EPSILONS)
        assert not page.exists()  # it has no place for the table

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--plan", "--jobs", "0"], "--jobs 0"),
            (["--plan", "--clients", "few"], "numbers with commas"),
            (["--plan", "--real", "netflix"], "--real netflix"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            command.main(words)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
