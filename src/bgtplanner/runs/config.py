"""The config of a run: every setting, where it comes from, and what fits what.

A setting comes from the defaults, the preset, the config file or the flags; the last of these
wins. What each means and may be is in :mod:`bgtplanner.runs.settings`, and with the models.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import ValidationError

from bgtplanner.errors import ConfigError, quoted
from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.optimizers import Server
from bgtplanner.models.tastes import Tastes
from bgtplanner.planning.registry import POLICIES
from bgtplanner.privacy.accountants import ACCOUNTANTS
from bgtplanner.privacy.compatibility import UNITS, best_mechanism
from bgtplanner.privacy.mechanisms import MECHANISMS, Additive
from bgtplanner.runs import settings
from bgtplanner.runs.settings import FLAGS, PRESETS, Section, packaged
from bgtplanner.text import MOST_BYTES_OF_SETTINGS, read_bytes

BEFORE = {
    "data.items": "none",
    "data.items_column": None,
    "data.items_words": None,
    "data.unknown_items": "error",
    "data.leave_last": 1,
    "data.arrival": "random",
    "synthetic.choosy": 0.0,
    "federation.most_dropouts": 0.0,
    "federation.most_colluders": 0.0,
    "planning.objective": "last",
    "planning.traffic": None,
    "privacy.neighbours": "replace-one",
}
"""Settings that the folders of older runs do not have, and what those runs did."""

_SUMS = ("biases", "tastes")  # models whose clients upload sums, not gradients
_SURROGATE = re.compile("[\ud800-\udfff]")

GONE = {
    "run.devices": "several devices are not used any more; leave it out",
}
"""Settings of earlier versions, and what is said to whoever sets one; old runs are read."""

INDIFFERENT = (
    "data.data_dir", "run.device", "run.checkpoint_every", "run.examples",
)  # fmt: skip
"""Settings that do not change the result: where a run is carried out, how often it is saved, and
what its report shows."""


class Config(Section):
    """Every setting of a run."""

    preset: Literal["recommended", "paper"] = "recommended"
    data: settings.DataSection = settings.DataSection()
    synthetic: settings.SyntheticSection = settings.SyntheticSection()
    model: settings.ModelSection = settings.ModelSection()
    biases: Biases = Biases()
    factorization: Factorization = Factorization()
    fedgnn: FedGNN = FedGNN()
    tastes: Tastes = Tastes()
    server: Server = Server()
    federation: settings.FederationSection = settings.FederationSection()
    planning: settings.PlanningSection = settings.PlanningSection()
    privacy: settings.PrivacySection = settings.PrivacySection()
    deployment: settings.DeploymentSection = settings.DeploymentSection()
    run: settings.RunSection = settings.RunSection()

    @property
    def learns(self) -> bool:
        """Whether there is a budget, and a policy that uses rewards."""
        return self.privacy.mechanism != "none" and POLICIES[self.planning.policy].learns

    @property
    def target_from_test(self) -> bool:
        """Whether the target is read from the test ratings: without privacy, or as the paper."""
        open_book = self.privacy.mechanism == "none" or self.planning.reward == "test"
        return self.planning.target is not None and open_book

    @property
    def validates(self) -> bool:
        """Whether clients keep a validation set."""
        wanted = self.planning.target is not None and not self.target_from_test
        return wanted or (self.learns and self.planning.reward == "validation")

    @property
    def rests(self) -> bool:
        """Whether rounds are still played when a target is reached: people are still served."""
        served = self.planning.objective == "served"
        return served and self.federation.after_budget == "rest"


def load_config(
    *,
    preset: str | None = None,
    file: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
) -> Config:
    """Load a config from a preset, a TOML file and single values; later ones win.

    Args:
        preset: ``recommended`` or ``paper``; by default the file's, otherwise recommended.
        file: A TOML file, such as the ``config.toml`` of a run folder.
        settings: Values by dotted key, such as ``{"server.learning_rate": 0.02}``.
        before: Values of keys that the file does not have, such as :data:`BEFORE`.

    Raises:
        ConfigError: Naming the key, the value and what was expected.

    Example:
        >>> load_config(settings={"federation.rounds": 5}).federation.rounds
        5
    """
    from_file = _read_toml(Path(file)) if file is not None else {}
    is_run = from_file.pop("folder", None) is not None  # a run folder's own notes
    wanted = from_file.get("preset", "recommended") if preset is None else preset
    if wanted not in PRESETS:
        name = f"{file}: preset" if preset is None else "--preset"
        near = _nearest(str(wanted), PRESETS)
        raise ConfigError(f"{name} = {quoted(wanted)}: expected one of {', '.join(PRESETS)}{near}")
    from_file.pop("preset", None)
    now = _tree(settings or {})
    for tree, where, old in ((from_file, f"{file}: ", is_run), (now, "", before is not None)):
        _take_out_what_is_gone(tree, where, old)
        _check_keys(tree, where)
    given = _merged(_tree(before or {}), from_file, now)
    try:
        config = Config.model_validate(_with_preset(wanted, given))
    except ValidationError as error:
        raise ConfigError("; ".join(_describe(problem) for problem in error.errors())) from error
    _check_together(config)
    return config


def _take_out_what_is_gone(tree: dict[str, Any], where: str, old: bool) -> None:
    """Take settings of earlier versions out of an old run's; refuse them otherwise."""
    for key, why in GONE.items():
        section, _, name = key.partition(".")
        values = tree.get(section)
        if isinstance(values, dict) and name in values:
            if not old:
                raise ConfigError(f"{where}{key}: {why}")
            del values[name]


def _with_preset(preset: str, given: dict[str, Any]) -> dict[str, Any]:
    """The settings given, and those of the preset, which adapts itself to them."""
    tree = _merged(*map(packaged, [_variant(preset, given), *_readings(preset, given)]), given)
    tree["preset"] = preset
    planning, privacy = tree.setdefault("planning", {}), tree.setdefault("privacy", {})
    if _is_without_privacy(given):  # no mechanism means policy `unlimited`, and the other way
        for key, flag, value, other in (
            ("planning.policy", "--policy", "unlimited", "--mechanism none"),
            ("privacy.mechanism", "--mechanism", "none", "--policy unlimited"),
        ):
            found = _at(given, key)
            ConfigError.unless(found in (None, value), flag, found, f"{value}, for {other}")
        planning["policy"], privacy["mechanism"] = "unlimited", "none"
    if str(planning.get("policy")) in POLICIES.former:  # patient, which was told nothing
        planning |= {"context": "none", "reward": "none"} | given.get("planning", {})
    if planning.get("context") == "forecast":  # of an earlier release, for the policy patient
        planning["context"] = "none"
    if privacy.get("mechanism") == "auto":
        privacy["mechanism"] = _best_mechanism(privacy, planning)
    return tree


def _variant(preset: str, given: Mapping[str, Any]) -> str:
    """The variant of a preset for the model, and for a run without privacy."""
    if preset != "recommended" or _at(given, "model.name") in (None, *_SUMS):
        return preset
    return f"{preset}-unlimited" if _is_without_privacy(given) else f"{preset}-gradients"


def _readings(preset: str, given: Mapping[str, Any]) -> list[str]:
    """What the preset `paper` adds for a data set and a policy, as in Table 2."""
    wanted = (_at(given, "data.dataset"), _at(given, "planning.policy"))
    known = [name for name in wanted if name in ("filmtrust", "adpml", "adap")]
    return [f"paper-{name}" for name in known] if preset == "paper" else []


def _best_mechanism(privacy: Mapping[str, Any], planning: Mapping[str, Any]) -> str:
    """Return the accountant's mechanism, or else the one that adds the least noise."""
    accounting = str(privacy.get("accounting", "auto"))
    if accounting != "auto":
        known = accounting in ACCOUNTANTS
        return ACCOUNTANTS[accounting].mechanism if known else "gaussian"
    validates = planning.get("target") is not None or planning.get("reward") == "validation"
    trust, unit = str(privacy.get("trust", "secagg")), str(privacy.get("unit", "client"))
    return best_mechanism(trust, unit, validates=validates)


def _is_without_privacy(given: Mapping[str, Any]) -> bool:
    mechanism, policy = _at(given, "privacy.mechanism"), _at(given, "planning.policy")
    return bool(mechanism == "none" or policy == "unlimited")


def _check_together(config: Config) -> None:
    """Refuse settings that each could be, but not together."""
    try:
        POLICIES[config.planning.policy]  # also that a user's own can be imported
    except ConfigError as error:
        raise ConfigError(str(error).replace("policy", _named("planning.policy"), 1)) from error
    name = config.model.name
    own = name in Config.model_fields and bool(config.model.options)
    there = f"nothing: the settings of {name} are in [{name}]"
    ConfigError.unless(not own, "model.options", "given", there)
    if config.validates and not UNITS[config.privacy.unit].sound:
        target = config.planning.target is not None
        key = "planning.target" if target else "planning.reward"
        raise ConfigError(
            f"{_named(key)} = {_at(config.model_dump(), key)}: with privacy.unit = "
            f"{config.privacy.unit} nothing pays for validation; set privacy.unit=client, or "
            "planning.reward=test"
        )
    _check_expansions(config)
    _ = config.privacy.relation  # refuses one that does not go with the trust


def check_policy(name: str) -> None:
    """Refuse a policy of an earlier release: its runs can be read, but nothing is planned by it.

    Raises:
        ConfigError: If it is one; says what to use in its place.
    """
    if name in POLICIES.former:
        raise ConfigError(
            f"{_named('planning.policy')} = {name!r}: no longer exists; use bgt with --objective "
            f"last, or the schedule {POLICIES.former[name]}"
        )


def _check_expansions(config: Config) -> None:
    """Refuse graph expansion wherever it would break a promise, or is not possible."""
    times, mechanism = config.model.expansions, config.privacy.mechanism
    noisy = mechanism == "none" or isinstance(MECHANISMS[mechanism], Additive)
    fits = config.preset == "paper" and config.model.name == "fedgnn" and noisy
    fits = fits and config.privacy.trust == "local" and times < config.federation.rounds
    ConfigError.unless(
        fits or not times,
        "model.expansions",
        times,
        "0, unless with --preset paper, --model fedgnn, --trust local, a --mechanism that adds "
        "noise (or none) and more --rounds: the third party that matches users sees which of them "
        "rated the same items",
    )


def _tree(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key, as sections."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        if "preset" in (*path, last)[:1]:
            raise ConfigError(f"{key}: not a setting; choose a preset with --preset")
        target = tree
        for part in path:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise ConfigError(f"{key}: {part} is a single value, not a section")
        target[last] = value
    return tree


def differences(one: Config, other: Config) -> dict[str, Any]:
    """Return where another config differs, by dotted key, as far as it changes the result.

    The neighbouring relation ``auto`` does not differ from the one that it stands for.
    """
    mine, theirs = one.model_dump(mode="json"), other.model_dump(mode="json")
    for tree, config in ((mine, one), (theirs, other)):
        tree["privacy"]["neighbours"] = config.privacy.relation
    changed = {} if mine.pop("preset") == theirs.pop("preset") else {"preset": other.preset}
    return changed | {
        f"{section}.{key}": theirs[section].get(key)
        for section, values in mine.items()
        for key in (values | theirs[section])
        if values.get(key) != theirs[section].get(key) and f"{section}.{key}" not in INDIFFERENT
    }


def departures(config: Config) -> str:
    """Return in a sentence what the preset recommended changed for this model, or without privacy.

    Settings that were given are not listed: whoever gave them knows. Empty if nothing was changed.
    """
    private = config.privacy.mechanism != "none"
    chosen = {"model.name": config.model.name}
    chosen |= {} if private else {"privacy.mechanism": "none"}
    if _variant(config.preset, _tree(chosen)) in PRESETS:
        return ""
    why = "the model is trained by gradients"
    why = why if private else "without privacy there is no noise to withstand"
    usual, implied = load_config(), () if private else ("planning.", "privacy.")
    ours, before = config.model_dump(mode="json"), usual.model_dump(mode="json")
    changed = [
        f"{key} {value} instead of {_at(before, key)}"
        for key, value in differences(usual, load_config(settings=chosen)).items()
        if not key.startswith(implied) and _at(ours, key) == value
    ]
    return f"Not all settings are the recommended ones, since {why}: {', '.join(changed)}."


def identifying(config: Config) -> dict[str, Any]:
    """Return the settings that identify a run, without those that older runs did not have.

    They are left out where they say what older runs did, whose rounds are identified without them.
    """
    tree = config.model_dump(mode="json")
    tree["privacy"]["neighbours"] = config.privacy.relation
    if config.model.name != "tastes":
        del tree["tastes"]  # which older runs did not know, nor options of models
    if not config.model.options:
        del tree["model"]["options"]
    examples = tree["run"].pop("examples")
    tree["run"] |= {"devices": None, "examples": examples}  # as it was, in this order
    for key, value in BEFORE.items():
        section, _, name = key.partition(".")
        if _at(tree, key) == value:
            tree[section].pop(name, None)
    return tree


def _at(tree: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None if there is none."""
    section, _, name = key.partition(".")
    return tree.get(section, {}).get(name)


def _merged(*trees: Mapping[str, Any]) -> dict[str, Any]:
    """Return all sections in one; what comes later wins. The trees are left as they are."""
    merged: dict[str, Any] = {}
    for key, value in (entry for tree in trees for entry in tree.items()):
        if isinstance(value, Mapping):
            inside = merged.get(key)
            merged[key] = _merged(inside if isinstance(inside, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def to_toml(config: Config, folder: Mapping[str, Any] | None = None) -> str:
    """Return the settings as TOML for :func:`load_config`; unset ones are left out.

    Args:
        config: The settings.
        folder: Notes about a run folder, which are no settings, for a section of their own.
    """
    tree = config.model_dump()
    return tomli_w.dumps(_known(tree | ({"folder": folder} if folder else {})))


def _known(value: Any) -> Any:
    """Return the same without what is None, which TOML cannot say."""
    if isinstance(value, Mapping):
        return {str(key): _known(of) for key, of in value.items() if of is not None}
    return [_known(of) for of in value] if isinstance(value, list | tuple) else value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        content = read_bytes(path, MOST_BYTES_OF_SETTINGS, plain=False)
        text = content.decode("utf-8-sig")  # some editors write a byte order mark
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such config file; give one, such as the config.toml of a run"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a TOML file") from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: not valid TOML: {error}; expected lines such as those of --show-config"
        ) from error


def _check_keys(tree: Mapping[str, Any], where: str = "") -> None:
    """Refuse keys that do not exist, naming the nearest one that does.

    Also what pydantic lets pass: booleans as numbers, and text that is not UTF-8.
    """
    kinds = {
        f"{section}.{key}": str(kind)
        for section, entry in Config.model_fields.items()
        for key, kind in _types(entry.annotation).items()
    }
    for name, values in tree.items():
        if name not in Config.model_fields:
            inside = [f"{name}.{key}" for key in values] if isinstance(values, dict) else []
            homes = [key for key in kinds if key.endswith(f".{name}")]
            near = _nearest(homes[0] if homes else (inside or [name])[0], kinds)
            near = near or f"; expected one of {', '.join(Config.model_fields)}"
            raise ConfigError(f"{where}unknown section '{name}'{near}")
        if not isinstance(values, dict):
            raise ConfigError(f"{where}'{name}' is a section, not a value: write {name}.KEY")
        for key, value in values.items():
            if (full := f"{name}.{key}") not in kinds:
                own = [of.partition(".")[2] for of in kinds if of.startswith(f"{name}.")]
                near = _nearest(key, own) or _nearest(full, kinds)
                raise ConfigError(f"{where}unknown key '{full}'{near}")
            flag, plain = f"{where}{_named(full)}", isinstance(value, bool | str)
            fits = not isinstance(value, bool) or "bool" in kinds[full]
            ConfigError.unless(fits, flag, value, "a number or text, not true or false")
            fits = not plain or not _SURROGATE.search(str(value))
            ConfigError.unless(fits, flag, value, "text that can be written as UTF-8")


def _types(section: Any) -> dict[str, Any]:
    """The keys of a section with their declared types."""
    if is_dataclass(section):
        return {entry.name: entry.type for entry in fields(section)}
    entries = getattr(section, "model_fields", {})  # the preset has none
    return {name: entry.annotation for name, entry in entries.items()}


def _named(key: str) -> str:
    return f"{FLAGS[key]} ({key})" if key in FLAGS else key


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def expected(problem: Any) -> str:
    """Return what was expected, from one of pydantic's errors.

    Example:
        >>> expected({"type": "greater_than", "msg": "Input should be greater than 0"})
        'expected a number greater than 0'
    """
    message = str(problem["msg"])
    if problem["type"] == "int_parsing_size":
        return "expected a number of fewer digits"
    if message.startswith("Value error, "):
        return message.removeprefix("Value error, ")
    if not message.startswith("Input should be "):
        return f"expected {message[:1].lower()}{message[1:]}"
    message = message.removeprefix("Input should be ")
    return "expected " + ("a number " * message.startswith(("greater", "less"))) + message


def _describe(problem: Any) -> str:
    """Return one of pydantic's errors as one line: flag or key, value, what was expected."""
    location = [str(part) for part in problem["loc"]]
    if problem["type"] != "value_error":
        value = quoted(problem["input"])
        return f"{_named('.'.join(location[:2]))} = {value}: {expected(problem)}"
    if len(location) == 1:  # from a section's own check, which names the key itself
        return f"{location[0]}.{expected(problem)}"
    return f"{_named('.'.join(location[:2]))} = {expected(problem).partition(' = ')[2]}"
