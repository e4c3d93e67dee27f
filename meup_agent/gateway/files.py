"""Reads a gateway's configuration file: YAML, in the form that existing gateways use.

::

    space: {id: demo, name: Our demo}
    participants:
      alice:
        tokens: [alice-token]
        capabilities: [{kind: chat}]
    defaults:                       # for participants that list no capabilities
      capabilities: [{kind: chat}]
    gateway: {host: 0.0.0.0, port: 8420, max_connections: 100}

What stands under ``gateway`` can also be set in the environment, as ``MEUP_GATEWAY_PORT`` and so
on; the environment wins.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from meup_agent.errors import ConfigurationError, InvalidPattern
from meup_agent.gateway.config import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    Config,
    Limits,
    ParticipantConfig,
    SpaceConfig,
    check_id,
    participant,
)
from meup_agent.gateway.logs import log

ENVIRONMENT_PREFIX: Final = "MEUP_GATEWAY_"

IGNORED_OF_A_SPACE: Final = frozenset({"description", "default_participant", "ui_theme"})
IGNORED_OF_A_PARTICIPANT: Final = frozenset(
    {
        "args",
        "auto_connect",
        "auto_start",
        "bridge_config",
        "command",
        "cwd",
        "env",
        "fifo",
        "mcp_server",
        "output_log",
        "type",
    }
)
"""What other gateways' files say of starting participants: this gateway starts nobody. These keys
are taken with a warning; any other unknown key is an error, since it may be a typing mistake."""


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Space(_Form):
    id: str
    name: str = ""


class _Participant(_Form):
    tokens: tuple[SecretStr, ...] = ()
    capabilities: tuple[dict[str, Any], ...] | None = None


class _Defaults(_Form):
    capabilities: tuple[dict[str, Any], ...] = ()


class _Settings(BaseSettings):
    """Host, port and limits, each from the environment, the file or its default."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, env_ignore_empty=True
    )

    host: str = DEFAULT_HOST
    port: int = Field(DEFAULT_PORT, ge=0, le=65535)
    max_connections: int = Limits().max_connections
    max_spaces: int = Limits().max_spaces
    max_members: int = Limits().max_members
    max_message_bytes: int = Limits().max_message_bytes
    max_depth: int = Limits().max_depth
    max_queued_frames: int = Limits().max_queued_frames
    max_queued_bytes: int = Limits().max_queued_bytes
    messages_per_second: float = Limits().messages_per_second
    messages_burst: int = Limits().messages_burst
    withdrawals_per_second: float = Limits().withdrawals_per_second
    withdrawals_burst: int = Limits().withdrawals_burst
    max_open_proposals: int = Limits().max_open_proposals
    failed_tokens: int = Limits().failed_tokens
    failed_token_seconds: float = Limits().failed_token_seconds
    handshake_timeout: float = Limits().handshake_timeout
    join_timeout: float = Limits().join_timeout
    ping_interval: float = Limits().ping_interval
    ping_deadline: float = Limits().ping_deadline
    close_timeout: float = Limits().close_timeout
    stop_timeout: float = Limits().stop_timeout

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings

    def limits(self) -> Limits:
        return Limits(**{limit.name: getattr(self, limit.name) for limit in fields(Limits)})


class _File(_Form):
    space: _Space
    participants: dict[str, _Participant]
    defaults: _Defaults = _Defaults()
    gateway: dict[str, Any] = Field(default_factory=dict[str, Any])


def load_config(path: str | Path) -> Config:
    """Read a configuration file, and what the environment says over it.

    Raises:
        ConfigurationError: The file cannot be read, or something in it or in the environment is
            wrong; the message says which file, which key, and what was expected.
    """
    path = Path(path)
    raw = _read(path)
    _drop_ignored(raw.get("space"), IGNORED_OF_A_SPACE, f"{path}: space")
    for name, entry in _object(raw.get("participants")).items():
        _drop_ignored(entry, IGNORED_OF_A_PARTICIPANT, f"{path}: participants.{name}")
    try:
        return _config(path, _File.model_validate(raw))
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {_first_problem(error)}") from None
    except (ConfigurationError, InvalidPattern) as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _config(path: Path, file: _File) -> Config:
    check_id(file.space.id, "space.id")
    settings, limits = _settings(file.gateway)
    participants: dict[str, ParticipantConfig] = {}
    for name, entry in file.participants.items():
        if not entry.tokens:
            log.warning("%s: participants.%s lists no tokens; nobody can join as it", path, name)
        own = entry.capabilities if entry.capabilities is not None else file.defaults.capabilities
        tokens = [token.get_secret_value() for token in entry.tokens]
        participants[name] = participant(name, own, tokens)
    space = SpaceConfig(file.space.id, participants, file.space.name)
    config = Config((space,), settings.host, settings.port, limits)
    config.tokens()
    return config


def environment_over(config: Config) -> Config:
    """A configuration, and what the environment says of its host, port and limits over it.

    Raises:
        ConfigurationError: Something in the environment is wrong.
    """
    given = {"host": config.host, "port": config.port, **asdict(config.limits)}
    settings, limits = _settings(given)
    return replace(config, host=settings.host, port=settings.port, limits=limits)


def _settings(given: dict[str, Any]) -> tuple[_Settings, Limits]:
    try:
        settings = _Settings(**given)
        return settings, settings.limits()
    except ValidationError as error:
        problem = _first_problem(error)
        raise ConfigurationError(
            f"gateway.{problem} (or {ENVIRONMENT_PREFIX}… in the environment)"
        ) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"gateway.{error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        raw: object = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read ({(error.strerror or 'unknown reason').lower()});"
            " give the path of a gateway's YAML file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: expected YAML in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = str(error.problem)
        # "expected …, but found …" in a sentence that says itself what was expected.
        found = problem.partition(", but ")[2] if problem.startswith("expected ") else ""
        raise ConfigurationError(f"{path}{where}: expected YAML, but {found or problem}") from None
    except yaml.YAMLError:
        raise ConfigurationError(f"{path}: expected YAML in printable characters") from None
    except ValueError as error:
        # A word that has the form of a date, and is none: 2024-13-45.
        raise ConfigurationError(
            f"{path}: a value looks like a date and is none ({error}); put it in quotes"
        ) from None
    if not isinstance(raw, dict):
        raise ConfigurationError(f"{path}: expected the keys 'space' and 'participants'")
    return cast("dict[str, Any]", raw)


def _object(value: object) -> dict[str, Any]:
    """The value if it is an object; what else stands there is reported when it is checked."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _drop_ignored(entry: object, ignored: frozenset[str], place: str) -> None:
    """Take out what other gateways' files say and this gateway does not use."""
    fields = _object(entry)
    found = sorted(ignored & fields.keys())
    for key in found:
        del fields[key]
    if found:
        log.warning("%s: ignored %s, which this gateway has no use for", place, ", ".join(found))


def _first_problem(error: ValidationError) -> str:
    """The first problem: its key and what was expected. The value stays out, it may be secret."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{key}: unknown key; remove it, or correct its spelling"
    if problem["type"] == "missing":
        return f"{key}: is missing"
    expected = _EXPECTED.get(problem["type"])
    if expected is not None:
        return f"{key}: expected {expected}"
    return f"{key}: {problem['msg'].replace('Input should be', 'expected')}"


_EXPECTED: Final = {
    "dataclass_type": "keys and values",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "a text; put it in quotes",
}
"""What was expected, in the words of a file, not of the types behind it."""


class _Loader(yaml.SafeLoader):
    """YAML without surprises: a key that stands twice is an error, not a loss of the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[tuple[str, str]] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                key = (key_node.tag, key_node.value)
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key[1]!r} stands twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)
