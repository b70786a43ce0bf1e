"""What a run promises, in words that do not promise more."""

from __future__ import annotations

from typing import Any

import pytest

from bgtplanner.report.verdict import guarantee, is_sound, shared_noise

SOUND: dict[str, Any] = {
    "mechanism": "gaussian", "trust": "local", "unit": "client", "accounting": "gaussian/gdp",
    "epsilon": 8.0, "delta": 1e-6, "epsilon_spent_max": 7.4321, "epsilon_client_level": 7.4321,
    "epsilon_client_level_median": 6.5, "epsilon_client_level_pure": None, "rounds_paid": 37,
    "not_accounted": [], "simulated_noise": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        ("local", "every upload"),
        ("secagg", "only the sum of all uploads (secure aggregation, secagg)"),
    ],
)
def test_sound(trust: str, words: str) -> None:
    promise, spent, rest = guarantee(SOUND | {"trust": trust})
    assert promise.startswith("Guarantee: (8, 1e-06)-differential privacy for each whole client")
    assert f"a server that sees {words} (gaussian/gdp)" in promise
    assert "7.43 of this epsilon, in 37 rounds" in spent
    assert rest == "Who takes part, and when, is not hidden."


@pytest.mark.parametrize("short", [False, True])
def test_few_clients_or_a_large_delta_are_said(short: bool) -> None:
    few = guarantee(SOUND | {"trust": "secagg", "clients": 2}, short=short)
    assert "hides nobody" in few[1]
    large = guarantee(SOUND | {"delta": 0.01, "clients": 900}, short=short)
    assert large[1].endswith("about 9 of them.")
    for delta, clients in ((1e-6, 3), (0.3, 3)):
        said = guarantee(SOUND | {"trust": "secagg", "delta": delta, "clients": clients})
        assert not any("hides nobody" in one or "everything" in one for one in said)


@pytest.mark.parametrize(
    "changes", [{}, {"not_accounted": ["scale"]}, {"accounting": "gaussian/authors"}]
)
def test_a_simulated_run_says_so_in_the_same_sentence(changes: dict[str, Any]) -> None:
    words = "if the noise were secret; this run is simulated, and its noise comes from a seed."
    assert words not in guarantee(SOUND | changes)[0]
    for noted in ({"simulated_noise": True}, {"simulated_noise": None}):
        known = {key: of for key, of in (SOUND | changes | noted).items() if of is not None}
        assert guarantee(known)[0].endswith(words), "an older run does not say it"


def test_rows_name_what_it_is_for_the_whole_client() -> None:
    rows = SOUND | {
        "unit": "row", "accounting": "gaussian/authors", "epsilon": 10.0,
        "epsilon_client_level": 1234.4, "epsilon_client_level_median": 391.2,
        "not_accounted": ["item-ids", "pseudo-rows", "context", "reward"],
    }  # fmt: skip
    promise, rest = guarantee(rows)
    assert "epsilon 10 is booked, but for each tensor and item row on its own" in promise
    assert "For the whole client it is 391 at delta 1e-5 for the median client" in promise
    assert "1,234 for the most exposed one" in promise
    assert "for each whole client" not in promise
    assert rest.startswith("Not covered, so that no finite epsilon holds: ")
    for words in ("which items each client rated", "gives them away", "the planner's reward"):
        assert words in rest
    pure = guarantee(rows | {"mechanism": "laplace", "epsilon_client_level_pure": 5600.2})
    assert "(5,600 as pure epsilon)" in pure[0]


def test_the_authors_rule_promises_what_it_amounts_to() -> None:
    """It books a divergence as if it were an epsilon."""
    authors = SOUND | {"accounting": "gaussian/authors", "epsilon_client_level": 18.62}
    (line,) = guarantee(authors)
    assert "differential privacy" not in line
    assert "epsilon 8 is booked by gaussian/authors" in line
    assert "18.6 at delta 1e-5" in line


@pytest.mark.parametrize(
    ("changes", "sound"),
    [
        ({}, True),
        ({"mechanism": "none"}, False),
        ({"unit": "row"}, False),
        ({"not_accounted": ["scale", "reward"]}, False),
        ({"not_accounted": ["scale", "catalogue", "arrival"]}, True),  # if they are public
        ({"accounting": "gaussian/authors"}, False),
        ({"accounting": "of a later version"}, False),
    ],
)
def test_sound_only_if_all_holds(changes: dict[str, Any], sound: bool) -> None:
    assert is_sound(SOUND | changes) is sound


SHARED = SOUND | {"trust": "secagg", "most_dropouts": 0.05, "most_colluders": 1.0}


def test_who_may_drop_out_and_collude() -> None:
    (said,) = shared_noise(SHARED | {"noise_surplus": 0.0271, "rounds_aborted": 0})
    assert said == (
        "Each client adds a share of the noise. The promise holds if in a round at most 0.05 "
        "drop out and at most 1 collude with the server (below 1: a share of the clients); if "
        "more drop out, the sum is not opened. The noise was 2.7 % above what that takes."
    )
    assert said in guarantee(SHARED | {"noise_surplus": 0.0271})
    (said,) = shared_noise(SHARED | {"most_dropouts": 3, "rounds_aborted": 2})
    assert "at most 3 drop out" in said
    assert said.endswith("Rounds that were paid for and not opened: 2.")
    for changes in ({"trust": "local"}, {"most_dropouts": None}):
        assert shared_noise(SHARED | changes) == []
