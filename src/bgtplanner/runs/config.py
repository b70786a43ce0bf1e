"""The config of a run: every setting, where it comes from, and what fits what.

A setting comes from the defaults, the preset, the config file or the flags; the last of these
wins. What each means and may be is in :mod:`bgtplanner.runs.settings`, and with the models.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import ValidationError

from bgtplanner.arguments import expected, read_toml
from bgtplanner.errors import ConfigError, quoted
from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.optimizers import Server
from bgtplanner.models.tastes import Tastes
from bgtplanner.planning.registry import POLICIES
from bgtplanner.privacy.accountants import ACCOUNTANTS
from bgtplanner.privacy.compatibility import best_mechanism
from bgtplanner.runs.settings import FLAGS, PRESETS, Sections, packaged

GONE = frozenset((
    "data.duplicates", "data.items_words", "data.items_column", "data.unknown_items",
    "federation.stragglers", "run.devices", "model.expansions", "model.max_neighbours",
    "model.fixed_pseudo_items", "factorization.item_decay", "planning.target",
    "planning.validation_share", "planning.validation_charge", "server.hostile_clients",
    "privacy.noise",
))  # fmt: skip
"""Settings of earlier versions: whoever sets one is told; old runs that have them are read."""

SYMBOLS = {
    "planning.A": "planning.levels",
    "planning.T_min": "planning.min_rounds",
    "planning.d": "planning.context_size",
    "planning.T0": "planning.options.initial_rounds",
    "planning.s": "planning.options.length_scale",
    "planning.alpha": "planning.options.forgetting",
}
"""The paper's symbols, which may stand for these settings."""

INDIFFERENT = ("data.data_dir", "run.device", "run.checkpoint_every", "run.examples")
"""Settings that do not change the result: how and where a run is carried out, and is shown."""


class Config(Sections):
    """Every setting of a run."""

    preset: Literal["recommended", "paper"] = "recommended"
    biases: Biases = Biases()
    factorization: Factorization = Factorization()
    fedgnn: FedGNN = FedGNN()
    tastes: Tastes = Tastes()
    server: Server = Server()

    @property
    def private(self) -> bool:
        """Whether uploads are protected, and there is a budget to pay from."""
        return self.privacy.mechanism != "none"

    @property
    def learns(self) -> bool:
        """Whether there is a budget, and a policy that uses rewards."""
        policy = self.planning.policy
        return self.private and policy not in POLICIES.gone and POLICIES[policy].learns

    def require(self, *rules: tuple[str, bool, str]) -> None:
        """Refuse the first setting that does not fit.

        A rule is the key of a setting, whether it fits the others, and what was expected.
        """
        for key, fits, instead in rules:
            section, _, name = key.partition(".")
            ConfigError.unless(fits, _named(key), getattr(getattr(self, section), name), instead)


def load_config(
    *,
    preset: str | None = None,
    file: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Config:
    """Load a config from a preset, a TOML file and single values; later ones win.

    Nothing that a setting names by its address is imported: that happens where it is used.

    Args:
        preset: ``recommended`` or ``paper``; by default the file's, otherwise recommended.
        file: A TOML file, such as the ``config.toml`` of a run folder.
        settings: Values by dotted key, such as ``{"server.learning_rate": 0.02}``.

    Raises:
        ConfigError: Naming the key, the value and what was expected.

    Example:
        >>> load_config(settings={"federation.rounds": 5}).federation.rounds
        5
    """
    advice = "give one, such as the config.toml of a run"
    tree = {} if file is None else read_toml(Path(file), advice)
    is_run = tree.pop("folder", None) is not None  # a run folder's own notes
    named = tree.pop("preset", "recommended")
    wanted, where = (named, f"{file}: preset") if preset is None else (preset, "--preset")
    ConfigError.unless(wanted in PRESETS, where, wanted, f"one of {', '.join(PRESETS)}")
    stored = _by_key(tree)
    now = {SYMBOLS.get(key, key): value for key, value in _by_key(settings or {}).items()}
    for values, place in ((stored, f"{file}: "), (now, "")):
        for key in GONE & values.keys():
            if not (is_run and values is stored):
                instead = "`bgtplanner docs sharp-edges` says what to use instead"
                raise ConfigError(f"{place}{key}: is gone; leave it out ({instead})")
            del values[key]
    if is_run and stored.get("planning.reward") == "validation":  # of 0.2
        stored["planning.reward"] = "none"
    given = stored | now
    if "preset" in _tree(given):
        raise ConfigError("preset: not a setting; choose a preset with --preset")
    try:
        config = Config.model_validate(_tree({"preset": wanted} | _with_preset(wanted, given)))
    except ValidationError as error:
        found = {}
        for problem in reversed(error.errors()):  # of several for one key, the first is said
            key = ".".join(map(str, problem["loc"][:2]))
            place = f"{file}: " if key in stored and key not in now else ""
            found[key] = place + _described(key, problem)
        raise ConfigError("; ".join(found.values())) from error
    found = _by_key(config.model_dump())
    for key, value in given.items():  # pydantic takes true for 1
        fits = not isinstance(value, bool) or isinstance(found.get(key, value), bool)
        ConfigError.unless(fits, _named(key), value, "a number or text, not true or false")
    _check_together(config)
    return config


def _by_key(tree: Mapping[str, Any], prefix: str = "", levels: int = 9) -> dict[str, Any]:
    """The values of sections, and of tables in them, by dotted key."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        inner = isinstance(value, Mapping) and levels > 1
        found |= _by_key(value, f"{key}.", levels - 1) if inner else {key: value}
    return found


def _tree(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key, as sections."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        target = tree
        for part in path:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise ConfigError(f"{key}: {part} is a single value; expected a section")
        target[last] = value
    return tree


def _with_preset(preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings given, and those of the preset, which adapts itself to them."""
    mechanism, policy = given.get("privacy.mechanism"), given.get("planning.policy")
    private, tables = mechanism != "none" and policy != "unlimited", packaged(preset)
    adapted: list[Any] = []
    if preset == "paper":  # for a data set and a policy, as in Table 2
        adapted = [given.get("data.dataset"), policy]
    elif given.get("model.name") not in (None, "biases", "tastes"):  # whose clients upload sums
        adapted = ["gradients" if private else "unlimited"]
    values: dict[str, Any] = {}
    for name in ("usual", *adapted):
        values |= _by_key(tables.get(str(name), {}))
    if not private:  # either of the two means both
        values |= {"planning.policy": "unlimited", "privacy.mechanism": "none"}
    values |= given
    if str(values.get("planning.policy")) in POLICIES.gone:  # of old runs; it was told nothing
        values |= {"planning.context": "none", "planning.reward": "none"}
    if values.get("privacy.mechanism") == "auto":
        values["privacy.mechanism"] = _best_mechanism(values)
    return values


def _best_mechanism(values: Mapping[str, Any]) -> str:
    """Return the accountant's mechanism, or else the one that adds the least noise."""
    accounting = str(values.get("privacy.accounting", "auto"))
    if accounting != "auto":
        known = accounting in ACCOUNTANTS
        return ACCOUNTANTS[accounting].mechanism if known else "gaussian"
    trust, unit = values.get("privacy.trust", "secagg"), values.get("privacy.unit", "client")
    return best_mechanism(str(trust), str(unit))


def _check_together(config: Config) -> None:
    """Refuse settings that each could be, but not together."""
    model, planning, privacy = config.model, config.planning, config.privacy
    free = planning.policy == "unlimited"
    aged, long = config.tastes.half_life is not None, privacy.clip >= 1
    _ = privacy.relation  # refuses one that does not go with the trust
    config.require(
        ("planning.policy", free or config.private, "unlimited, for --mechanism none"),
        ("privacy.mechanism", not (free and config.private), "none, for --policy unlimited"),
        ("privacy.clip", long or not aged, "1, for tastes.half_life: what is old is shorter"),
        ("model.options", model.name not in Config.model_fields or not model.options,
         f"nothing: the settings of {model.name} are in [{model.name}]"),
    )  # fmt: skip


def effective(config: Config) -> dict[str, Any]:
    """Return the settings that the result depends on, by dotted key."""
    values = _by_key(config.model_dump(mode="json"))
    values["privacy.neighbours"] = config.privacy.relation  # which ``auto`` stands for
    return {key: value for key, value in values.items() if key not in INDIFFERENT}


def differences(one: Config, other: Config) -> dict[str, Any]:
    """Return where another config differs, by dotted key, as far as it changes the result."""
    mine, theirs = effective(one), effective(other)
    return {key: theirs.get(key) for key in mine | theirs if mine.get(key) != theirs.get(key)}


def to_toml(config: Config, folder: Mapping[str, Any] | None = None) -> str:
    """Return the settings as TOML for :func:`load_config`; unset ones are left out.

    The notes about a run `folder`, which are no settings, have a section of their own.
    """
    tree = config.model_dump() | ({"folder": folder} if folder else {})
    return tomli_w.dumps(_known(tree))


def _known(value: Any) -> Any:
    """Return the same without what is None, which TOML cannot say."""
    if isinstance(value, Mapping):
        return {str(key): _known(of) for key, of in value.items() if of is not None}
    return [_known(of) for of in value] if isinstance(value, list | tuple) else value


def _named(key: str) -> str:
    return f"{FLAGS[key]} ({key})" if key in FLAGS else key


def _described(key: str, problem: Any) -> str:
    """Return one of pydantic's errors as one line: flag or key, value, what was expected."""
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        sections = Config().model_dump(exclude={"preset"})
        known = [f"{section}.{name}" for section, values in sections.items() for name in values]
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(sections)}"
        return f"unknown key '{key}'; {hint}"
    if problem["type"] == "value_error":  # from a section's own check, which names the key itself
        return f"{key}.{problem['ctx']['error']}"
    return f"{_named(key)} = {quoted(problem['input'])}: {expected(problem)}"
