"""What is run: every reading of the table's methods, the figures; and by which commands.

Below the runs folder every part has a folder, and in it one for each data set::

    bgt/filmtrust/    bgt/ml-100k/    adpml-geometric-literal/filmtrust/    figure-budget/ml-100k/
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bgtplanner.runs.study import Study, in_words

DATASETS = {"filmtrust": "FilmTrust", "ml-100k": "ML-100K", "ml-1m-merged": "ML-1M"}
"""Those of the table, by name; the last as the authors' code has it, one user for each client."""
TEN_USERS = "ml-1m"  # the other reading of the last: a client's ten users stay apart
MECHANISMS = {"gaussian": "G", "laplace": "L"}
SEEDS = (0, 1, 2, 3, 4)
RUNS = Path("runs/paper")


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """A row of the table: one way to read one of its methods, and the name of its folder.

    Attributes:
        name: Of the folder.
        method: As the paper calls it; empty for what it does not have.
        label: Of the row.
        policy: That plays it.
        settings: What is set otherwise than by the preset.
        mechanisms: With which it is run.
        compared: Whether this is the reading that is laid beside print, as the sources have it.
    """

    name: str
    method: str
    label: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    mechanisms: tuple[str, ...] = tuple(MECHANISMS)
    compared: bool = False

    def asked(self, dataset: str, seeds: Sequence[int]) -> Study:
        return Study(
            datasets=(dataset,),
            mechanisms=self.mechanisms,
            policies=(self.policy,),
            seeds=tuple(seeds),
            preset="paper",
            settings=dict(self.settings),
        )


def _bgt(name: str, label: str, compared: bool = False, **planning: Any) -> Reading:
    settings = {f"planning.{key}": value for key, value in planning.items()}
    return Reading(
        name=name, method="BGTplanner", label=label, policy="bgt", settings=settings,
        compared=compared,
    )  # fmt: skip


def _adpml(shape: str, mode: str) -> Reading:
    lasts = "until it is spent" if mode == "literal" else "over all rounds"
    return Reading(
        name=f"adpml-{shape}-{mode}",
        method="ADPML",
        label=f"ADPML, {shape}, {lasts}",
        policy="adpml",
        settings={"planning.options.shape": shape, "planning.options.mode": mode},
        compared=(shape, mode) == ("saturating", "literal"),
    )


def _dpsgd(name: str, label: str, compared: bool = False, **privacy: Any) -> Reading:
    return Reading(
        name=name,
        method="DPSGD",
        label=label,
        policy="uniform",
        settings={f"privacy.{key}": value for key, value in privacy.items()},
        mechanisms=("gaussian",) if privacy else tuple(MECHANISMS),
        compared=compared,
    )


def _adap(noise: int) -> Reading:
    return Reading(
        name=f"adap-noise-{noise}",
        method="ADAP",
        label=f"ADAP, noise {noise} over the clip",
        policy="adap",
        settings={"planning.options.noise_multiplier": noise},
        compared=noise == 2,
    )


# Basic composition gives each of 100 rounds epsilon 0.1. The classic bound then asks for noise of
# sqrt(2 ln(1.25 / delta)) / 0.1 times the sensitivity. Accounted for as the authors do, with noise
# of 1 / sqrt(epsilon / 100), that much noise is an epsilon of:
BASIC_EPSILON = round(100 * (0.1 / math.sqrt(2 * math.log(1.25 / 1e-5))) ** 2, 6)

READINGS = (
    Reading(
        name="bgt-authors",
        method="BGTplanner",
        label="BGTplanner, as its authors coded it",
        policy="benchmarks.paper.as_coded:AsCoded",
        settings={"planning.options.min_rounds": 80},
        compared=True,
    ),
    _bgt("bgt", "BGTplanner, as printed"),
    _bgt("bgt-repaired", "BGTplanner, its formulas repaired", constants="repaired"),
    _bgt("bgt-own", "BGTplanner, ours", constants="own", min_rounds=70),
    _dpsgd(
        "dpsgd-moments", "DPSGD, moments accountant", accounting="gaussian/rdp", delta=1e-5,
        compared=True,
    ),
    _dpsgd("dpsgd", "DPSGD, as BGTplanner is accounted for"),
    _dpsgd("dpsgd-basic", "DPSGD, basic composition", epsilon=BASIC_EPSILON),
    _adpml("saturating", "literal"),
    _adpml("geometric", "literal"),
    _adpml("saturating", "normalised"),
    _adpml("geometric", "normalised"),
    _adap(2),
    _adap(6),
    Reading(
        name="fedsgd", method="FedSGD", label="FedSGD, no noise", policy="unlimited",
        mechanisms=("gaussian",), compared=True,
    ),
    Reading(
        name="clip", method="", label="*even charges, clip 0.001 instead of 0.1*",
        policy="uniform", settings={"privacy.clip": 0.001},
    ),
)  # fmt: skip
COMPARED = {reading.method: reading for reading in READINGS if reading.compared}
"""The reading of each of the table's methods that is laid beside print."""
AUTHORS_EVEN = next(reading for reading in READINGS if reading.name == "dpsgd")


Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One of the paper's sensitivity studies, or a corner of it. The grids are ours.

    Attributes:
        figure: Its name.
        grids: The settings that are varied; of each grid, the last that has several values is
            the horizontal axis.
        policies: Those that play.
        mechanisms: With which they are run.
    """

    figure: str
    title: str
    grids: tuple[Grid, ...]
    policies: tuple[str, ...] = ("bgt",)
    mechanisms: tuple[str, ...] = tuple(MECHANISMS)

    @property
    def name(self) -> str:
        return f"figure-{self.figure}"

    def asked(self, dataset: str, seeds: Sequence[int]) -> Study:
        return Study(
            datasets=(dataset,),
            mechanisms=self.mechanisms,
            policies=self.policies,
            seeds=tuple(seeds),
            preset="paper",
            variations=self.grids,
        )


_BUDGETS = {"privacy.epsilon": (5, 10, 15, 20)}


def _rounds(rounds: int) -> Grid:
    """With so many rounds; at least 70 % of them are played, as in the preset."""
    return {"federation.rounds": (rounds,), "planning.min_rounds": (round(0.7 * rounds),)}


FIGURES: tuple[Figure, ...] = (
    Figure(
        figure="budget",
        title="Total budget",
        grids=(_BUDGETS,),
        policies=("bgt", "adpml", "adap", "uniform"),
    ),
    Figure(
        figure="min-rounds",
        title="Least number of rounds",
        grids=(_BUDGETS | {"planning.min_rounds": (50, 60, 70, 80, 90)},),
    ),
    Figure(
        figure="rounds",
        title="Number of rounds",
        grids=tuple({**_BUDGETS, **_rounds(rounds)} for rounds in (50, 75, 100, 150)),
    ),
    Figure(
        figure="small",
        title="Appendix F: the small constants",
        grids=tuple(
            {key: values}
            for key, values in {
                "planning.levels": (3, 5, 7, 9),
                "planning.options.initial_rounds": (3, 5, 7),
                "planning.context_size": (3, 5, 10),
                "planning.options.gamma": (0.7, 7, 70, 700),
                "planning.options.length_scale": (0.1, 0.2, 0.4, 0.8),
                "planning.options.forgetting": (0.0001, 0.001, 0.01, 0.1),
            }.items()
        ),
    ),
)
_TEN = {"privacy.epsilon": (10,)}
CORNERS: tuple[Figure, ...] = tuple(
    replace(figure, grids=grids, mechanisms=("gaussian",), policies=policies)
    for figure, grids, policies in (
        (FIGURES[0], ({"privacy.epsilon": (5, 20)},), ("bgt", "uniform")),
        (FIGURES[1], (_TEN | {"planning.min_rounds": (50, 90)},), ("bgt",)),
        (FIGURES[2], ({**_TEN, **_rounds(75)}, {**_TEN, **_rounds(100)}), ("bgt",)),
    )
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command: a part on one data set."""

    part: Reading | Figure
    dataset: str
    seeds: tuple[int, ...]

    @property
    def asked(self) -> Study:
        return self.part.asked(self.dataset, self.seeds)

    def folder(self, runs: Path) -> Path:
        return runs / self.part.name / self.dataset

    def words(self, runs: Path, jobs: int = 1) -> list[str]:
        """What to type after ``bgtplanner``."""
        asked = self.asked
        words = [asked.command]
        for grid in asked.variations:
            for key, values in grid.items():
                words += ["--vary", f"{key}={','.join(map(in_words, values))}"]
        words += ["--preset", asked.preset, "--dataset", ",".join(asked.datasets)]
        words += ["--mechanism", ",".join(asked.mechanisms), "--policy", ",".join(asked.policies)]
        words += ["--seeds", _range(asked.seeds)]
        for key, value in asked.settings.items():
            words += ["--set", f"{key}={in_words(value)}"]
        words += ["--jobs", str(jobs)] if jobs > 1 else []
        return [*words, "--out", str(self.folder(runs))]

    def plain_words(self) -> str:
        """The same for a page: as short as it gets, and without a folder."""
        return shlex.join(self.words(RUNS)[:-2])

    def command(self, runs: Path, jobs: int = 1) -> str:
        """All of what to type. Several grids make one study here only."""
        if len(self.asked.variations) > 1:
            return f"python -m benchmarks.paper --run --datasets {self.dataset}"
        return shlex.join(["bgtplanner", *self.words(runs, jobs)])


def _range(seeds: Sequence[int]) -> str:
    """Seeds as ``--seeds`` has them."""
    whole = len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole else ",".join(map(str, seeds))


def jobs_of(
    datasets: Sequence[str], seeds: Sequence[int], *, quick: bool = False
) -> Iterator[Job]:
    """Everything, the table first; of the other reading of ML-1M the table's methods only."""
    for part in (*READINGS, *(CORNERS if quick else FIGURES)):
        for dataset in (*datasets, *([TEN_USERS] if "ml-1m-merged" in datasets else [])):
            compared = isinstance(part, Reading) and part.compared
            if dataset != TEN_USERS or compared:
                yield Job(part=part, dataset=dataset, seeds=tuple(seeds))
