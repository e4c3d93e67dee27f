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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from meup_agent.errors import ConfigurationError, explain_os_error
from meup_agent.gateway import space_yaml
from meup_agent.gateway.config import (
    SECTIONS,
    Config,
    FromEnvironment,
    OurFile,
    ReferenceFile,
    Sections,
    read_nats,
    read_postgres,
    values_of,
)
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.logs import log
from meup_agent.strict_yaml import parse_yaml

S = TypeVar("S", bound="Sections")

# --- the environment ---

ENVIRONMENT_PREFIX: Final = "MEUP_GATEWAY_"

SETTINGS: Final = {
    each.name if section == "gateway" else f"{section}_{each.name}": (section, each.name)
    for section, form in SECTIONS.items()
    for each in fields(form)
} | {
    # What differs from machine to machine, so that the file need not.
    "journal_nats_advertise": ("journal", "nats.advertise"),
    "journal_nats_node": ("journal", "nats.node"),
    "journal_postgres_node": ("journal", "postgres.node"),
    # Secrets, which need not stand in the file.
    "journal_postgres_password": ("journal", "postgres.password"),
}
"""The section and key of a setting, by its name in the environment."""

_KEYS_OF_CONFIG: Final = ("host", "port", "insecure", "tracing")
_RECORDS: Final = ("journal", "http", "tls")


def variable_of(setting: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + setting.upper()


def _with_environment(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A file's keys, and the environment over them."""
    # A section of which only the key is given, as `http:`, is empty.
    empty = {key: dict[str, Any]() for key in SECTIONS if key in raw and raw[key] is None}
    laid = {**raw, **empty}
    for variable, value in os.environ.items():
        if not variable.upper().startswith(ENVIRONMENT_PREFIX):
            continue
        setting = variable.upper().removeprefix(ENVIRONMENT_PREFIX).lower()
        section, key = SETTINGS.get(setting, ("", ""))
        if not key:
            advice = _suggest(setting, SETTINGS, variable_of)
            log.warning("%s means nothing to a gateway; %s", variable, advice)
        elif value and isinstance(laid.setdefault(section, {}), dict):  # else the form refuses it
            laid[section] = _with_key(laid[section], key, FromEnvironment(value))
    return laid


def _with_key(section: Mapping[str, Any], key: str, value: str) -> dict[str, Any]:
    """A section with another value, of a key in one of its keys perhaps: ``nats.node``."""
    outer, _, inner = key.partition(".")
    if not inner:
        return {**section, key: value}
    within: Any = section.get(outer) or {}
    # The addresses alone, as one text, are keys, too.
    keys = read_nats(within) if outer == "nats" else read_postgres(within)
    return {**section, outer: {**keys, inner: value} if isinstance(keys, dict) else keys}


# --- the file ---


def load_config(
    path: str | Path, *, needs_tokens: bool = True, make_tokens: space_yaml.MakeTokens = "never"
) -> Config:
    """Read a configuration file, and what the environment says over it.

    Paths in the file begin at the file's own folder, those in the environment where the program
    runs. With ``needs_tokens`` the log warns of participants that have none. ``make_tokens`` says
    when those of the reference's file get one in ``.mew/tokens``.

    Raises:
        ConfigurationError: The file cannot be read, or something in it or in the environment is
            wrong; the message says which file, which key, and what was expected.
    """
    path = Path(path)
    raw = _read(path)
    base = space_yaml.base_of(path)
    try:
        if {"space", "spaces"} <= raw.keys():
            raise ConfigurationError("expected one of the keys 'space' and 'spaces', not both")
        if "spaces" in raw:
            if make_tokens == "always":
                raise ConfigurationError("tokens are made for a file with 'space' alone; list them")
            file: OurFile | ReferenceFile = _check(OurFile, raw, base)
            config = Config(file.read())
        else:
            file = _check(ReferenceFile, space_yaml.understood(raw, path), base)
            config = space_yaml.with_tokens(Config(file.read()), path, make=make_tokens)
        config = _lay_over(config, file)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    # As `meup up` does by itself, which starts from the same file.
    made = " (--make-tokens makes one)" if config.spaces[0].state is not None else ""
    for (space, name), entry in config.entries() if needs_tokens else ():
        if not entry.has_token:
            log.warning(
                "%s: %s in space %s has no token; it cannot join%s", path, name, space, made
            )
    return config


def environment_over(config: Config) -> Config:
    """A configuration, and what the environment says over it.

    Raises:
        ConfigurationError: Something in the environment is wrong.
    """
    raw = {name: asdict(getattr(config, name)) for name in _RECORDS if getattr(config, name)}
    raw["gateway"] = asdict(config.limits) | {key: getattr(config, key) for key in _KEYS_OF_CONFIG}
    return _lay_over(config, _check(Sections, raw))


def _check(form: type[S], raw: Mapping[str, Any], folder: Path = Path()) -> S:
    """The keys of a file, and the environment over them, in their form."""
    try:
        return TypeAdapter(form).validate_python(_with_environment(raw), context=folder)
    except ValidationError as error:
        raise ConfigurationError(_describe_problem(error, form)) from None


def _lay_over(config: Config, sections: Sections) -> Config:
    """A configuration with these sections, checked as a whole."""
    gateway = sections.gateway
    limits = GatewayLimits(**values_of(GatewayLimits, gateway))
    if len(config.spaces) > limits.max_spaces:
        many = f"{len(config.spaces)} are more than max_spaces, which is {limits.max_spaces}"
        raise ConfigurationError(f"spaces: {many}")
    config.tokens()  # each token is one participant's alone
    address = {key: getattr(gateway, key) for key in _KEYS_OF_CONFIG}
    records = {name: getattr(sections, name) for name in _RECORDS}
    notify = sections.notify or config.notify
    return replace(config, limits=limits, notify=notify, **address, **records)


def _read(path: Path) -> dict[str, Any]:
    with explain_os_error(f"{path}: cannot be read", "; give the path of a gateway's YAML file"):
        raw = parse_yaml(path.read_bytes(), str(path))
    if not isinstance(raw, dict):
        raise ConfigurationError(f"{path}: expected the key 'spaces'")
    return cast("dict[str, Any]", raw)


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
    "too_short": "expected at least one",
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
        *names, wrong = (part for part in location if part != "[key]")
        location = (*names, str(wrong))
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)[1:]
    if kind == _UNKNOWN:
        return f"{key}: unknown key; {_suggest(str(location[-1]), _keys_at(form, location))}"
    message = problem["msg"].replace("Input should be", "expected").removeprefix("Value error, ")
    said = _SENTENCES.get(kind, message)
    for setting, place in SETTINGS.items():
        if ".".join(place) == key:
            said += f" (or {variable_of(setting)} in the environment)"
    # What is wrong with a capability or a limit says itself where below the key it stands.
    below = "." if location == ("gateway",) and kind == "value_error" else ": "
    return f"{key}{'' if said.startswith('[') else below}{said}"


def _keys_at(form: Any, location: tuple[int | str, ...]) -> list[str]:
    """The keys that the mapping at a place can have."""
    parts = iter(location[:-1])
    for part in parts:
        if isinstance(part, int):  # a place in a list, whose form has been found
            continue
        held = get_type_hints(form)[part]
        form = next(filter(is_dataclass, (held, *get_args(held))))
        if get_origin(held) is dict:
            next(parts)  # the name of a space or a participant
    return [each.name for each in fields(form)]


def _suggest(name: str, known: Iterable[str], written: Callable[[str], str] = str) -> str:
    """Advice about a name that means nothing, from names that do, as these are to be written."""
    near = get_close_matches(name, tuple(known), 1)
    return f"did you mean {written(near[0])}?" if near else "remove it, or correct its spelling"
