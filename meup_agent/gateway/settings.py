"""A gateway's ports, journal and limits, each from the environment, the file or its default.

The keys, their types, bounds and defaults are those of the records in
:mod:`~meup_agent.gateway.config` and :mod:`~meup_agent.gateway.limits`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields, replace
from difflib import get_close_matches
from typing import Any, Final, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError, create_model
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.config import Config, HttpConfig, JournalConfig, TlsConfig
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.logs import log

ENVIRONMENT_PREFIX: Final = "MEUP_GATEWAY_"

SECTIONS: Final = {"journal": JournalConfig, "http": HttpConfig, "tls": TlsConfig}
"""Sections of the file whose keys have the section's name in front, here and in the environment;
those of the section ``gateway`` have nothing in front."""

_OWN_KEYS: Final = ("host", "port", "insecure")
"""Keys of the section ``gateway`` besides the limits."""


class _EnvironmentFirst(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, env_ignore_empty=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment over what is given."""
        return env_settings, init_settings


def _keys_of(record: Any, section: str = "", only: Iterable[str] = ()) -> dict[str, Any]:
    """The fields of a record, as fields of a model."""
    hints = get_type_hints(record, include_extras=True)
    keys: dict[str, Any] = {}
    for each in fields(record):
        if only and each.name not in only:
            continue
        hint, default = hints[each.name], each.default
        if section in ("http", "tls"):
            # Whether there is a port or a certificate depends on what is said at all.
            hint, default = hint | None, None
        name = f"{section}_{each.name}" if section else each.name
        keys[name] = (hint, ... if default is MISSING else default)
    return keys


GatewaySettings: Final[type[BaseSettings]] = create_model(
    "GatewaySettings",
    __base__=_EnvironmentFirst,
    **_keys_of(Config, only=_OWN_KEYS),
    **_keys_of(GatewayLimits),
    **{
        key: value
        for name, record in SECTIONS.items()
        for key, value in _keys_of(record, name).items()
    },
)
"""Everything that a file and the environment can both say, by its name in the environment."""


def read_settings(
    config: Config, gateway: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]]
) -> Config:
    """A configuration with what a file says of it, and the environment over that.

    Args:
        config: The rest of the configuration.
        gateway: The section ``gateway`` of the file.
        sections: Each of :data:`SECTIONS` in the file.

    Raises:
        ConfigurationError: Something in the file or in the environment is wrong.
    """
    for section, entries in {"gateway": gateway, **sections}.items():
        known = {
            name.removeprefix(f"{section}_")
            for name in GatewaySettings.model_fields
            if _section(name) == section
        }
        for key in entries.keys() - known:
            raise ConfigurationError(f"{section}.{key}: unknown key; {suggest(key, known)}")
    given = dict(gateway)
    for section, entries in sections.items():
        given |= {f"{section}_{key}": value for key, value in entries.items()}
    warn_of_misspelt(os.environ)
    try:
        settings = GatewaySettings(**given)
    except ValidationError as error:
        name, problem = describe_problem(error)
        section = _section(name)
        place = name.removeprefix(f"{section}_")
        variable = f" (or {variable_of(name)} in the environment)"
        told = variable if name in GatewaySettings.model_fields else ""
        raise ConfigurationError(f"{section}.{place}: {problem}{told}") from None
    return _with_settings(config, settings)


def environment_over(config: Config) -> Config:
    """A configuration, and what the environment says over it.

    Raises:
        ConfigurationError: Something in the environment is wrong.
    """
    given = {key: getattr(config, key) for key in _OWN_KEYS} | asdict(config.limits)
    records = {name: getattr(config, name) for name in SECTIONS}
    sections = {name: asdict(record) for name, record in records.items() if record is not None}
    return read_settings(config, given, sections)


def _with_settings(config: Config, settings: BaseSettings) -> Config:
    """A configuration with all settings.

    Raises:
        ConfigurationError: Two of them do not go together.
    """

    def given(record: Any, section: str = "") -> dict[str, Any]:
        prefix = f"{section}_" if section else ""
        values = {each.name: getattr(settings, prefix + each.name) for each in fields(record)}
        return {name: value for name, value in values.items() if value is not None}

    try:
        limits = GatewayLimits(**given(GatewayLimits))
    except ConfigurationError as error:
        raise ConfigurationError(f"gateway.{error}") from None
    http, tls = given(HttpConfig, "http"), given(TlsConfig, "tls")
    for key, missing in (("key", "the key of the certificate"), ("certificate", "its certificate")):
        if tls and key not in tls:
            raise ConfigurationError(f"tls.{key}: is missing; give {missing}")
    return replace(
        config,
        **{key: getattr(settings, key) for key in _OWN_KEYS},
        limits=limits,
        journal=JournalConfig(**given(JournalConfig, "journal")),
        http=HttpConfig(**http) if http or config.http is not None else None,
        tls=TlsConfig(**tls) if tls else None,
    )


def warn_of_misspelt(environment: Iterable[str]) -> None:
    """Warn of variables that look as if they were a gateway's, and are not."""
    for variable in environment:
        name = variable.upper().removeprefix(ENVIRONMENT_PREFIX).lower()
        known = GatewaySettings.model_fields
        if variable.upper().startswith(ENVIRONMENT_PREFIX) and name not in known:
            advice = suggest(name, known, variable_of)
            log.warning("%s means nothing to a gateway; %s", variable, advice)


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + name.upper()


def _section(name: str) -> str:
    """The section of the file that a setting stands in."""
    return next((section for section in SECTIONS if name.startswith(f"{section}_")), "gateway")


# --- what is said of wrong ones ---

_EXPECTED: Final = {
    "dataclass_type": "keys and values",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "a text; put it in quotes",
    "path_type": "a path",
    "too_short": "at least one space",
}
"""The expected type, in the words of a file, not of the types behind it."""


def describe_problem(
    error: ValidationError, form: type[BaseModel] | None = None
) -> tuple[str, str]:
    """The first problem: its key and what was expected. The value stays out, it may be secret.

    Args:
        error: The problems that pydantic found. Of several an unknown key is told first, since it
            may be what is missing elsewhere, misspelt.
        form: The form of the file; with it, an unknown key is told what was perhaps meant.
    """
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    problem = next((each for each in problems if each["type"] == "extra_forbidden"), problems[0])
    key = _key(problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = () if form is None else _keys_at(form, problem["loc"])
        return key, f"unknown key; {suggest(str(problem['loc'][-1]), known)}"
    if problem["type"] == "missing":
        return key, "is missing"
    expected = _EXPECTED.get(problem["type"])
    if expected is not None:
        return key, f"expected {expected}"
    return key, problem["msg"].replace("Input should be", "expected").removeprefix("Value error, ")


def suggest(name: str, known: Iterable[str], written: Callable[[str], str] = str) -> str:
    """Advice about a name that means nothing.

    Args:
        name: The name.
        known: Names that mean something.
        written: Writes one of these as it is to be given.
    """
    near = get_close_matches(name, tuple(known), 1)
    return f"did you mean {written(near[0])}?" if near else "remove it, or correct its spelling"


def _key(location: tuple[int | str, ...]) -> str:
    """A place in a file: ``participants.alice.tokens[0]``."""
    # Pydantic says so where the key itself is wrong, which may be a number.
    parts = (*location[:-2], str(location[-2])) if location[-1:] == ("[key]",) else location
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts
    ).removeprefix(".")


def _keys_at(form: type[BaseModel], location: tuple[int | str, ...]) -> Iterable[str]:
    """The keys that the mapping at a place can have."""
    parts = iter(location[:-1])
    for part in parts:
        annotation = form.model_fields[str(part)].annotation
        if get_origin(annotation) is dict:
            next(parts)
        form = next(_forms_in(annotation))
    return form.model_fields


def _forms_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _forms_in(argument)
