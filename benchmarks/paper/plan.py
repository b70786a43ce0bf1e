"""What is run: the table, other readings of its baselines, the figures; and by which commands.

Below the runs folder every part has a folder, and in it one for each data set::

    table2/filmtrust/    table2/ml-100k/    adpml-saturating/filmtrust/    figure-budget/ml-1m/
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bgtplanner.experiments.grid import Request
from bgtplanner.experiments.sweeps import Axis, Study, Sweep, figure_named, in_words

DATASETS = {"filmtrust": "FilmTrust", "ml-100k": "ML-100K", "ml-1m": "ML-1M"}
MECHANISMS = {"gaussian": "G", "laplace": "L"}
SEEDS = (0, 1, 2, 3, 4)
# As the authors' code has it: 60:40, and nothing arrives later.
OF_DATASET: Mapping[str, Mapping[str, Any]] = {
    "filmtrust": {"data.train_share": 0.6, "data.initial_share": 1.0}
}
TABLE = "table2"
RUNS = Path("runs/paper")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Policies that are compared with the same settings, and the name of their folder."""

    name: str
    policies: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def asked(self, dataset: str, seeds: Sequence[int]) -> Request:
        return Request(
            datasets=(dataset,),
            mechanisms=tuple(MECHANISMS),
            policies=self.policies,
            seeds=tuple(seeds),
            preset="paper",
            settings={**OF_DATASET.get(dataset, {}), **self.settings},
        )


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One of the paper's figures: a ready-made sweep, or a corner of it."""

    figure: str
    title: str
    corner: tuple[Axis, ...] = ()

    @property
    def name(self) -> str:
        return f"figure-{self.figure}"

    def asked(self, dataset: str, seeds: Sequence[int]) -> Sweep:
        policies, studies = figure_named(self.figure)
        base = Request(
            datasets=(dataset,),
            mechanisms=tuple(MECHANISMS),
            policies=policies,
            seeds=tuple(seeds),
            preset="paper",
            settings=dict(OF_DATASET.get(dataset, {})),
        )
        if not self.corner:
            return Sweep(base=base, studies=studies, figure=self.figure)
        some = tuple(name for name in policies if name in ("bgt", "uniform"))
        base = replace(base, policies=some, mechanisms=("gaussian",))
        return Sweep(base=base, studies=(Study(axes=self.corner),))


GRIDS = (
    Grid(name=TABLE, policies=("bgt", "unlimited", "adpml", "adap", "uniform")),
    Grid(
        name="bgt-authors",
        policies=("bgt",),
        settings={"planning.constants": "authors", "planning.min_rounds": 80},
    ),
    Grid(
        name="adpml-saturating",
        policies=("adpml",),
        settings={"planning.options.shape": "saturating"},
    ),
    Grid(
        name="adpml-normalised",
        policies=("adpml",),
        settings={"planning.options.mode": "normalised"},
    ),
    Grid(
        name="adap-noise-2",
        policies=("adap",),
        settings={"planning.options.noise_multiplier": 2},
    ),
)
FIGURES = (
    Figure(figure="budget", title="Total budget"),
    Figure(figure="min-rounds", title="Least number of rounds"),
    Figure(figure="rounds", title="Number of rounds"),
)
_TEN = Axis(key="privacy.epsilon", values=(10,))
CORNERS = (
    replace(FIGURES[0], corner=(Axis(key="privacy.epsilon", values=(5, 20)),)),
    replace(FIGURES[1], corner=(_TEN, Axis(key="planning.min_rounds", values=(50, 90)))),
    replace(FIGURES[2], corner=(_TEN, Axis(key="federation.rounds", values=(75, 100)))),
)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A row of the table: a policy of one of the grids."""

    label: str
    policy: str
    grid: str = TABLE


METHODS = (
    Method(label="BGTplanner", policy="bgt"),
    Method(label="BGTplanner, as its authors coded it", policy="bgt", grid="bgt-authors"),
    Method(label="DPSGD (`uniform`)", policy="uniform"),
    Method(label="ADPML, geometric, until it is spent", policy="adpml"),
    Method(label="ADPML, saturating, until it is spent", policy="adpml", grid="adpml-saturating"),
    Method(label="ADPML, geometric, over all rounds", policy="adpml", grid="adpml-normalised"),
    Method(label="ADAP, noise 6", policy="adap"),
    Method(label="ADAP, noise 2", policy="adap", grid="adap-noise-2"),
    Method(label="FedSGD, no noise", policy="unlimited"),
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command: a part on one data set."""

    part: Grid | Figure
    dataset: str
    seeds: tuple[int, ...]

    @property
    def asked(self) -> Request | Sweep:
        return self.part.asked(self.dataset, self.seeds)

    def folder(self, runs: Path) -> Path:
        return runs / self.part.name / self.dataset

    def words(self, runs: Path, jobs: int = 1) -> list[str]:
        """What to type after ``bgtplanner``."""
        asked = self.asked
        base = asked.base if isinstance(asked, Sweep) else asked
        words = [asked.command]
        if isinstance(asked, Sweep) and asked.figure is not None:
            words += ["--figure", asked.figure]
        elif isinstance(asked, Sweep):
            for axis in asked.studies[0].axes:
                values = ",".join(map(in_words, axis.values))
                words += ["--vary", f"{axis.key}={values}"]
        words += ["--preset", base.preset, "--dataset", ",".join(base.datasets)]
        words += ["--mechanism", ",".join(base.mechanisms), "--policy", ",".join(base.policies)]
        words += ["--seeds", _range(base.seeds)]
        for key, value in base.settings.items():
            words += ["--set", f"{key}={in_words(value)}"]
        words += ["--jobs", str(jobs)] if jobs > 1 else []
        return [*words, "--out", str(self.folder(runs))]

    def command(self, runs: Path, jobs: int = 1) -> str:
        """All of what to type."""
        return shlex.join(["bgtplanner", *self.words(runs, jobs)])


def _range(seeds: Sequence[int]) -> str:
    """Seeds as ``--seeds`` has them."""
    whole = len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole else ",".join(map(str, seeds))


def jobs_of(
    datasets: Sequence[str], seeds: Sequence[int], *, quick: bool = False
) -> Iterator[Job]:
    """Everything, the table first."""
    for part in (*GRIDS, *(CORNERS if quick else FIGURES)):
        for dataset in datasets:
            yield Job(part=part, dataset=dataset, seeds=tuple(seeds))
