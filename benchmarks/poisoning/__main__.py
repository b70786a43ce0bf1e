"""Measure what hostile clients can do, and write it into docs/concepts/poisoning.md.

    python -m benchmarks.poisoning                       both data sets, two seeds; some minutes
    python -m benchmarks.poisoning --quick               made-up ratings, one seed, into build

Where the data sets are not there, made-up ratings of a like size stand in and the page says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.paper.page import put
from benchmarks.paper.table import short, signed, table
from benchmarks.poisoning.attacks import ATTACKS, TARGETED
from benchmarks.poisoning.world import Played, World
from bgtplanner.errors import DataError
from bgtplanner.federation.outliers import FALSE_ALARM
from bgtplanner.runs.folder import write_whole

PART = "poisoning"
SHARES = (0.001, 0.01, 0.05)
DISCOUNTS = (1, 9)
NAMES = {"ml-100k": "ML-100K", "filmtrust": "FilmTrust", "synthetic": "made-up ratings"}
GUARANTEES = {"local": "local, PrivUnit", "secagg": "secagg, Gaussian noise"}
SMALL: dict[str, Any] = {
    "data.dataset": "synthetic",
    "synthetic.clients": 300,
    "synthetic.items": 400,
    "synthetic.ratings_per_client": 40,
}


class Cell(NamedTuple):
    """Median over targets and seeds."""

    rmse: float
    rank: float
    rejected: float


def cell(played: Sequence[tuple[Played, Sequence[int]]]) -> Cell:
    """One figure for several runs, each with the items that it is about."""
    ranks = [one.ranks[item] for one, items in played for item in items]
    rmse = np.mean([one.rmse for one, _ in played])
    return Cell(float(rmse), float(np.median(ranks)), np.mean([one.rejected for one, _ in played]))


def runs(
    worlds: Sequence[World], name: str, share: float, **how: Any
) -> list[tuple[Played, Sequence[int]]]:
    """An attack in all worlds; on one target at a time, where it has one."""
    found: list[tuple[Played, Sequence[int]]] = []
    for world in worlds:
        number = world.colluders(share)
        if name in TARGETED:
            for target in world.targets:
                played = world.play(ATTACKS[name], number=number, target=int(target), **how)
                found.append((played, [int(target)]))
        else:
            played = world.play(ATTACKS[name], number=number, **how)
            found.append((played, [int(target) for target in world.targets]))
    return found


def honest(worlds: Sequence[World], **how: Any) -> Cell:
    """Nobody is hostile."""
    return cell([(world.play(**how), [int(one) for one in world.targets]) for world in worlds])


def attacks_table(worlds: Sequence[World]) -> list[list[str]]:
    """Rank of the target and RMSE, without and with screening, by share of colluders."""
    local = worlds[0].trust == "local"
    before = honest(worlds)
    head = ["attack", *(f"rank, {100 * share:g} %" for share in SHARES)]
    head += [f"RMSE, {100 * share:g} %" for share in SHARES]
    rows = [head, ["*nobody*"] + 3 * [f"{before.rank:.0f}"] + 3 * [short(before.rmse)]]
    for name in ATTACKS:
        if not local and name in ("one-hot", "imitated noise"):
            continue  # a sum has no noise to hide in: they are the false rating
        ranks, errors = [], []
        for share in SHARES:
            without = cell(runs(worlds, name, share, screens=False))
            rank, error = f"{without.rank:.0f}", short(without.rmse)
            if local:
                screened = cell(runs(worlds, name, share))
                rank += f" / {screened.rank:.0f}"
                error += f" / {short(screened.rmse)}"
                if screened.rejected:
                    rank += f" ({100 * screened.rejected:.0f} % out)"
            ranks.append(rank if name in TARGETED or local else "")
            errors.append(error)
        rows.append([name, *ranks, *errors])
    return rows


def prices(worlds: Sequence[World], label: str) -> Iterator[list[str]]:
    """What discounting a few clients' evidence costs, and what it stops."""
    before = honest(worlds)
    for discounts in (0, *DISCOUNTS):
        now = honest(worlds, discounts=discounts)
        ranks = [
            cell(runs(worlds, "imitated noise", share, discounts=discounts)).rank
            for share in SHARES
        ]
        cost = signed(now.rmse - before.rmse, 5) if discounts else short(before.rmse)
        yield [label, str(discounts), cost, f"{now.rank:.0f}", *(f"{rank:.0f}" for rank in ranks)]


def page_part(datasets: Sequence[str], seeds: Sequence[int], settings: dict[str, Any]) -> str:
    """All tables."""
    parts = [
        f"Preset `recommended`, epsilon 10, mean RMSE and median rank over {len(seeds)} seeds and "
        "3 obscure items each (2 to 8 ratings). Rank 1 is the item with the highest mean "
        "predicted rating. Colluders: at least one, so 0.1 % is a single client. Under local "
        "trust: without / with screening, and which share of hostile uploads it kept out; honest "
        f"uploads are kept out with a probability of at most {FALSE_ALARM:g}."
    ]
    costs = [
        ["", "`hostile_clients`", "RMSE", "rank, nobody"]
        + [f"rank, {100 * share:g} %" for share in SHARES]
    ]
    for dataset in datasets:
        for trust, guarantee in GUARANTEES.items():
            given = {"data.dataset": dataset, **settings}
            worlds = [World(trust, seed, given) for seed in seeds]
            size = f"{worlds[0].n_clients:,} clients, {worlds[0].coordinates // 2:,} items"
            parts.append(f"**{NAMES[dataset]}, {guarantee}** ({size})")
            parts.append(table(attacks_table(worlds)))
            costs += prices(worlds, f"{NAMES[dataset]}, {trust}")
            print(f"{dataset} {trust}: done", flush=True)
            jax.clear_caches()
    parts.append(
        "**What discounting costs and stops** (`server.hostile_clients`; the attack is the one "
        "that passes the screen and lifts the target most: imitated noise under local trust, a "
        "false rating under `secagg`)"
    )
    return "\n\n".join([*parts, table(costs)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.poisoning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="made-up ratings, into build")
    parser.add_argument("--seeds", type=int, default=2, help="how many; default %(default)s")
    parser.add_argument("--data-dir", type=Path, help="where the data sets are")
    parser.add_argument("--docs", type=Path, help="the page; docs/concepts/poisoning.md")
    given = parser.parse_args(arguments)
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds}: at least 1")
    docs = given.docs or Path("docs/concepts/poisoning.md")
    settings = {} if given.data_dir is None else {"data.data_dir": str(given.data_dir)}
    if given.quick:
        body = page_part(["synthetic"], [0], SMALL)
        docs = given.docs or Path("build/poisoning.md")
    else:
        seeds = list(range(given.seeds))
        try:
            body = page_part(["ml-100k", "filmtrust"], seeds, settings)
        except DataError as error:
            print(f"made-up ratings instead: {error}", file=sys.stderr)
            body = page_part(["synthetic"], seeds, SMALL)
    text = docs.read_text(encoding="utf-8") if docs.exists() else _blank()
    docs.parent.mkdir(parents=True, exist_ok=True)
    write_whole(docs, put(text, PART, body))
    print(docs)
    return 0


def _blank() -> str:
    return f"# Poisoning\n\n<!-- begin: {PART} -->\n\n<!-- end: {PART} -->\n"


if __name__ == "__main__":
    sys.exit(main())
