"""A gateway's ports, journal and limits, each from the environment, the file or its default."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.config import (
    DEFAULT_HOST,
    DEFAULT_HTTP_PORT,
    DEFAULT_PORT,
    Config,
    HttpConfig,
    JournalConfig,
    Limits,
    TlsConfig,
)
from meup_agent.gateway.logs import log

ENVIRONMENT_PREFIX: Final = "MEUP_GATEWAY_"

SECTIONS: Final = ("journal", "http", "tls")
"""Keys of the file whose own keys have the section's name in front, here and in the environment;
those of the section ``gateway`` have nothing in front."""

_LIMITS = Limits()
_JOURNAL = JournalConfig()


class Settings(BaseSettings):
    """Everything that a file and the environment can both say, by its name in the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, env_ignore_empty=True
    )

    host: str = DEFAULT_HOST
    port: int = Field(DEFAULT_PORT, ge=0, le=65535)
    insecure: bool = False

    max_connections: int = _LIMITS.max_connections
    max_spaces: int = _LIMITS.max_spaces
    max_members: int = _LIMITS.max_members
    max_observers: int = _LIMITS.max_observers
    max_message_bytes: int = _LIMITS.max_message_bytes
    max_depth: int = _LIMITS.max_depth
    max_queued_frames: int = _LIMITS.max_queued_frames
    max_queued_bytes: int = _LIMITS.max_queued_bytes
    max_participant_queued_bytes: int = _LIMITS.max_participant_queued_bytes
    max_gateway_queued_bytes: int = _LIMITS.max_gateway_queued_bytes
    max_streams: int = _LIMITS.max_streams
    slow_reader_seconds: float = _LIMITS.slow_reader_seconds
    messages_per_second: float = _LIMITS.messages_per_second
    messages_burst: int = _LIMITS.messages_burst
    bytes_per_second: float = _LIMITS.bytes_per_second
    bytes_burst: int = _LIMITS.bytes_burst
    frames_per_second: float = _LIMITS.frames_per_second
    frames_burst: int = _LIMITS.frames_burst
    withdrawals_per_second: float = _LIMITS.withdrawals_per_second
    withdrawals_burst: int = _LIMITS.withdrawals_burst
    max_open_proposals: int = _LIMITS.max_open_proposals
    joins_per_second: float = _LIMITS.joins_per_second
    joins_burst: int = _LIMITS.joins_burst
    strangers_per_second: float = _LIMITS.strangers_per_second
    strangers_burst: int = _LIMITS.strangers_burst
    failed_tokens: int = _LIMITS.failed_tokens
    failed_token_seconds: float = _LIMITS.failed_token_seconds
    handshake_timeout: float = _LIMITS.handshake_timeout
    join_timeout: float = _LIMITS.join_timeout
    join_frames: int = _LIMITS.join_frames
    ping_interval: float = _LIMITS.ping_interval
    ping_deadline: float = _LIMITS.ping_deadline
    close_timeout: float = _LIMITS.close_timeout
    stop_timeout: float = _LIMITS.stop_timeout

    journal_path: Path | None = None
    journal_synchronous: Literal["normal", "full"] = _JOURNAL.synchronous
    journal_accept_damage: bool = _JOURNAL.accept_damage
    journal_max_age: float | None = Field(None, gt=0)
    journal_max_bytes: int | None = Field(None, gt=0)
    journal_memory_entries: int = Field(_JOURNAL.memory_entries, gt=0)
    journal_memory_bytes: int = Field(_JOURNAL.memory_bytes, gt=0)

    http_host: str | None = None
    http_port: int | None = Field(None, ge=0, le=65535)

    tls_certificate: Path | None = None
    tls_key: Path | None = None

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

    def over(self, config: Config) -> Config:
        """A configuration with these settings.

        Raises:
            ConfigurationError: Two of them do not go together.
        """
        try:
            limits = Limits(**{limit.name: getattr(self, limit.name) for limit in fields(Limits)})
        except ConfigurationError as error:
            raise ConfigurationError(f"gateway.{error}") from None
        journal = {
            field.name: getattr(self, f"journal_{field.name}") for field in fields(JournalConfig)
        }
        return replace(
            config,
            host=self.host,
            port=self.port,
            insecure=self.insecure,
            limits=limits,
            journal=JournalConfig(**journal),
            http=self._http(config.http),
            tls=self._tls(),
        )

    def _http(self, given: HttpConfig | None) -> HttpConfig | None:
        """The HTTP port, if the file has a section for it or the environment says where."""
        if given is None and self.http_host is None and self.http_port is None:
            return None
        return HttpConfig(
            DEFAULT_HOST if self.http_host is None else self.http_host,
            DEFAULT_HTTP_PORT if self.http_port is None else self.http_port,
        )

    def _tls(self) -> TlsConfig | None:
        if self.tls_certificate is not None and self.tls_key is not None:
            return TlsConfig(self.tls_certificate, self.tls_key)
        if self.tls_certificate is not None:
            raise ConfigurationError("tls.key: is missing; give the key of the certificate")
        if self.tls_key is not None:
            raise ConfigurationError("tls.certificate: is missing; give the certificate of the key")
        return None


def read_settings(
    config: Config, gateway: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]]
) -> Config:
    """A configuration with what a file says of it, and the environment over that.

    Args:
        config: The rest of the configuration.
        gateway: What stands under ``gateway`` in the file.
        sections: What stands under each of :data:`SECTIONS`.

    Raises:
        ConfigurationError: Something in the file or in the environment is wrong.
    """
    for section, entries in {"gateway": gateway, **sections}.items():
        known = {
            name.removeprefix(f"{section}_")
            for name in Settings.model_fields
            if _section(name) == section
        }
        for key in entries.keys() - known:
            raise ConfigurationError(f"{section}.{key}: unknown key; {suggest(key, known)}")
    given = dict(gateway)
    for section, entries in sections.items():
        given |= {f"{section}_{key}": value for key, value in entries.items()}
    warn_of_misspelt(os.environ)
    try:
        return Settings(**given).over(config)
    except ValidationError as error:
        name, problem = describe_problem(error)
        section = _section(name)
        place = name.removeprefix(f"{section}_")
        variable = f" (or {variable_of(name)} in the environment)"
        told = variable if name in Settings.model_fields else ""
        raise ConfigurationError(f"{section}.{place}: {problem}{told}") from None


def environment_over(config: Config) -> Config:
    """A configuration, and what the environment says over it.

    Raises:
        ConfigurationError: Something in the environment is wrong.
    """
    sections: dict[str, dict[str, Any]] = {"journal": asdict(config.journal)}
    if config.http is not None:
        sections["http"] = asdict(config.http)
    if config.tls is not None:
        sections["tls"] = asdict(config.tls)
    given = {
        "host": config.host,
        "port": config.port,
        "insecure": config.insecure,
        **asdict(config.limits),
    }
    return read_settings(config, given, sections)


def warn_of_misspelt(environment: Iterable[str]) -> None:
    """Warn of variables that look as if they were a gateway's, and are not."""
    for variable in environment:
        name = variable.upper().removeprefix(ENVIRONMENT_PREFIX).lower()
        if variable.upper().startswith(ENVIRONMENT_PREFIX) and name not in Settings.model_fields:
            advice = suggest(name, Settings.model_fields, variable_of)
            log.warning("%s means nothing to a gateway; %s", variable, advice)


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + name.upper()


def _section(name: str) -> str:
    """The section of the file that a setting stands in."""
    return next((section for section in SECTIONS if name.startswith(f"{section}_")), "gateway")


def describe_problem(
    error: ValidationError, form: type[BaseModel] | None = None
) -> tuple[str, str]:
    """The first problem: its key and what was expected. The value stays out, it may be secret.

    Args:
        error: What pydantic found. Of several problems an unknown key is told first, since it may
            be what is missing elsewhere, misspelt.
        form: What the file has; with it, an unknown key is told what was perhaps meant.
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
    return key, problem["msg"].replace("Input should be", "expected")


def suggest(name: str, known: Iterable[str], written: Callable[[str], str] = str) -> str:
    """What to do about a name that means nothing.

    Args:
        name: The name.
        known: What it could have been.
        written: How one of these is written.
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


_EXPECTED: Final = {
    "dataclass_type": "keys and values",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "a text; put it in quotes",
    "path_type": "a path",
}
"""What was expected, in the words of a file, not of the types behind it."""
