"""A run on a terminal of eighty columns, with and without colour."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from bgtplanner.commands.data import describe
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split, split_ratings
from bgtplanner.report.blocks import bar, sparkline
from bgtplanner.report.terminal import LiveTable, RunProgress, description_view, summary_table
from bgtplanner.runs.config import load_config
from bgtplanner.runs.result import Result

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
BLOCKS = "▁▂▃▄▅▆▇█"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def console(*, width: int = 80, terminal: bool = False, colour: bool | None = None) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=terminal, no_color=colour is False or None
    )


def text_of(target: Console) -> str:
    return cast(io.StringIO, target.file).getvalue()


def summary(**changes: Any) -> dict[str, Any]:
    figures = {
        "preset": "recommended",
        "model": "factorization",
        "rounds_run": 30,
        "rmse_final": 0.19,
        "rmse_best": 0.18,
        "rmse_constant": 0.23,
        "rmse_user_mean": 0.21,
        "rmse_client_alone": 0.2,
        "f1_final": 0.9,
        "f1_best": 0.91,
        "f1_constant": 0.88,
        "f1_user_mean": 0.87,
        "f1_client_alone": 0.86,
        "ndcg_at_10": 0.174,
        "ndcg_at_10_popularity": 0.291,
        "rmse_final_raw": 0.76,
        "rmse_served": 0.2515,
        "scale": [1.0, 5.0],
        "seconds_total": 12.3,
    }
    return figures | changes


def result(**changes: Any) -> Result:
    rounds = [{"round": i, "rmse": 0.3 - i / 300, "f1": 0.8} for i in range(30)]
    return cast(
        Result,
        SimpleNamespace(summary=summary(**changes), rounds=rounds, folder=Path("runs/x")),
    )


def split(name: str = "mine") -> Split:
    ratings = Ratings.from_arrays([0] * 10 + [1] * 10, [*range(10)] * 2, range(20), name=name)
    return split_ratings(ratings, seed=0, rounds=5)


def record(number: int) -> dict[str, Any]:
    return {"round": number, "rmse": 0.25, "f1": 0.5}


def whole_run(target: Console, verbosity: int = 0, total: int = 30, name: str = "mine") -> str:
    view = RunProgress(target, verbosity)
    config = load_config(settings={"federation.rounds": total})
    view.started(config, split(name), 0)
    for number in range(total):
        view.round(record(number), total)
    view.finished(result())
    view.close()
    return text_of(target)


class TestSparkline:
    @pytest.mark.parametrize(
        ("values", "curve"),
        [
            ([], ""),
            ([5.0], "▁"),
            ([2, 2, 2], "▁▁▁"),
            ([0, 1], "▁█"),
            ([3, 2, 1], "█▄▁"),
            (range(8), BLOCKS),
            ([-1e300, 1e-300, 1e300], "▁▄█"),
            ([1, 1 + 1e-16], "▁▁"),
        ],
    )
    def test_curves(self, values: Any, curve: str) -> None:
        assert sparkline(values) == curve

    @pytest.mark.parametrize("width", [0, 1, 2, 3, 7, 40])
    def test_width(self, width: int) -> None:
        curve = sparkline(range(1000), width)
        assert len(curve) == width
        assert curve == "".join(sorted(curve))
        assert curve[:1] in ("", "▁")
        if width > 1:
            assert curve[-1] == "█"

    def test_not_stretched(self) -> None:
        assert len(sparkline(range(3), 40)) == 3

    def test_from_a_generator(self) -> None:
        assert sparkline(value for value in (0, 1)) == "▁█"

    @patient
    @given(
        st.lists(st.floats(-1e9, 1e9), max_size=100),
        st.integers(0, 60),
    )
    def test_any(self, values: list[float], width: int) -> None:
        curve = sparkline(values, width)
        assert len(curve) == min(len(values), width)
        assert set(curve) <= set(BLOCKS)


class TestBar:
    @pytest.mark.parametrize(
        ("share", "drawn"),
        [
            (0, "····"),
            (1, "████"),
            (0.5, "██··"),
            (-3, "····"),
            (7, "████"),
            (float("inf"), "████"),
        ],
    )
    def test_shares(self, share: float, drawn: str) -> None:
        assert bar(share, 4) == drawn

    @patient
    @given(st.floats(0, 1), st.integers(0, 50))
    def test_any(self, share: float, width: int) -> None:
        drawn = bar(share, width)
        assert len(drawn) == width
        assert drawn == "█" * drawn.count("█") + "·" * drawn.count("·")


class TestRun:
    def test_plain_lines_when_piped(self) -> None:
        text = whole_run(console())
        assert "\x1b" not in text
        assert "\r" not in text
        assert max(len(line) for line in text.splitlines()) <= 80
        assert "mine: 2 clients, 10 items, 16 ratings to train on, 4 to test" in text

    def test_a_line_every_quarter(self) -> None:
        lines = re.findall(r"^round (\d+)/30 ", whole_run(console()), re.MULTILINE)
        assert [int(number) for number in lines] == [8, 15, 23, 30]

    def test_the_last_round_has_a_line(self) -> None:
        lines = re.findall(r"^round (\d+)/", whole_run(console(), total=23), re.MULTILINE)
        assert lines[-1] == "23"

    def test_a_line_every_round(self) -> None:
        lines = re.findall(r"^round (\d+)/30 ", whole_run(console(), 1), re.MULTILINE)
        assert [int(number) for number in lines] == list(range(1, 31))

    def test_quiet(self) -> None:
        assert whole_run(console(), -1) == ""
        assert whole_run(console(terminal=True), -1) == ""

    def test_references_are_beside_the_result(self) -> None:
        text = whole_run(console(), 1)
        for words in (
            "predictor                   RMSE stars NDCG@10 recall@10 coverage overlap",
            "one constant for all      0.2300  0.92       –         –        –       –",
            "each user's own mean      0.2100  0.84       –         –        –       –",
            "each client alone         0.2000  0.80       –         –        –       –",
            "popularity, not private        –     –   0.291         –        –       –",
            "factorization, last round 0.1900  0.76   0.174         –        –       –",
            "RMSE 0.1900 is 0.76 stars, on the scale of the data, 1 to 5. Over all rounds,",
            "people were served with a mean RMSE of 0.2515.",
            "error is 5.0 % lower than that of a client alone (0.76",
            "rounds in 12.3 s",
            "Guarantee: none",
        ):
            assert words in text
        assert "RMSE by round  █" in text
        assert max(map(len, text.splitlines())) <= 80

    def test_on_one_screen_only_what_it_is_judged_by(self) -> None:
        text = whole_run(console())
        for words in (
            "predictor                    RMSE  stars  NDCG@10",
            "each client alone          0.2000   0.80        –",
            "popularity, not private         –      –    0.291",
            "factorization, as served   0.2515   1.01        –",
            "factorization, last round  0.1900   0.76    0.174",
            "Learning together: the error is 5.0 % lower than that of a client alone",
            "Guarantee: none",
        ):
            assert words in text
        for detail in ("constant", "recall@10", "by round", "scale of the data"):
            assert detail not in text
        assert len(text.splitlines()) <= 20, "with the lines of the command, 24"
        assert max(map(len, text.splitlines())) <= 80

    def test_better_off(self) -> None:
        target = console()
        RunProgress(target).finished(result(gains={"better": 0.743}))
        assert "Better off: 74 % of the clients." in " ".join(text_of(target).split())

    @pytest.mark.parametrize("verbosity", [0, 1])
    def test_nothing_learned_comes_first(self, verbosity: int) -> None:
        target = console()
        changes = {"learned": False, "epsilon": 0.05, "trust": "local", "planner_note": "gave up"}
        RunProgress(target, verbosity).finished(result(**changes))
        text = " ".join(text_of(target).split())
        assert "Nothing was learned from others. What helps: a larger --epsilon than 0.05" in text
        assert "more clients or --trust secagg, which needs far less noise." in text
        assert "Planner gave up." in text
        assert "Learning together" not in text

    @pytest.mark.parametrize(
        ("together", "alone", "words"),
        [
            (0.3, 0.2, "error is 50.0 % higher than that of a client alone"),
            (0.2, 0.2, "error is 0.0 % lower than that of a client alone"),
            (0.1, 0.0, "error is higher than that of a client alone"),
            (0.0, 0.0, "error is lower than that of a client alone"),
        ],
    )
    def test_gain(self, together: float, alone: float, words: str) -> None:
        target = console()
        RunProgress(target).finished(result(rmse_final=together, rmse_client_alone=alone))
        assert words in text_of(target)

    def test_what_people_were_served_leads(self) -> None:
        target = console()
        served = {"objective": "served", "rmse_served": 0.19, "ndcg_at_10_served": 0.15}
        more = {"rmse_client_alone_served": 0.2, "rmse_final": 0.18, "rmse_arriving": 0.25}
        reached = {"target": 0.2, "target_reached": True, "target_round": 11, "budget_left": 0.625}
        RunProgress(target, 1).finished(result(**served, **more, **reached))
        text = text_of(target)
        for words in (
            "each client alone, as served 0.2000  0.80       –         –        –       –",
            "factorization, as served     0.1900  0.76   0.150         –        –       –",
            "factorization, last round    0.1800  0.72   0.174         –        –       –",
            "What counts is the error that people were served with, over all rounds. RMSE",
            "0.1900 is 0.76 stars, on the scale of the data, 1 to 5.",
            "before they were learned, with RMSE 0.2500.",
            "Target RMSE 0.2: reached in round 12; 62 % of the budget was kept.",
            "Learning together: over all rounds, the error was 5.0 % lower than that of a",
            "client alone (0.76 instead of 0.80 stars); lists had NDCG@10 0.150 (what is",
        ):
            assert words in text, words
        assert text.index("as served 0") < text.index("factorization, last round")
        assert max(map(len, text.splitlines())) <= 80

    def test_compiling_is_said_once(self) -> None:
        target = console()
        view = RunProgress(target)
        for _ in range(3):
            view.compiling()
        assert text_of(target) == "compiling: the first round takes the longest\n"

    def test_compiling_is_said_once_by_two_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        target = console()
        view, said = RunProgress(target), []

        def say(*parts: str) -> None:
            said.append(parts)
            if len(said) == 1:
                view.compiling()  # the other one comes while this one prints

        monkeypatch.setattr(view, "_say", say)
        view.compiling()
        assert len(said) == 1

    def test_going_on(self) -> None:
        target = console()
        view = RunProgress(target)
        view.started(load_config(settings={"federation.rounds": 30}), split(), 12)
        for number in range(12, 30):
            view.round(record(number), 30)
        text = text_of(target)
        assert "continuing after round 12" in text
        assert "round 15/30" in text

    def test_what_the_preset_changed_is_said_first(self) -> None:
        said = []
        without = {"privacy.mechanism": "none"}
        for chosen in ({}, without, without | {"model.name": "factorization"}):
            target = console()
            RunProgress(target).started(load_config(settings=chosen), split(), 0)
            said.append(" ".join(text_of(target).split()))
        assert "instead of" not in said[0] + said[1]
        assert "since without privacy there is no noise to withstand: model.name" in said[2]

    def test_lists_of_some_of_many_users(self) -> None:
        target = console()
        RunProgress(target, 1).finished(result(users=138_493, users_ranked=10_000))
        text = " ".join(text_of(target).split())
        assert "The lists are those of 10,000 of 138,493 users, drawn at random." in text

    def test_live_on_a_terminal(self) -> None:
        target = console(terminal=True)
        text = whole_run(target)
        assert "\x1b[" in text
        assert "━" in text
        assert "30/30" in text
        assert "\nround 3/30" not in text

    def test_live_table(self) -> None:
        target = console(terminal=True)
        table = LiveTable(target, 20, 0)
        why = {"note": "drawn by score", "predicted": [0.0, 0.25], "price": [0.0, 0.5]}
        planned = {"left": [0.5, 0.25], "charge": 0.04, "level": 1, "why": why}
        for number in range(8):
            table.round(record(number) | planned | {"paid": 300, "clients": 280, "late": 12})
        table.close()
        plain = console()
        plain.print(table.table())
        lines = [line.rstrip() for line in text_of(plain).splitlines()]
        assert [line.split()[0] for line in lines] == [
            *("RMSE", "left,", "left,", "this", "clients")
        ]
        assert "▁▁▁▁▁▁▁▁" in lines[0]
        assert "50%" in lines[1]
        assert "████" in lines[1]
        assert "level 1, drawn by score, predicts 0.25, price 0.5" in lines[3]
        assert "of 300 that paid, 12 too late" in lines[4]
        assert max(map(len, lines)) <= 80

    def test_live_table_without_a_budget(self) -> None:
        target = console(terminal=True)
        table = LiveTable(target, 20, 0)
        table.round(record(0))
        table.close()
        plain = console()
        plain.print(table.table())
        assert [line.split()[0] for line in text_of(plain).splitlines()] == ["RMSE"]

    def test_what_matters_comes_last(self) -> None:
        target = console()
        private = {
            "mechanism": "gaussian", "trust": "secagg", "unit": "client", "epsilon": 10.0,
            "accounting": "gaussian/gdp", "delta": 1e-5, "epsilon_spent_max": 9.5,
            "rounds_paid": 4, "not_accounted": [],
        }  # fmt: skip
        done = result(**private)
        for entry in done.rounds:
            entry["left"] = [1 - entry["round"] / 30]
        RunProgress(target, 1).finished(done)
        text = " ".join(text_of(target).split())
        places = [
            text.index(words)
            for words in ("RMSE by round", "budget left █", "one constant for all",
                          "Learning together:", "Guarantee: (10, 1e-05)", "Spent at most 9.5")
        ]  # fmt: skip
        assert places == sorted(places)

    def test_closed_twice_and_before_it_began(self) -> None:
        view = RunProgress(console(terminal=True))
        view.close()
        view.started(load_config(), split(), 0)
        view.close()
        view.close()

    def test_no_colour(self, monkeypatch: pytest.MonkeyPatch) -> None:
        coloured = re.compile(r"\x1b\[[0-9;]*3[0-9]")  # a colour, not a move of the cursor
        assert coloured.search(whole_run(console(terminal=True)))
        monkeypatch.setenv("NO_COLOR", "1")
        assert not coloured.search(whole_run(Console(file=io.StringIO(), force_terminal=True)))

    @pytest.mark.parametrize("name", ["a[bold]b", "a[/bold]b", "[/]", "x\\", ":smile:", "[red"])
    def test_names_are_not_markup(self, name: str) -> None:
        assert whole_run(console(), name=name).startswith(f"{name}: 2 clients")

    @pytest.mark.parametrize("width", [1, 2, 10, 39, 80, 500])
    def test_any_width(self, width: int) -> None:
        for text in (
            whole_run(console(width=width)),
            whole_run(console(width=width), name="x" * 200),
        ):
            assert max(len(line) for line in text.splitlines()) <= width


class TestSummaryTable:
    @pytest.mark.parametrize("preset", ["recommended", "paper"])
    def test_fits(self, preset: str) -> None:
        target = console()
        target.print(summary_table(summary(preset=preset)))
        text = text_of(target)
        assert max(len(line) for line in text.splitlines()) <= 80
        assert ("best round on the test set, as in the paper" in text) == (preset == "paper")
        assert ("0.1800" in text) == (preset == "paper")


class TestDescription:
    def test_demo(self) -> None:
        target = console()
        description_view(target, describe(load_config()))
        text = text_of(target)
        assert max(len(line) for line in text.splitlines()) <= 80
        assert "\x1b" not in text
        assert "15,000 ratings by 300 users (0 without any) on 300 items" in text
        assert "density            16.67 %" in text
        assert re.search(r"^ +4  █{20}  4,434$", text, re.MULTILINE)
        assert "Predicting a constant has RMSE 0.2210" in text

    @pytest.mark.parametrize("name", ["a[/bold]b", ":smile: [bold]", "x\\"])
    def test_names_are_not_markup(self, name: str) -> None:
        target = console()
        facts = describe(load_config()) | {"dataset": name, "histogram": {}}
        description_view(target, facts)
        assert text_of(target).startswith(f"{name}: 15,000 ratings")
