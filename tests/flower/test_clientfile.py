"""A client's two files: what a policy agrees to at the ends of its ranges, and what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from bgtplanner.errors import ConfigError, MessageError
from bgtplanner.flower.clientfile import ClientPolicy, load_client
from bgtplanner.privacy.accountants import accountant_named

NEEDED: dict[str, Any] = {
    "epsilon": 10.0, "delta": 1e-5, "largest_charge": 0.5, "smallest_charge": 0.25,
    "smallest_noise_multiplier": 1.0, "catalogues": ("0123456789abcdef" * 4,), "scale": (1.0, 5.0),
}  # fmt: skip


def policy(**changes: Any) -> ClientPolicy:
    return ClientPolicy(**(NEEDED | changes))


def objection_of(policy: ClientPolicy, *plan: Any) -> str | None:
    try:
        policy.check(*plan)
    except MessageError as error:
        return str(error)
    return None


def test_a_policy_cannot_be_changed_and_takes_no_other_keys() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        policy().largest_charge = 100.0  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        policy(largest_charges=1.0)


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("epsilon", [1.0], [0.0, np.inf, np.nan]),
        ("delta", [1e-300], [0.0, 1.0]),
        ("largest_charge", [0.25, 1e300], [0.0, np.nextafter(0.25, 0.0), np.inf]),
        ("smallest_charge", [1e-300, 0.5], [0.0]),
        ("smallest_noise_multiplier", [1e-300], [0.0, np.nan]),
        ("smallest_clip", [1e-300], [0.0]),
        ("largest_clip", [1e-300], [0.0, np.inf]),
        ("most_items", [1], [0]),
        ("most_features", [0], [-1]),
        ("requests_per_hour", [1e-300], [0.0]),
        ("answers_kept", [1, 10_000], [0, 10_001]),
        ("scale", [(1.0, np.nextafter(1.0, 2.0))], [(1.0, 1.0), (1.0, np.inf)]),
        ("catalogues", [("0" * 64, "9" * 64)], [(), ("F" * 64,), ("f" * 64, "f")]),
        ("rule", ["laplace/basic"], ["gaussian/authors", "gaussian/none"]),
    ],
)
def test_the_ends_of_every_range(name: str, inside: list[Any], outside: list[Any]) -> None:
    for value in inside:
        assert getattr(policy(**{name: value}), name) == value
    for value in outside:
        with pytest.raises(ValidationError):
            policy(**{name: value})


OUTSIDE = "a clip outside smallest_clip and largest_clip"


@pytest.mark.parametrize(
    ("plan", "objection"),
    [
        (("gaussian/gdp", 0.5, 1.0), None),
        (("gaussian/gdp", 0.25, 1e-3), None),
        (("gaussian/gdp", 0.25, 10.0), None),
        (("gaussian/rdp", 0.25, 1.0), "another rule than the ledger's"),
        (("gaussian/gdp", np.nextafter(0.5, 1.0), 1.0), "a charge above largest_charge"),
        (("gaussian/gdp", np.nextafter(0.25, 0.0), 1.0), "a charge below smallest_charge"),
        (("gaussian/gdp", 0.25, np.nextafter(1e-3, 0.0)), OUTSIDE),
        (("gaussian/gdp", 0.25, np.nextafter(10.0, 11.0)), OUTSIDE),
        (("gaussian/gdp", 0.25, np.nan), OUTSIDE),
    ],
)
def test_plans_at_the_ends_of_what_is_agreed(
    plan: tuple[str, float, float], objection: str | None
) -> None:
    assert objection_of(policy(), *plan) == objection


def test_noise_at_the_end_of_what_is_agreed() -> None:
    multiplier = float(accountant_named("laplace/basic").noise_multiplier(0.5))
    assert multiplier == pytest.approx(2.0, rel=1e-12)  # noise of twice 2 * clip
    exact = policy(rule="laplace/basic", smallest_noise_multiplier=multiplier)
    assert objection_of(exact, "laplace/basic", 0.5, 1.0) is None
    more = policy(rule="laplace/basic", smallest_noise_multiplier=np.nextafter(multiplier, 3.0))
    expected = "less noise than smallest_noise_multiplier"
    assert objection_of(more, "laplace/basic", 0.5, 1.0) == expected
    assert objection_of(more, "laplace/basic", 0.45, 1.0) is None


def test_paths_are_taken_from_the_folder_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text('ratings = "own.csv"\n')
    assert load_client(file).witness is None
    file.write_text('ratings = "own.csv"\nwitness = "../heads.txt"\n')
    found = load_client(str(file))
    assert found.witness == tmp_path / ".." / "heads.txt"
    assert found.ratings == tmp_path / "own.csv"
    assert found.policy == tmp_path / "policy.toml"
    assert found.state == tmp_path / "state"
    assert found.ledger == tmp_path / "state" / "ledger.sqlite"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file; 'bgtplanner deploy init FOLDER' writes an example"),
        ("", "ratings: expected a value; it has no default"),
        ("ratings = ", "cannot be read as TOML"),
        ('ratings = "a"\nstate = 3', "state = 3: expected"),
        ('ratings = "a"\nother = 3', "other: there is no such key"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_was_expected(
    tmp_path: Path, text: str | None, said: str
) -> None:
    file = tmp_path / "client.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_client(file)
    assert str(caught.value).startswith(f"{file}: {said}")


def test_ratings_over_a_catalogue_keep_both_ends_of_the_scale(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(
        "user,item,rating\nu,a,1\nu,b,5\nv,c,0.5\nv,d,5.5\nv,z,3\nv,d,4\n"
    )
    file = tmp_path / "client.toml"
    file.write_text('ratings = "own.csv"\n')
    own, others = load_client(file).ratings_over(("d", "b", "a", "c"), 1.0, 5.0)
    assert others == 3
    assert own.item_labels.tolist() == ["d", "b", "a", "c"]
    rated = sorted(zip(own.item.tolist(), own.value.tolist(), strict=True))
    assert rated == [(0, 0.75), (1, 1.0), (2, 0.0)]
    assert own.client_of_user.tolist() == [0, 0]
    assert (own.low, own.high, own.name) == (1.0, 5.0, "own")


def test_what_a_client_is_promised_is_what_its_policy_says() -> None:
    promise = policy().promise
    said = (promise["epsilon"], promise["delta"], promise["trust"], promise["neighbours"])
    assert said == (10.0, 1e-5, "local", "replace-one")
    assert promise["epsilon_other_reading"] == pytest.approx(3.9, abs=0.5)
    assert "epsilon 10" in promise["sentences"][0]
