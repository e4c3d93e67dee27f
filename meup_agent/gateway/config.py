"""The configuration of a gateway: its spaces, their participants, its ports and its journal.

The records here are made by :mod:`~meup_agent.gateway.config_file` from a file, by
:mod:`~meup_agent.gateway.presets` for trying things out, or by a program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Gt, Le

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.auth import Identity, Tokens
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.protocol.capability import Capabilities, refuse_reserved
from meup_agent.protocol.kinds import GATEWAY_NAMES
from meup_agent.protocol.space.grants import member_capabilities
from meup_agent.protocol.space.inbound import MAX_ID_CHARS, is_name
from meup_agent.protocol.space.journal import MAX_BYTES, MAX_ENTRIES

DEFAULT_HOST: Final = "127.0.0.1"
"""Only this machine can reach it, until another one is configured."""

DEFAULT_PORT: Final = 8420

DEFAULT_HTTP_PORT: Final = 8421

PortNumber = Annotated[int, Ge(0), Le(65535)]
"""A port; 0: any free one."""


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
    """A participant that may join.

    Attributes:
        capabilities: The envelopes that it may send, compiled.
        tokens: Any of these proves who it is; never shown.
        dialect: Its dialect, if neither its handshake nor its join frame says.
        token_hashes: SHA-256 of further tokens, as 64 hexadecimal digits.
    """

    capabilities: Capabilities
    tokens: tuple[str, ...] = field(repr=False)
    dialect: str | None = None
    token_hashes: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class SpaceConfig:
    """A space and its participants by id.

    Attributes:
        id: The name by which members join.
        participants: The participants that may join, by id.
        name: For people.
        dialect: The dialect of its members, if nothing else says (PROTOCOL 1).
        announce_withdrawals: Every member is told of each valid withdrawal.
    """

    id: str
    participants: Mapping[str, ParticipantConfig]
    name: str = ""
    dialect: str | None = None
    announce_withdrawals: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration.

    Attributes:
        spaces: Its spaces; each id once.
        host: Where to listen.
        port: Where to listen; 0: any free port.
        limits: Its limits.
        journal: Where it keeps what it accepted.
        http: Where its HTTP port listens; ``None``: it has none.
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
        entries = [
            (Identity(space.id, name), entry)
            for space in self.spaces
            for name, entry in space.participants.items()
        ]
        return Tokens(
            ((token, identity) for identity, entry in entries for token in entry.tokens),
            ((digits, identity) for identity, entry in entries for digits in entry.token_hashes),
        )


def participant(
    participant_id: str,
    capabilities: Iterable[Mapping[str, Any]],
    tokens: Sequence[str],
    *,
    dialect: str | None = None,
    token_hashes: Sequence[str] = (),
    place: str = "",
) -> ParticipantConfig:
    """A participant, checked.

    Args:
        participant_id: Its id.
        capabilities: Patterns of the envelopes that it may send.
        tokens: Any of these proves who it is.
        dialect: Its dialect, if neither its handshake nor its join frame says.
        token_hashes: SHA-256 of further tokens, as 64 hexadecimal digits.
        place: Where it is configured, for errors.

    Raises:
        ConfigurationError: Its id cannot be one, or a token is empty.
        InvalidPattern: A capability does not compile, or names what no participant is granted.
    """
    place = place or f"participants.{participant_id}"
    if not is_name(participant_id):
        raise ConfigurationError(
            f"{place}: expected an id of 1 to {MAX_ID_CHARS} printable characters"
        )
    if participant_id in GATEWAY_NAMES:
        raise ConfigurationError(f"{place}: this name is the gateway's; expected another")
    if not all(token.strip() == token and token.isascii() and token for token in tokens):
        raise ConfigurationError(
            f"{place}.tokens: expected tokens of ASCII characters, without blanks at the ends"
        )
    listed = list(capabilities)
    compiled = member_capabilities(listed, place=f"{place}.capabilities")
    refuse_reserved(listed, place=f"{place}.capabilities")
    return ParticipantConfig(compiled, tuple(tokens), dialect, tuple(token_hashes))
