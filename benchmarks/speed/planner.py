"""What the planner costs a round, and how that grows with clients and rounds."""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.child import quartiles, stay_on, stopwatch

if TYPE_CHECKING:
    from bgtplanner.federation.simulation import Simulation
    from bgtplanner.planning.policy import LedgerPolicy

CLIENTS, ROUNDS = 1_000_000, 1000
SOME, ITEMS, PAIRS, ARRIVING = 943, 1682, 80_000, 800  # about MovieLens 100K
LEVELS, WIDTH = 5, 5  # A, and the length of a context
EARLY, LATE, AROUND = 1000, 2000, 50  # rounds that are compared, and how many around each
TARGET_GROWTH = 4.5
TURNS, ROUNDS_IN_A_TURN = 9, 10
TARGET_PLANNER, TARGET_CONTEXT = 0.05, 0.50
TARGET_MILLISECONDS = 0.3  # or less: then no share of a round matters
MODELS = ("factorization", "fedgnn")


def pairs(clients: int, items: int, number: int, seed: int = 0) -> NDArray[np.int64]:
    """Distinct pairs in random order, `[2, about number]`; few busy clients and items."""
    generator = np.random.default_rng(seed)
    drawn = 2 * number
    client = (clients * generator.random(drawn) ** 1.7).astype(np.int64)
    item = (items * generator.random(drawn) ** 4).astype(np.int64)
    taste = (8 * generator.random(clients) ** 2).astype(np.int64)  # groups, large and small
    shift = np.where(generator.random(drawn) < 0.7, taste[client] * items // 8, 0)
    cells = np.unique(client * items + (item + shift) % items)
    cells = generator.permutation(cells)[:number]
    return np.stack(np.divmod(cells, items))


def play(policy: LedgerPolicy, rounds: int) -> list[float]:
    """Seconds for ask and tell, round by round, with made-up contexts and rewards."""
    generator = np.random.default_rng(0)
    contexts = generator.standard_normal((rounds, WIDTH))
    rewards = 0.5 + 0.1 * generator.standard_normal(rounds)
    spent = []
    for context, reward in zip(contexts, rewards, strict=True):
        begun = time.perf_counter()
        plan = policy.ask(context)
        if plan is None:
            break
        policy.tell(plan, reward=float(reward))
        spent.append(time.perf_counter() - begun)
    return spent


def many_clients() -> dict[str, Any]:
    """A thousand rounds for a million clients in three classes, and the same for three clients."""
    from bgtplanner.planning.bgt import BGTPlanner
    from bgtplanner.privacy.budget import Budget, Budgets

    classes = tuple(Budget(epsilon, 1e-5) for epsilon in (5.0, 10.0, 20.0))
    found: dict[str, Any] = {"clients": CLIENTS, "classes": len(classes)}
    for name, clients in (("many", CLIENTS), ("few", 3)):
        drawn = np.random.default_rng(1).integers(0, len(classes), clients, np.int32)
        drawn[: len(classes)] = np.arange(len(classes))
        policy = BGTPlanner(Budgets(classes, drawn), rounds=ROUNDS, levels=LEVELS)
        spent = play(policy, ROUNDS)
        found[name] = {"seconds": sum(spent), "rounds": len(spent), "median": median(spent)}
    return found


def growth() -> dict[str, Any]:
    """Time of a round around the 2,000th observation over that around the 1,000th.

    Every round is observed (no level skips it) and kept. Rounds in which scales are fitted or room
    is made, at powers of two, lie outside the stretches.
    """
    from bgtplanner.planning.bgt import BGTPlanner
    from bgtplanner.privacy.budget import Budget

    options = {"fit": True, "length_scale": 4.0, "noise": 3.0, "window": 4096}
    # Dear levels would spend the budget before the late stretch begins.
    policy = BGTPlanner(
        Budget(10.0, 1e-5), 1, rounds=4000, min_rounds=3000, skip=False, predictor=options
    )
    spent = play(policy, LATE + AROUND // 2)
    seen = len(policy.process)
    if seen != LATE + AROUND // 2:
        raise SystemExit(f"{seen} observations after {len(spent)} rounds: nothing to compare")
    early = spent[EARLY - AROUND + 20 : EARLY + 20]
    late = spent[LATE - AROUND // 2 : LATE + AROUND // 2]
    return {
        "early_seconds": early,
        "late_seconds": late,
        "ratio": median(late) / median(early),
        "target_ratio": TARGET_GROWTH,
    }


def training(model: str) -> Simulation:
    """Rounds at the size of ML-100K with the recommended server; nothing is evaluated."""
    from bgtplanner.data.split import Split, split_ratings
    from bgtplanner.data.synthetic import synthetic_ratings
    from bgtplanner.federation.rounds import Federation
    from bgtplanner.federation.simulation import Simulation
    from bgtplanner.models.factorization import Factorization
    from bgtplanner.models.fedgnn import FedGNN
    from bgtplanner.models.optimizers import Server

    ratings = synthetic_ratings(clients=943, items=1682, ratings_per_client=106)
    split = split_ratings(ratings, seed=0, rounds=1, initial_share=1.0)
    # Nothing is held out: the compiler then leaves the evaluation out of the round.
    split = Split(train=split.train, test=split.test.take(np.arange(0)), arrival=split.arrival)
    chosen = FedGNN() if model == "fedgnn" else Factorization()
    return Simulation(Federation(model=chosen, server=Server()), split, seed=0, device="cpu")


def shares(threads: int) -> dict[str, Any]:
    """The planner and its context as shares of a training round, all three by turns."""
    stay_on(threads)
    from bgtplanner.paper.usage import UsageContext
    from bgtplanner.planning.bgt import BGTPlanner
    from bgtplanner.privacy.budget import Budget

    simulations = {model: training(model) for model in MODELS}
    for each in simulations.values():  # compile, and touch all memory once
        each.step()
        each.step()
    client, item = pairs(SOME, ITEMS, PAIRS)
    here, context = len(client) // 2, UsageContext()
    spent: dict[str, list[float]] = {name: [] for name in (*MODELS, "planner", "context")}
    for turn in range(TURNS):
        for model, each in simulations.items():
            with stopwatch() as seconds:
                for _ in range(ROUNDS_IN_A_TURN):
                    each.step()
            spent[model].append(seconds[0] / ROUNDS_IN_A_TURN)
        policy = BGTPlanner(Budget(10.0, 1e-5), SOME, rounds=100, levels=LEVELS, seed=turn)
        whole = play(policy, 100)
        spent["planner"].append(sum(whole) / len(whole))
        asked = []
        for _ in range(ROUNDS_IN_A_TURN):
            here = min(here + ARRIVING // 2, len(client))  # half of them arrive in 100 rounds
            with stopwatch() as seconds:
                context.of_pairs(client[:here], item[:here], clients=SOME, items=ITEMS)
            asked.append(seconds[0])
        spent["context"].append(sum(asked) / len(asked))
    found: dict[str, Any] = {"threads": threads, "seconds": spent, "shares": {}}
    for model in MODELS:
        for part, target in (("planner", TARGET_PLANNER), ("context", TARGET_CONTEXT)):
            ratios = [a / b for a, b in zip(spent[part], spent[model], strict=True)]
            low, middle, high = quartiles(ratios)
            found["shares"][f"{part}, {model}"] = {
                "ratio": middle,
                "ratio_quartiles": [low, high],
                "target_ratio": target,
            }
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("clients", "growth", "shares"))
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    if given.part == "clients":
        print(json.dumps(many_clients()))
    elif given.part == "growth":
        print(json.dumps(growth()))
    else:
        print(json.dumps(shares(given.threads)))
