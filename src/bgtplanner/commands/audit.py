"""The command that attacks our own claims: `audit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bgtplanner.commands.options import Answer, command

EXIT_CODES = {"holds": 0, "refuted": 1, "inconclusive": 3}  # 2 is for what cannot be done


@command()
def audit(
    *, mechanism: str = "gaussian", trust: str = "local", neighbours: str = "auto",
    epsilon: float = 1.0, delta: float = 1e-5, releases: int | None = None,
    confidence: float = 0.99, seed: int | None = None,
) -> Answer:  # fmt: skip
    """Attack the real code, and show what the attack found and could have found.

    Exit codes: 0 if the claim holds, 1 if it is refuted, 3 if the audit is inconclusive: so few
    releases could not have refuted it.

    It attacks a client's ledger, clip and noise. With trust secagg it attacks a group of clients
    on a disk and their server: it sees the sums, and what colluders have sent.

    Example: `bgtplanner audit --mechanism gaussian --epsilon 1`

    Example: `bgtplanner audit --trust secagg`

    Options:
        mechanism: gaussian | laplace
        trust: local | secagg
        neighbours: replace-special | replace-one; auto: by the trust.
        epsilon: The budget to audit.
        delta: Its delta.
        releases: How many; default 200,000, of sums 80.
        confidence: Probability that an honest client is not refuted.
        seed: Repeatable noise; default: secret noise.
    """
    asked: dict[str, Any] = {**locals()}
    from bgtplanner.runs.audit import audit as attack

    found = attack(**asked)
    return Answer(found, _view(found), EXIT_CODES[found["verdict"]])


def _view(found: Mapping[str, Any]) -> list[str]:
    """Return what was attacked and claimed, what was and could have been seen, and the verdict."""
    claim = found["claimed_epsilon"]
    against = "nothing" if found["neighbours"] == "replace-special" else "another's"
    sums = "{dropouts} of {members} clients drop out, {colluders} tell what was sent"
    lines = [
        ("attacked", "{mechanism}, trust {trust}, path {path}"),
        ("", "{releases:,} releases of neighbouring inputs"),
        *[("", sums)] * bool(found["members"]),
        ("claimed", "epsilon {claimed_epsilon:g} at delta {delta:g} ({accounting})"),
        ("", f"{{neighbours}}: one client's upload against {against}"),
        ("seen", "epsilon >= {epsilon_lower:.3f} with {confidence:.4g} confidence"),
        ("from guesses alone", "epsilon >= {epsilon_lower_any:.3f}, for any noise"),
        ("they could show", "epsilon {epsilon_largest:.2f}, if none had been wrong"),
    ]
    for check in found["checks"]:
        word = "REFUTED" if check["refuted"] else "as stated"
        lines.append((check["name"], f"{word} (p = {check['p_value']:.2g})"))
    reasons = {
        "holds": [f"more than {claim:g} could have been shown, and was not; no proof"],
        "refuted": [check["fault"] for check in found["checks"] if check["refuted"]],
        "inconclusive": [f"so few cannot show {claim:g}: --releases {found['releases_needed']}"],
    }
    lines.append(("verdict", found["verdict"].upper()))
    lines += [("", reason) for reason in dict.fromkeys(reasons[found["verdict"]])]
    return [f"{name:<20}{text.format_map(found)}" for name, text in lines]
