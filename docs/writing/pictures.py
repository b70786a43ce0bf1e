"""Draw the pictures of `docs/right-for-me.md`: what `bgtplanner budget` says, for many budgets.

cd docs && python -m writing.pictures
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.ticker import FuncFormatter

from bgtplanner import Budget
from bgtplanner.privacy.accountants import quotes
from bgtplanner.report.pictures import BLUE, VERMILLION, Picture, as_file, shades
from writing.blocks import DOCS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BUDGETS", "main", "noise"]

EPSILONS = (0.5, 1.0, 3.0, 10.0, 20.0)
ROUNDS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)
DELTA = 1e-5
_MARKS = ("o", "s", "^", "D", "v")


def noise(accountant: str, epsilon: float, rounds: int) -> float:
    """The noise multiplier of each of so many equal rounds, as `bgtplanner budget` prints it."""
    mechanism = accountant.partition("/")[0]
    table = quotes(Budget(epsilon, DELTA), rounds, mechanism=mechanism)
    return float(table[accountant]["noise_multiplier"])


def _draw(figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    for epsilon, colour, mark in zip(EPSILONS, shades(BLUE, 5), _MARKS, strict=True):
        values = [noise("gaussian/gdp", epsilon, rounds) for rounds in ROUNDS]
        left.plot(ROUNDS, values, color=colour, marker=mark, ms=3, label=f"epsilon {epsilon:g}")
    left.set_yscale("log")
    left.set_title("Gaussian noise of one round,\nover the sensitivity", fontsize=9)
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left.legend(fontsize=8, loc="upper left")
    for accountant, colour, mark in (
        ("gaussian/gdp", BLUE, "o"),
        ("laplace/zcdp", VERMILLION, "s"),
    ):
        told = [rounds / noise(accountant, 10.0, rounds) ** 2 for rounds in ROUNDS]
        name = accountant.partition("/")[0]
        shares = [100 * value / told[0] for value in told]
        right.plot(ROUNDS, shares, color=colour, marker=mark, ms=3, label=name)
    right.set_ylim(0, 108)
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    right.set_title("what all rounds tell together, at\nepsilon 10, beside one round", fontsize=9)
    right.legend(fontsize=8, loc="center right")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("equal rounds that share the budget")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


BUDGETS = Picture(
    name="budget-noise",
    title="What a budget buys",
    alt="noise of a round by the number of rounds and epsilon; what rounds tell together",
    draw=_draw,
    size=(8.0, 3.3),
)


def main() -> None:
    """Draw them."""
    path = DOCS / "figures" / f"{BUDGETS.name}.svg"
    path.write_text(as_file(BUDGETS), encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
