"""The record of a run: what its files may hold, one pydantic model per file.

A folder may have been edited, assembled from two, or written by another version: whatever is read
from it goes through one of these models, so that the code that uses it need not check again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, conlist, create_model

from bgtplanner.arguments import expected
from bgtplanner.errors import RunFolderError, quoted
from bgtplanner.privacy.mechanisms import Neighbours
from bgtplanner.runs.config import Config
from bgtplanner.text import LONGEST_NAME

SCHEMA = 1
"""Version of the layout of the folder. Never raise it without a migration."""

_LARGEST = 10**15  # no figure of a run is anywhere near, and drawings and sums stay exact enough
_Figure = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Word = Annotated[str, Field(max_length=LONGEST_NAME)]
_Ticks = Annotated[int, Field(ge=0, le=2**62)]
_Reason = Annotated[float, Field(allow_inf_nan=True)]  # minus infinity rules something out


class _Object(BaseModel):
    """An object in a file: a key that it does not name is a figure, such as a plugin's metric."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, _Figure | bool | None] = Field(init=False)


def _list(kind: Any) -> Any:
    """Return the type of a list that is not longer than a run can have rounds."""
    return conlist(kind, max_length=1_000_000)


def _object(*kinds: tuple[Any, str], needed: bool = False) -> Any:
    """Return the model of an object: types, each with its keys, and whether all are needed.

    The sign at the end of a key says which runs must have it: ``!`` every one, ``~`` and ``%`` a
    simulation (the former also to be compared), ``$`` one with a budget.
    """
    fields: dict[str, Any] = {}
    for kind, names in kinds:
        for title in names.split():
            name = title.strip("!~%$")  # an alias, since a key may be the name of a method
            field = Field(... if needed else None, alias=name, title=title)
            fields[f"key_{name}"] = (kind, field)
    return create_model("Object", __base__=_Object, **fields)


_SCORES = "{0}_final~ {0}_best~ {0}_constant~ {0}_user_mean~ {0}_client_alone~"
_WHY = _object(
    (_Word, "note"), (_list(_Reason), "charges predicted price score probability forecast")
)
ROUND = _object(
    (_Count, "round! clients! paid late dropped$"),
    (_Count | None, "ratings~ level asked refused"),
    (_Figure | None, "seconds! charge$ rmse~ f1~ mae~ precision~ recall~ loss~"),
    (_Figure | _list(_Figure) | None, "clip noise_multiplier"),
    (_list(_Figure) | None, "charges"),
    (_list(_Share), "left"),
    (_WHY | None, "why"),
    (_list(_list(_Ticks)) | None, "spent"),
    (dict[_Word, _Share] | None, "split"),
    (dict[_Word, _Count] | None, "dropped_by_kind"),
)
"""A line of ``rounds.jsonl``; :class:`~bgtplanner.federation.result.RoundResult` says more."""

_CLASS = _object((_Figure, "epsilon epsilon_spent_max"), (_Count, "clients"), needed=True)
_GAIN = _object(
    (_Word, "name"), (_Count, "clients"), (_Figure, "rmse rmse_alone better"),
    (_Figure | None, "gain low high"), needed=True,
)  # fmt: skip
SUMMARY = _object(
    (_Count, "schema seed! rounds_run! clients! items!"),
    (_Count | None, "target_round rounds_paid$"),
    (_Word, "dataset! model! policy! preset! mechanism!"),
    (_Word | None, "objective trust$ unit$ accounting$ ledger_head planner_note"),
    (Neighbours | None, "neighbours"),
    (_Figure | None, "users% ratings% target epsilon$ delta$ epsilon_spent_max$ budget_left"),
    (_Figure | None, "epsilon_client_level$ epsilon_client_level_median$"),
    (_Figure | None, f"{_SCORES.format('rmse')} {_SCORES.format('f1')}"),
    (_Figure, "seconds_total! seconds_per_round!"),
    (_list(_Word), "not_accounted!"),
    (Annotated[list[_Figure], Field(min_length=2, max_length=2)] | None, "scale"),
    (_object((_list(_GAIN), "ratings budget")) | None, "gains"),
    (_list(_Figure), "class_epsilons"),
    (_list(_CLASS) | None, "classes"),
)
"""The object in ``summary.json``, and what is known of a run before its first round."""

NOTES = _object(
    (_Word, "version data key people"), (_list(_Word), "given"),
    (dict[str, _Word], "versions"), (dict[str, Any], "facts"),
)  # fmt: skip
"""The section ``[folder]`` of ``config.toml``: about the folder, not settings."""

CLIENTS = _object((_Word, "run"), (_list(_Word), "clients"))
"""The object in ``clients.json``: a federation's name, and hashes of its clients' names."""

_LINE = _object(
    (_Word, "title"), (_Figure | None, "predicted"), (_Word | None, "reason"), needed=True
)
_LIST = _object((_Word, "user"), (_list(_LINE), "items"), needed=True)
EXAMPLES = _object((_Word | None, "note"), (_list(_LIST), "lists"))
"""The object in ``examples.json``: the lists of a few users, for the report."""

KINDS = {"summary.json": SUMMARY, "examples.json": EXAMPLES, "clients.json": CLIENTS}
"""What each JSON file holds."""


def object_in(where: object, content: bytes, kind: Any, signs: str) -> dict[str, Any]:
    """Return the JSON object in some text, after a check."""
    found = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(content)
    if not isinstance(found, dict):
        raise RunFolderError(f"{where}: not a JSON object; it was edited: run it again")
    check(kind, where, found, signs)
    return found


def check(kind: type[BaseModel], where: object, found: Mapping[str, Any], signs: str = "") -> None:
    """Check an object that was read, and that it has the keys with one of the signs, not null.

    Raises:
        RunFolderError: Names the place, the key and what was expected.
    """
    try:
        kind.model_validate(found)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        value = found.get(name)
        shown = "an object" if isinstance(value, dict) else quoted(value)
        if isinstance(value, list):
            shown = f"a list of {len(value)}"
        raise RunFolderError(
            f"{where}: {name} = {shown}: {expected(problem)}; it was edited, or written by "
            "another version: bring the old file back, or run it again"
        ) from error
    titles = [str(field.title) for field in kind.model_fields.values()]
    needed = [title[:-1] for title in titles if title[-1] in signs]
    if missing := [name for name in needed if found.get(name) is None]:
        rest = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        raise RunFolderError(f"{where}: has no {', '.join(missing[:6])}{rest}; run it again")


def identity_of(config: Config) -> dict[str, Any]:
    """What identifies a run in its summary, from its settings alone."""
    return {
        "dataset": config.data.dataset,
        "preset": config.preset,
        "model": config.model.name,
        "policy": config.planning.policy,
        "mechanism": config.privacy.mechanism,
        "seed": config.run.seed,
    }
