"""Run folders and grids without training: real plans and charges, made-up errors.

The policies, the ledger's rule and the layout of the folder are the package's own, so that what
reads such folders (the report, its tests and its benchmark) meets what a run would have left.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bgtplanner.data.ratings import Ratings
from bgtplanner.planning.plan import Plan
from bgtplanner.planning.policy import LedgerPolicy
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.assembly import accountant_of, budgets_of, policy_of
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.study import Study
from bgtplanner.runs.summary import classes_of, facts_of, most_spent, spending_of, summarise

CLIENTS, ITEMS, RATINGS = 300, 300, 15_000
BESIDE = {
    "rmse_constant": 0.221,
    "rmse_user_mean": 0.208,
    "rmse_client_alone": 0.206,
    "f1_constant": 0.893,
    "f1_user_mean": 0.894,
    "f1_client_alone": 0.895,
}


def made_facts(config: Config) -> dict[str, Any]:
    """What is known before the first round."""
    known = {"users": CLIENTS, "ratings": RATINGS, "simulated_noise": config.private}
    return facts_of(config, CLIENTS, ITEMS) | known | BESIDE


def records_of(config: Config) -> tuple[list[dict[str, Any]], LedgerPolicy | None]:
    """One mapping a round, and the policy that planned them."""
    generator = np.random.default_rng(config.run.seed)
    policy = None
    if config.privacy.mechanism != "none":
        made = policy_of(
            config, Ledger.in_memory(budgets_of(config, CLIENTS), accountant_of(config))
        )
        policy = made if isinstance(made, LedgerPolicy) else None
    learns = policy is not None and policy.learns
    records, learned, over = [], 0.0, False
    for index in range(config.federation.rounds):
        plan = None
        if policy is not None and not over:
            released = learns and config.planning.context != "none"
            plan = policy.ask(1.0 + 0.1 * generator.standard_normal(3) if released else None)
        over = policy is not None and plan is None
        charge = 0.0 if plan is None else float(plan.charge_by_class.max())
        learned += 0.02 if policy is None else min(charge, 1.0)
        rmse = 0.18 + 0.03 * np.exp(-learned) + 0.0005 * generator.standard_normal()
        record: dict[str, Any] = {
            "round": index,
            "rmse": float(rmse),
            "mae": float(0.8 * rmse),
            "loss": float(rmse**2),
            "precision": 0.82,
            "recall": 0.98,
            "f1": float(0.9 - rmse / 40),
            "clients": CLIENTS,
            "ratings": 6000 + index,
            "seconds": 0.005,
        }
        if policy is not None:
            record |= planned(plan, policy, float(generator.standard_normal()))
        records.append(record)
    return records, policy


def planned(plan: Plan | None, policy: LedgerPolicy, luck: float) -> dict[str, Any]:
    """What a run notes of a plan, and settle it."""
    paid = CLIENTS if plan is not None and not plan.skip else 0
    multiplier = float(plan.noise_by_class.multiplier.min()) if plan is not None and paid else None
    noise = None if multiplier is None else 0.02 * multiplier
    reward = 0.3 + 0.2 * luck if paid else None
    if plan is not None:
        policy.tell(plan, reward=reward)
    why = {} if plan is None else plan.why._asdict()
    return {
        "clients": round(0.9 * paid),
        "charge": 0.0 if plan is None else float(plan.charge_by_class.max()),
        "charges": [] if plan is None else plan.charge_by_class.tolist(),
        "paid": paid,
        "late": round(0.04 * paid),
        "dropped": 0,
        "level": None if plan is None else plan.level,
        "clip": None if plan is None else plan.largest_clip,
        "noise_multiplier": multiplier,
        "released_norm": None if noise is None else (noise**2 + 0.01) ** 0.5,
        "noise_norm": noise,
        "reward": reward,
        "left": policy.share_left().tolist(),
        "why": {name: value for name, value in why.items() if value},
        "spent": most_spent(policy.ledger.spending()),
    }


def make_run(
    path: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    preset: str = "recommended",
    rounds_done: int | None = None,
) -> Path:
    """Write a run folder; with `rounds_done` one that is not finished."""
    config = load_config(preset=preset, settings=settings)
    return write_run(path, config, rounds_done)


def write_run(path: Path, config: Config, rounds_done: int | None = None) -> Path:
    """Write the folder of a config's run."""
    records, policy = records_of(config)
    facts = made_facts(config)
    with RunFolder.create(path, config, data="made up", facts=facts) as folder:
        for record in records[:rounds_done]:
            folder.append_round(record)
        if rounds_done is None:
            spending = {} if policy is None else made_spending(config, policy, records)
            lists = {"ndcg_at_10": 0.5 - 1.5 * records[-1]["rmse"], "ndcg_at_10_popularity": 0.17}
            gained = {"learned": True, "gains": made_gains(spending.get("classes") or [])}
            folder.write("examples.json", EXAMPLES)
            folder.write(
                "summary.json", summarise(config, facts, records, 1.5, spending) | lists | gained
            )
    return path


EXAMPLES = {
    "note": None,
    "lists": [
        {
            "user": user,
            "items": [
                {"title": f"A Film of {year}", "predicted": 4.2, "reason": "popular, and drama"}
                for year in range(1990, 1995)
            ],
        }
        for user in ("1", "472", "943")
    ],
}


def made_gains(classes: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What groups of clients gained: one that loses, one that cannot be told, one that gains."""

    def group(name: str, gain: float) -> dict[str, Any]:
        figures = {"clients": 30, "rmse": 0.2 * (1 - gain), "rmse_alone": 0.2, "better": 0.6}
        return {"name": name, **figures, "gain": gain, "low": gain - 0.03, "high": gain + 0.03}

    names = {"up to 20 ratings": -0.05, "21 to 60 ratings": 0.01, "more than 60 ratings": 0.09}
    budgets = [group(f"ε {of['epsilon']:g}", 0.05) for of in classes]
    found: dict[str, Any] = {"better": 0.62, "ratings": [group(*of) for of in names.items()]}
    return found | ({"budget": budgets} if budgets else {})


def made_spending(
    config: Config, policy: LedgerPolicy, records: list[dict[str, Any]]
) -> dict[str, Any]:
    """What was promised and spent, with a made-up error of each class."""
    test = Ratings.from_arrays([0], [0], [1])
    found = spending_of(config, policy.ledger, None, records)
    found["planner_note"] = policy.note
    if len(policy.ledger.budgets.classes) > 1:
        classes = classes_of(policy.ledger, test, np.zeros(1, np.float32))
        found["classes"] = [entry | {"rmse_final": 0.19} for entry in classes]
    return found


def make_study(out: Path, asked: Study, leave_out: int = 0) -> Path:
    """Write the folder of a comparison or a sweep, all cells done but the last few."""
    out.mkdir(parents=True, exist_ok=True)
    asked.write(out)
    cells = list(asked.cells().items())
    for cell, config in cells[: len(cells) - leave_out]:
        write_run(out / cell.place, config)
    return out
