"""What `make bench` compares and writes: equal sums, the plan of its quick form, its page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.paper.page import body_of, marks
from benchmarks.peers import __main__ as peers
from benchmarks.peers import ranking, reading, rounds
from benchmarks.peers.ours import Ours
from benchmarks.peers.task import Task, apart
from benchmarks.speed import __main__ as speed
from benchmarks.speed import child, page

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import split_ratings
from bgtplanner.data.synthetic import synthetic_ratings

REPOSITORY = Path(__file__).parents[1]
NAMES = [*(f"peers {name}" for name in peers.QUESTIONS), *speed.QUESTIONS]


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    return synthetic_ratings(clients=30, items=40, ratings_per_client=12)


@pytest.fixture(scope="module")
def task(ratings: Ratings) -> Task:
    return Task.of(ratings)


class TestTheTask:
    def test_some_uploads_are_clipped_and_some_are_not(self, task: Task) -> None:
        norms = [float(np.linalg.norm(task.upload(client))) for client in range(task.clients)]
        assert max(norms) <= task.clip * (1 + 1e-6)
        assert 0.3 < np.mean([norm < 0.999 * task.clip for norm in norms]) < 0.7

    def test_a_gradient_is_the_slope_of_the_loss(self, task: Task) -> None:
        def loss(step: float) -> float:
            moved = task.rows.astype(np.float64)
            moved[item] += step * gradient
            features = moved[item].copy()
            features[:, 0] = 1.0
            target = task.value[task.ratings_of(3)] - 0.7 - moved[item][:, 0]
            ridge = np.diag([5.0, 2.0, 2.0, 2.0, 2.0])
            weights = np.linalg.solve(features.T @ features + ridge, features.T @ target)
            penalty = weights @ ridge @ weights  # with it, the solution is the least of the loss
            return float(((target - features @ weights) ** 2).sum() + penalty) / (2 * len(item))

        item, gradient = task.gradient(3)
        slope = (loss(1e-4) - loss(-1e-4)) / 2e-4
        assert slope == pytest.approx(float((gradient**2).sum()), rel=1e-5)

    def test_a_sum_is_that_of_the_uploads(self, task: Task) -> None:
        total = sum(task.upload(client).astype(np.float64) for client in (1, 4))
        np.testing.assert_allclose(task.sum([1, 4]), total, atol=1e-8)

    def test_other_processes_read_the_same(self, task: Task, tmp_path: Path) -> None:
        task.save(tmp_path / "task.npz")
        np.testing.assert_array_equal(Task.load(tmp_path / "task.npz").sum(), task.sum())


class TestEqualSums:
    def test_ours(self, task: Task, ratings: Ratings) -> None:
        ours = Ours(task, ratings)
        assert rounds.check_equal("ours", ours.sum(), task.sum()) < rounds.TOLERANCE
        ours.round()
        ours.whole_round()
        assert ours.simulation.seen.noise_std > 0
        noise = ours.simulation.seen.aggregate.reshape(task.rows.shape) * task.clients - task.sum()
        assert 0.5 < noise.std() / (ours.simulation.seen.noise_std * task.clients) < 2

    @pytest.mark.filterwarnings("ignore::UserWarning:pfl")
    @pytest.mark.parametrize("name", [name for name in rounds.PEERS if name != "flower"])
    def test_peers(self, name: str, task: Task) -> None:
        package = rounds.PEERS[name].package
        pytest.importorskip(package, reason=f"{package} is not installed; see make bench")
        chosen = [2, 3, 5, 7] if rounds.PEERS[name].slow else list(range(task.clients))
        side = rounds.side_of(name, task, chosen)
        assert rounds.check_equal(name, side.sum(), task.sum(chosen)) < rounds.TOLERANCE
        side.round()
        assert rounds.check_equal(name, side.sum(), task.sum(chosen)) < rounds.TOLERANCE

    def test_what_a_round_takes_anyway_is_not_scaled_up(
        self, ratings: Ratings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A round of 10 s and 1 s a client, on a clock of its own; 8 of 30 clients are there."""
        clock = [0.0]

        class Slow:
            def __init__(self, task: Task, chosen: list[int]) -> None:
                self.sum, self.number = lambda: task.sum(chosen), len(chosen)

            def round(self, clients: int | None = None) -> None:
                clock[0] += 10.0 + (clients or self.number)

        monkeypatch.setattr(rounds, "side_of", lambda _, task, chosen: Slow(task, chosen))
        monkeypatch.setattr(child.time, "perf_counter", lambda: clock[0])
        monkeypatch.setattr(Ours, "round", lambda _: clock.__setitem__(0, clock[0] + 2.0))
        monkeypatch.setattr(Ours, "whole_round", lambda _: clock.__setitem__(0, clock[0] + 3.0))
        found = rounds.compare(ratings, 3, 5, 8, tmp_path, ["pfl"])
        expected = {"ours": [2.0] * 3, "whole round": [3.0] * 3, "pfl": [40.0] * 3}
        assert found["seconds"] == expected
        assert found["peers"]["pfl"]["ratio"] == 20.0

    def test_another_sum_is_not_timed(self, task: Task) -> None:
        with pytest.raises(SystemExit, match="not the same task"):
            rounds.check_equal("somebody", 1.001 * task.sum(), task.sum())
        assert apart(task.sum(), task.sum()) == 0.0


class TestReadingAndRanking:
    def test_files_are_read_alike(self, tmp_path: Path) -> None:
        for what, path in reading.write_tables(tmp_path, 300).items():
            ours = reading.by_us(path)
            assert ("users" in ours) == ("names" in what)
            for reader, read in reading.READERS.items():
                pytest.importorskip(reader, reason=f"{reader} is not installed; see make bench")
                reading.check_equal(reader, read(path), ours)

    def test_another_column_is_not_timed(self) -> None:
        one: dict[str, Any] = {name: np.arange(3) for name in reading.COLUMNS}
        with pytest.raises(SystemExit, match="column 'time'"):
            reading.check_equal("somebody", one | {"time": np.zeros(3)}, one)

    def test_ndcg_is_lenskits(self, ratings: Ratings) -> None:
        pytest.importorskip("lenskit", reason="lenskit is not installed; see make bench")
        split = split_ratings(ratings, seed=0, rounds=1, initial_share=1.0)
        drawn = np.random.default_rng(0).normal(size=(ratings.n_users, ratings.n_items))
        scores = drawn.astype(np.float32)
        theirs = ranking.LensKit(split.train, split.test).measure(scores)
        ours = ranking.by_us(scores, split.train, split.test)
        assert 0 < ours < 1
        ranking.check_equal(theirs, ours)

    def test_another_ndcg_is_not_timed(self) -> None:
        with pytest.raises(SystemExit, match="LensKit"):
            ranking.check_equal(0.3, 0.31)


class TestThePlan:
    def test_the_quick_form_is_planned_for_less_than_five_minutes(self) -> None:
        quick = [*peers.plan(long=False).values()]
        quick += [question.seconds for question in speed.plan(long=False).values()]
        assert 60 < sum(quick) < 300

    def test_the_long_form_has_all_of_it(self) -> None:
        assert set(peers.plan(long=True)) == set(peers.QUESTIONS)
        assert set(speed.plan(long=True)) == set(speed.QUESTIONS)
        assert set(speed.plan(long=False)) < set(speed.QUESTIONS)
        assert set(peers.QUICK.rounds) == set(peers.LONG.rounds) == set(peers.SIZE_OF.values())

    @pytest.mark.parametrize("command", [peers, speed])
    def test_a_plan_is_only_said(
        self, command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out, docs = tmp_path / "out", tmp_path / "page.md"
        assert command.main(["--plan", "--out", str(out), "--docs", str(docs)]) == 0
        assert "min on two cores" in capsys.readouterr().out
        assert not list(tmp_path.iterdir())

    def test_one_question(self) -> None:
        assert list(speed.plan(long=False, only="sums")) == ["sums"]
        assert list(peers.plan(long=True, only="reading")) == ["reading"]


class TestThePage:
    @pytest.fixture
    def docs(self, tmp_path: Path) -> Path:
        path = tmp_path / "benchmarks.md"
        parts = ["# Benchmarks", *("\nold\n".join(marks(name)) for name in NAMES), "The end."]
        path.write_text("\n\n".join(parts), encoding="utf-8")
        return path

    @pytest.fixture
    def section(self) -> page.Section:
        made = page.Section("How fast", "who", "times", "target")
        made.add("one", "7", ">= 5", met=True)
        made.add("two", "3", ">= 5", met=False)
        made.add("three", "1", "")
        made.notes.append("In a hurry.")
        return made

    def test_only_what_was_measured_is_replaced(self, docs: Path, section: page.Section) -> None:
        before = docs.read_text(encoding="utf-8")
        page.write_parts(docs, {"ledger": section}, "python -m somewhere")
        text = docs.read_text(encoding="utf-8")
        body = body_of(text, "ledger")
        assert "| one | 7 | >= 5 | met |" in body
        assert "| two | 3 | >= 5 | MISSED |" in body
        assert "| three | 1 |  |  |" in body
        assert "In a hurry." in body
        assert all(body_of(text, name) == "old" for name in NAMES if name != "ledger")
        page.write_parts(docs, {"ledger": section}, "python -m elsewhere")
        again = docs.read_text(encoding="utf-8")
        assert again.count("elsewhere") == again.count("| one |") == 1
        assert before.splitlines()[0] == text.splitlines()[0]
        assert text.endswith("The end.")

    def test_a_table_says_what_was_measured_where(
        self, docs: Path, section: page.Section, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(page, "commit", lambda: "abc1234")
        monkeypatch.setattr(page, "processor", lambda: "Some CPU")
        monkeypatch.setattr(page.os, "getloadavg", lambda: (99.4, 0.0, 0.0))
        page.write_parts(docs, {"round": section}, "python -m somewhere --long")
        first = body_of(docs.read_text(encoding="utf-8"), "round").splitlines()[0]
        assert re.search(
            r"commit abc1234, \d{4}-\d\d-\d\d, by `python -m somewhere --long`", first
        )
        assert re.search(r"on \d+ CPUs? \(Some CPU\), Python 3\.\d+", first)
        assert first.endswith("Other work ran beside it (load 99).")
        monkeypatch.setattr(page.os, "getloadavg", lambda: (1.0, 0.0, 0.0))
        assert "Other work" not in page.measured_by("python -m somewhere")

    def test_a_page_without_a_place_is_refused(self, docs: Path, section: page.Section) -> None:
        with pytest.raises(SystemExit, match="one place for 'nothing'"):
            page.write_parts(docs, {"nothing": section}, "python -m somewhere")
        with pytest.raises(SystemExit, match="--docs"):
            page.write_parts(docs / "not there", {"ledger": section}, "python -m somewhere")

    def test_changes_of_code_are_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        said = {"log": "abc1234 def5678", "status": ""}
        monkeypatch.setattr(page, "_git", lambda *words: said[words[0]])
        assert page.commit() == "abc1234"
        said["status"] = " M src/bgtplanner/errors.py"
        assert page.commit() == "abc1234 with changes"
        said["log"] += " 9876fed"
        assert page.commit() == "abc1234 (def5678 merged with 9876fed) with changes"
        monkeypatch.setattr(page, "_git", lambda *_: None)
        assert page.commit() == "unknown"

    def test_what_was_missed_is_said(
        self, section: page.Section, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert not page.verdict(page.Console(), [section])
        assert "missed: How fast: two" in capsys.readouterr().out

    def test_the_page_has_a_place_for_every_question(self) -> None:
        text = (REPOSITORY / "docs" / "benchmarks.md").read_text(encoding="utf-8")
        for name in NAMES:
            body = body_of(text, name)
            assert "Measured at commit" in body or body.startswith("Not measured yet"), name

    def test_a_peer_that_is_not_installed_is_left_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        there = {"torch", "ray"}
        monkeypatch.setattr(
            rounds.importlib.util, "find_spec", lambda name: name if name in there else None
        )
        assert rounds.missing() == {"pfl": "pfl"}
