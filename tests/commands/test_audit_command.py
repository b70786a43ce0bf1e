"""The command `audit`: what it prints, and what it ends with."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from bgtplanner.commands import audit
from bgtplanner.privacy.mechanisms import Additive
from bgtplanner.runs import groupdoor
from command_line import Call


def narrow(out: str) -> str:
    assert max(map(len, out.splitlines())) <= 80
    return " ".join(out.split())


def test_a_claim_that_holds(command_line: Call) -> None:
    code, out, err = command_line("audit", "--mechanism", "laplace", "--releases", 4000,
                                  "--seed", 0)  # fmt: skip
    assert (code, err) == (0, "")
    text = narrow(out)
    assert "laplace, trust local, unit client, path guard, 1 round 4,000 releases" in text
    assert "claimed epsilon 1 at delta 1e-05" in text
    assert "they could show epsilon 6.50, if none had been wrong" in text
    assert "size of the noise as stated (" in text
    assert "verdict HOLDS: more than 1 could have been shown, and was not." in text


def test_a_claim_that_is_refuted(command_line: Call) -> None:
    code, out, _ = command_line("audit", "--unit", "row", "--releases", 4000, "--seed", 0)
    assert code == 1
    text = narrow(out)
    assert "verdict REFUTED: THE CLAIM IS FALSE at least" in text
    assert "for the whole client, with 32 blocks" in text


def test_a_raw_upload_at_epsilon_ten(command_line: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Additive, "noise", lambda self, source, scale, shape: np.zeros(shape))
    code, out, _ = command_line("audit", "--epsilon", 10, "--releases", 1000, "--seed", 0)
    assert code == 1
    assert "the noise is smaller than stated" in narrow(out)
    code, out, _ = command_line("audit", "--epsilon", 10, "--releases", 1000, "--json")
    assert code == 1
    found = json.loads(out)
    assert found["verdict"] == "refuted"
    assert {"name", "p_value", "risk", "part", "refuted", "measured", "stated", "fault"} == set(
        found["checks"][0]
    )


def test_a_claim_that_so_few_releases_cannot_refute(command_line: Call) -> None:
    code, out, _ = command_line("audit", "--epsilon", 10, "--releases", 4000, "--seed", 0)
    assert code == 3
    text = narrow(out)
    assert "verdict INCONCLUSIVE: so few releases cannot show 10" in text
    assert "are needed: --releases" in text
    code, out, _ = command_line("audit", "--epsilon", 10, "--releases", 4000, "--seed", 0,
                                "--json")  # fmt: skip
    found = json.loads(out)
    assert (code, found["verdict"]) == (3, "inconclusive")
    assert found["epsilon_lower_any"] <= found["epsilon_largest"] < found["claimed_epsilon"] == 10
    assert found["releases_needed"] > 4000


def test_canaries_that_can_never_show_it(command_line: Call) -> None:
    code, out, _ = command_line("audit", "--epsilon", 10, "--releases", 2000, "--seed", 0,
                                "--trust", "secagg", "--canaries", 4)  # fmt: skip
    assert code == 3
    assert "4 canaries in each sum" in out
    assert "no number of releases is enough" in narrow(out)


def test_sums_of_clients_and_a_server(command_line: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groupdoor, "_TIMES", 1)
    code, out, err = command_line(
        "audit", "--trust", "secagg", "--dropouts", 0, "--releases", 1000, "--opened", 20,
        "--seed", 0,
    )  # fmt: skip
    assert (code, err) == (0, "")
    text = narrow(out)
    assert "trust secagg, unit client, path client, 1 round 1,020 releases" in text
    assert "of 3 clients, none dropped out; 1 told the attacker what it had sent" in text
    assert "1,000 sums of shares, without masks 20 masked and opened, no drop-outs" in text
    assert text.count("size of the noise as stated") == 2
    assert "less noise as stated paid for as stated verdict HOLDS" in text


def test_every_verdict_has_an_exit_code() -> None:
    assert audit.EXIT_CODES == {"holds": 0, "refuted": 1, "inconclusive": 3}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trust", "x"], "--trust = 'x'"),
        (["--unit", "x"], "--unit = 'x'"),
        (["--path", "x"], "--path = 'x': expected auto or guard or simulation or client"),
        (["--mechanism", "none"], "--mechanism = 'none'"),
        (["--releases", "3"], "--releases = 3"),
        (["--epsilon", "0"], "--epsilon = 0.0"),
        (["--delta", "2"], "--delta = 2.0"),
        (["--delta", "0"], "delta = 0"),
        (["--canaries", "2"], "--canaries = 2"),
        (["--beside", "2"], "--beside = 2.0"),
        (["--uploads", "best"], "--uploads = 'best': expected worst or tastes"),
        (["--path", "simulation", "--beside", "0"], "epsilon = 0.0"),
        (["--path", "client", "--rounds", "2"], "--rounds = 2"),
        (["--opened", "40"], "--opened = 40: expected none, except with --path client and"),
        (["--trust", "secagg", "--colluders", "-1"], "--colluders = -1: expected a whole number"),
        (["--trust", "secagg", "--opened", "3"], "--opened = 3: expected at least 20"),
        (["--mechanism", "privunit", "--trust", "secagg"], "--mechanism = 'privunit'"),
    ],
)
def test_what_cannot_be_audited_is_refused(
    command_line: Call, arguments: list[str], said: str
) -> None:
    code, out, err = command_line("audit", *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_without_flower(command_line: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    code, _, err = command_line("audit", "--path", "client")
    assert code == 2
    assert "needs the extra 'flower'" in err
