"""The configuration of a gateway: its spaces, their participants, its ports and its journal.

These records are made by :mod:`~meup_agent.gateway.config_file`, by
:mod:`~meup_agent.gateway.presets`, or by a program. They are also the form of the configuration
file: their fields are its keys, and the annotations of the fields say what a file may hold there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, GetPydanticSchema, ValidationInfo
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.auth import Identity, Tokens, read_hash
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.protocol.capability import Capabilities, refuse_reserved
from meup_agent.protocol.dialects import DIALECTS, spoken
from meup_agent.protocol.kinds import GATEWAY_NAMES
from meup_agent.protocol.space.grants import member_capabilities
from meup_agent.protocol.space.inbound import MAX_ID_CHARS, is_name
from meup_agent.protocol.space.journal import MAX_BYTES, MAX_ENTRIES

DEFAULT_HOST: Final = "127.0.0.1"
"""Only this machine can reach it, until another one is configured."""

DEFAULT_PORT: Final = 8420

DEFAULT_HTTP_PORT: Final = 8421

MAX_TOKEN_FILE_BYTES: Final = 4_096
"""Bytes of a file with a token: a wrong path may lead to a large one."""


# --- values ---


def _check_id(text: str) -> str:
    if not is_name(text):
        raise ConfigurationError(f"expected an id of 1 to {MAX_ID_CHARS} printable characters")
    return text


def _check_participant_id(text: str) -> str:
    if text in GATEWAY_NAMES:
        raise ConfigurationError("this name is the gateway's; expected another")
    return _check_id(text)


def _check_token(token: str) -> str:
    if not token or token.strip() != token or not token.isascii():
        raise ConfigurationError("expected ASCII characters without blanks at the ends")
    return token


def _read_token_file(name: str, info: ValidationInfo) -> str:
    """The token that a file holds, alone, with or without a line end."""
    path = Path(info.context or "", name)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOKEN_FILE_BYTES + 1)
    except OSError as error:
        why = (error.strerror or "unknown reason").lower()
        raise ConfigurationError(f"{path} cannot be read ({why})") from None
    lines = content.split()
    if len(content) > MAX_TOKEN_FILE_BYTES or len(lines) != 1 or not content.isascii():
        raise ConfigurationError(f"{path} must hold a token and nothing else")
    return lines[0].decode()


def _check_dialect(name: str) -> str:
    known = spoken(name)
    if known is None:
        raise ConfigurationError(f"expected one of {', '.join(DIALECTS)}")
    return known


def _compile(listed: Sequence[Mapping[str, Any]], place: str = "") -> Capabilities:
    compiled = member_capabilities(listed, place=place)
    refuse_reserved(listed, place=place)
    return compiled


def _compiled_schema(_: object, schema_of: Callable[[Any], CoreSchema]) -> CoreSchema:
    def read(listed: tuple[dict[str, Any], ...] | None) -> Capabilities:
        return NO_CAPABILITIES if listed is None else _compile(listed)

    return no_info_after_validator_function(read, schema_of(tuple[dict[str, Any], ...] | None))


Id = Annotated[str, AfterValidator(_check_id)]
ParticipantId = Annotated[str, AfterValidator(_check_participant_id)]
Token = Annotated[str, AfterValidator(_check_token)]
TokenHash = Annotated[str, AfterValidator(read_hash)]
TokenOfFile = Annotated[str, AfterValidator(_read_token_file)]
Dialect = Annotated[str, AfterValidator(_check_dialect)]
Patterns = Annotated[Capabilities, GetPydanticSchema(_compiled_schema)]
PortNumber = Annotated[int, Ge(0), Le(65535)]
"""A port; 0: any free one."""

NO_CAPABILITIES: Final = _compile(())
"""Those of a participant of which nothing is said: in a file, it has the defaults instead."""


# --- records ---


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """The journal: its place, and how much it keeps.

    Attributes:
        path: An SQLite file; ``None``: in memory, gone with the process.
        synchronous: Of the file: ``normal`` outlives the process, ``full`` a power cut as well.
        accept_damage: With ``full``: start where the file was damaged after it was written, without
            what is lost. With ``normal`` a power cut can do the same, so it is not asked for.
        max_age: Seconds after which the file forgets an envelope; ``None``: never.
        max_bytes: Bytes of the file beyond which it forgets the oldest; ``None``: no limit.
        memory_entries: Envelopes that are kept in memory where there is no file.
        memory_bytes: Bytes of the same.
    """

    path: Path | None = None
    synchronous: Literal["normal", "full"] = "normal"
    accept_damage: bool = False
    max_age: Annotated[float, Gt(0)] | None = None
    max_bytes: Annotated[int, Gt(0)] | None = None
    memory_entries: Annotated[int, Gt(0)] = MAX_ENTRIES
    memory_bytes: Annotated[int, Gt(0)] = MAX_BYTES


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The address of the HTTP port."""

    host: str = DEFAULT_HOST
    port: PortNumber = DEFAULT_HTTP_PORT


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The certificate, with its chain, and its key, as PEM files; both ports use them."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ParticipantConfig:
    """A participant that may join; each of its tokens proves its identity, and is never shown.

    Attributes:
        capabilities: The envelopes that it may send, compiled.
        tokens: Its tokens.
        dialect: Its dialect, if neither its handshake nor its join frame says.
        token_hashes: SHA-256 of further tokens, as 64 hexadecimal digits.
        token_files: Further tokens, each of them read from the file that is named in its place.
    """

    capabilities: Patterns = NO_CAPABILITIES
    tokens: tuple[Token, ...] = field(default=(), repr=False)
    dialect: Dialect | None = None
    token_hashes: tuple[TokenHash, ...] = field(default=(), repr=False)
    token_files: tuple[TokenOfFile, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSettings:
    """The keys of a space besides its id and its participants, the same in every form of the file.

    Attributes:
        name: For people.
        dialect: The dialect of its members, if nothing else says (PROTOCOL 1).
        announce_withdrawals: Every member is told of each valid withdrawal.
    """

    name: str = ""
    dialect: Dialect | None = None
    announce_withdrawals: bool = False


@dataclass(frozen=True, slots=True)
class SpaceConfig(SpaceSettings):
    """A space and its participants by id.

    Its other keys are those of :class:`SpaceSettings`, given by name.

    Attributes:
        id: The name by which members join.
        participants: The participants that may join, by id.
    """

    id: str
    participants: Mapping[str, ParticipantConfig]


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration.

    Attributes:
        spaces: Its spaces; each id once.
        host: The address to listen at.
        port: The port to listen at; 0: any free port.
        limits: Its limits.
        journal: The place of what it accepted.
        http: The address of its HTTP port; ``None``: it has none.
        tls: Its certificate; ``None``: it speaks without encryption.
        insecure: It may speak without encryption where others than this machine can listen.
    """

    spaces: tuple[SpaceConfig, ...]
    host: str = DEFAULT_HOST
    port: PortNumber = DEFAULT_PORT
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    journal: JournalConfig = field(default_factory=JournalConfig)
    http: HttpConfig | None = None
    tls: TlsConfig | None = None
    insecure: bool = False

    def space(self, space_id: str) -> SpaceConfig | None:
        """A space by its id."""
        return next((space for space in self.spaces if space.id == space_id), None)

    def check(self) -> None:
        """Check that it has not more spaces than it may, and each once.

        Raises:
            ConfigurationError: It has.
        """
        ids = [space.id for space in self.spaces]
        if len(ids) > self.limits.max_spaces:
            raise ConfigurationError(
                f"spaces: {len(ids)} are more than max_spaces, which is {self.limits.max_spaces}"
            )
        for space_id in ids:
            if ids.count(space_id) > 1:
                raise ConfigurationError(f"spaces.{space_id}: stands twice")

    def tokens(self) -> Tokens:
        """Every token, ready to ask.

        Raises:
            ConfigurationError: Two participants have the same token.
        """
        known: list[tuple[str, Identity]] = []
        hashed: list[tuple[str, Identity]] = []
        for space in self.spaces:
            for name, entry in space.participants.items():
                identity = Identity(space.id, name)
                known += [(token, identity) for token in (*entry.tokens, *entry.token_files)]
                hashed += [(digits, identity) for digits in entry.token_hashes]
        return Tokens(known, hashed)


def participant(
    participant_id: str,
    capabilities: Iterable[Mapping[str, Any]],
    tokens: Iterable[str],
    *,
    dialect: str | None = None,
) -> ParticipantConfig:
    """A participant of a program's own configuration, checked.

    Args:
        participant_id: Its id.
        capabilities: Patterns of the envelopes that it may send.
        tokens: Any of these proves its identity.
        dialect: Its dialect, if neither its handshake nor its join frame says.

    Raises:
        ConfigurationError: Its id cannot be one, or a token is wrong.
        InvalidPattern: A capability does not compile, or names what no participant is granted.
    """
    place = f"participants.{participant_id}"
    try:
        _check_participant_id(participant_id)
        checked = tuple(_check_token(token) for token in tokens)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from None
    return ParticipantConfig(
        _compile(tuple(capabilities), f"{place}.capabilities"), checked, dialect
    )
