"""Reads a gateway's configuration file: YAML, in our own form or the reference's.

A file with ``space`` and ``participants`` in place of ``spaces`` is the reference's ``space.yaml``:
its one space speaks ``mew/v0.4`` unless it says otherwise (PROTOCOL 1). What stands under
``gateway``, ``journal``, ``http`` and ``tls`` can also be set in the environment, as
``MEUP_GATEWAY_PORT``, ``MEUP_GATEWAY_JOURNAL_PATH`` and so on; the environment wins.

The environment is laid over what YAML holds, the whole is checked against the forms once, and the
first problem becomes one sentence in :func:`_describe_problem`, the only place that words one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

import yaml
from pydantic import TypeAdapter, ValidationError

from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.gateway import space_yaml
from meup_agent.gateway.config import FORMS, SECTIONS, Config, OurFile, ReferenceFile, Sections
from meup_agent.gateway.limits import LIMIT_ROWS, GatewayLimits
from meup_agent.gateway.logs import log

S = TypeVar("S", bound="Sections")

MakeTokens = Literal["never", "existing", "always"]

# --- the environment ---

ENVIRONMENT_PREFIX: Final = "MEUP_GATEWAY_"

SETTINGS: Final = {
    each.name if section == "gateway" else f"{section}_{each.name}": (section, each.name)
    for section, form in SECTIONS.items()
    for each in fields(form)
}
"""The section and key of a setting, by its name in the environment."""

_ADDRESS: Final = ("host", "port", "insecure")
_RECORDS: Final = ("journal", "http", "tls")
_PATHS: Final = ("journal_path", "tls_certificate", "tls_key")


def variable_of(setting: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + setting.upper()


def _with_environment(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A file's keys, with paths that begin at its folder, and the environment over them."""
    for variable in os.environ:
        setting = variable.upper().removeprefix(ENVIRONMENT_PREFIX).lower()
        if variable.upper().startswith(ENVIRONMENT_PREFIX) and setting not in SETTINGS:
            advice = _suggest(setting, SETTINGS, variable_of)
            log.warning("%s means nothing to a gateway; %s", variable, advice)
    environment = {variable.upper(): value for variable, value in os.environ.items() if value}
    # A section of which only the key is given, as `http:`, is empty.
    laid: dict[str, Any] = {
        key: {} if key in SECTIONS and value is None else value for key, value in raw.items()
    }
    for setting, (section, key) in SETTINGS.items():
        if not isinstance(laid.get(section, {}), dict):
            continue  # the form refuses it
        entries = _object(laid.get(section))
        value = entries.get(key)
        if variable_of(setting) in environment:
            laid[section] = {**entries, key: environment[variable_of(setting)]}
        elif setting in _PATHS and isinstance(value, str) and value:
            laid[section] = {**entries, key: folder / value}
    return laid


# --- the file ---


def load_config(
    path: str | Path, *, needs_tokens: bool = True, make_tokens: MakeTokens = "never"
) -> Config:
    """Read a configuration file, and what the environment says over it.

    Paths in the file begin at the file's own folder, those in the environment where the program
    runs. With ``needs_tokens`` the log warns of participants that have none. ``make_tokens`` says
    when those of the reference's file get one in ``.mew/tokens``: ``existing`` is where there is
    such a folder ``.mew``.

    Raises:
        ConfigurationError: The file cannot be read, or something in it or in the environment is
            wrong; the message says which file, which key, and what was expected.
    """
    path = Path(path)
    raw = _read(path)
    form: type[OurFile | ReferenceFile] = OurFile if "spaces" in raw else ReferenceFile
    existing = False
    try:
        if {"space", "spaces"} <= raw.keys():
            raise ConfigurationError("expected one of the keys 'space' and 'spaces', not both")
        if make_tokens == "always" and form is OurFile:
            raise ConfigurationError("tokens are made for a file with 'space' alone; list them")
        if form is ReferenceFile:
            existing = space_yaml.is_existing(path)
            raw = space_yaml.understood(raw, path)
            if existing:
                raw["gateway"] = {"port": space_yaml.REFERENCE_PORT, **_object(raw.get("gateway"))}
        file = _check(form, raw, space_yaml.base_of(path))
        config = Config(file.read())
        if form is ReferenceFile:
            make = make_tokens == "always" or (existing and make_tokens == "existing")
            config = space_yaml.with_tokens(config, path, make=make)
        config = _lay_over(config, file)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    for space in config.spaces if needs_tokens else ():
        for name, entry in space.participants.items():
            if not (entry.tokens or entry.token_hashes or entry.token_files):
                log.warning("%s: %s in space %s has no token; it cannot join", path, name, space.id)
    return config


def environment_over(config: Config) -> Config:
    """A configuration, and what the environment says over it.

    Raises:
        ConfigurationError: Something in the environment is wrong.
    """
    address = {key: getattr(config, key) for key in _ADDRESS}
    records = {name: getattr(config, name) for name in _RECORDS}
    raw = {name: asdict(record) for name, record in records.items() if record is not None}
    return _lay_over(config, _check(Sections, {**raw, "gateway": asdict(config.limits) | address}))


def _check(form: type[S], raw: Mapping[str, Any], folder: Path = Path()) -> S:
    """The keys of a file, and the environment over them, in their form."""
    try:
        return TypeAdapter(form).validate_python(_with_environment(raw, folder), context=folder)
    except ValidationError as error:
        raise ConfigurationError(_describe_problem(error, form)) from None


def _lay_over(config: Config, sections: Sections) -> Config:
    """A configuration with these sections, checked as a whole."""
    gateway = sections.gateway
    limits = GatewayLimits(**{row.name: getattr(gateway, row.name) for row in LIMIT_ROWS})
    if len(config.spaces) > limits.max_spaces:
        many = f"{len(config.spaces)} are more than max_spaces, which is {limits.max_spaces}"
        raise ConfigurationError(f"spaces: {many}")
    config.tokens()  # each token is one participant's alone
    address = {key: getattr(gateway, key) for key in _ADDRESS}
    records = {name: getattr(sections, name) for name in _RECORDS}
    return replace(config, limits=limits, **address, **records)


def yaml_problem(error: yaml.MarkedYAMLError) -> str:
    """The problem of a file, in a sentence that says itself what was expected."""
    problem = str(error.problem)
    found = problem.rpartition(", but ")[2] if problem.startswith("expected ") else ""
    return found or problem


def _read(path: Path) -> dict[str, Any]:
    try:
        raw: object = yaml.load(path.read_text(encoding="utf-8"), Loader=StrictLoader)
    except OSError as error:
        why = system_reason(error)
        said = f": cannot be read ({why}); give the path of a gateway's YAML file"
    except UnicodeDecodeError:
        said = ": expected YAML in UTF-8"
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        said = f"{where}: expected YAML, but {yaml_problem(error)}"
    except yaml.YAMLError:
        said = ": expected YAML in printable characters"
    except ValueError as error:
        # A word that has the form of a date, and is none: 2024-13-45.
        said = f": a value looks like a date and is none ({error}); put it in quotes"
    else:
        if isinstance(raw, dict):
            return cast("dict[str, Any]", raw)
        said = ": expected the key 'spaces'"
    raise ConfigurationError(f"{path}{said}")


def _object(value: object) -> dict[str, Any]:
    """The value if it is an object; anything else is reported when it is checked."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


class StrictLoader(yaml.SafeLoader):
    """YAML without surprises: a key that stands twice is an error, not a loss of the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping; raises for a key that stands twice."""
        seen: set[tuple[str, str]] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                twice = f"the key {key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, twice, key.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


# --- the sentence about a wrong key ---

_UNKNOWN: Final = "unexpected_keyword_argument"

_SENTENCES: Final = {
    "missing": "is missing",
    "dataclass_type": "expected keys and values",
    "dict_type": "expected keys and values",
    "tuple_type": "expected a list",
    "string_type": "expected a text; put it in quotes",
    "invalid_key": "expected a text; put it in quotes",
    "path_type": "expected a path",
    "too_short": "expected at least one space",
}
"""Sentences in the words of a file, not of the types behind it."""


def _describe_problem(error: ValidationError, form: type[Any]) -> str:
    """The first problem: its key and what was expected. The value stays out, it may be secret.

    Of several problems an unknown key is told first, since it may be what is missing elsewhere,
    misspelt.
    """
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    problem = next((each for each in problems if each["type"] == _UNKNOWN), problems[0])
    kind, location = problem["type"], problem["loc"]
    # Pydantic ends the place so where the key itself is wrong, which may be a number.
    if location[-1:] == ("[key]",) or kind == "invalid_key":
        names = location[:-1] if location[-1:] == ("[key]",) else location
        location = (*names[:-1], str(names[-1]))
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)[1:]
    if kind == _UNKNOWN:
        return f"{key}: unknown key; {_suggest(str(location[-1]), _keys_at(form, location))}"
    message = problem["msg"].replace("Input should be", "expected").removeprefix("Value error, ")
    said = _SENTENCES.get(kind, message)
    for setting, place in SETTINGS.items():
        if place == location:
            said += f" (or {variable_of(setting)} in the environment)"
    # What is wrong with a capability or a limit says itself where below the key it stands.
    below = "." if location == ("gateway",) and kind == "value_error" else ": "
    return f"{key}{'' if said.startswith('[') else below}{said}"


def _keys_at(form: type[Any], location: tuple[int | str, ...]) -> list[str]:
    """The keys that the mapping at a place can have."""
    parts = iter(location[:-1])
    for part in parts:
        form = FORMS[str(part)]
        if part in ("spaces", "participants"):
            next(parts)
    return [each.name for each in fields(form)]


def _suggest(name: str, known: Iterable[str], written: Callable[[str], str] = str) -> str:
    """Advice about a name that means nothing, from names that do, as these are to be written."""
    near = get_close_matches(name, tuple(known), 1)
    return f"did you mean {written(near[0])}?" if near else "remove it, or correct its spelling"
