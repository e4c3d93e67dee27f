"""What a gateway serves: its spaces, who is in them, and its limits.

The records here are made by :mod:`~meup_agent.gateway.config_file` from a file, by
:mod:`~meup_agent.gateway.presets` for trying things out, or by a program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.auth import Identity, Tokens
from meup_agent.protocol.capability import Capabilities, refuse_reserved
from meup_agent.protocol.kinds import GATEWAY_NAMES
from meup_agent.protocol.limits import MAX_DEPTH, MAX_FRAME_BYTES
from meup_agent.protocol.space.grants import member_capabilities
from meup_agent.protocol.space.inbound import MAX_ID_CHARS, is_name
from meup_agent.protocol.space.journal import MAX_BYTES, MAX_ENTRIES
from meup_agent.protocol.space.rate_limits import BYTES_BURST, BYTES_PER_SECOND

DEFAULT_HOST: Final = "127.0.0.1"
"""Only this machine, until somebody says otherwise."""

DEFAULT_PORT: Final = 8420

DEFAULT_HTTP_PORT: Final = 8421


@dataclass(frozen=True, slots=True)
class Limits:
    """What a gateway takes and waits for; times are in seconds.

    Attributes:
        max_connections: Connections at once, those that have not joined yet included; more are
            refused with 503. `meup gateway` takes fewer where it may not have so many files open.
            Each has a read buffer, which grows to twice the largest message that it sent.
        max_spaces: Spaces of a gateway.
        max_members: Members of one space at once; more are refused with 503.
        max_observers: Connections of one participant that look on; more are refused with 429.
        max_message_bytes: Bytes of one message; at most 4 MiB, which every reader takes.
        max_depth: Levels of arrays and objects in a message; at most 100, which every reader takes.
        max_queued_frames: Frames that wait for a member who does not keep up: some seconds of a
            lively space. One more closes it with 1013.
        max_queued_bytes: The same in bytes: room for four of the largest messages.
        max_participant_queued_bytes: Bytes that wait for a participant, over its connection and its
            event streams; the fullest of them is closed with 1013.
        max_gateway_queued_bytes: Bytes that wait for all readers of the gateway, where what waits
            for several counts once; the participant for whom most waits is closed with 1013.
        max_streams: Event streams of a participant at once; more are refused with 429.
        slow_reader_seconds: For which loud senders wait for one reader whose queue is half full,
            before it is closed with 1013.
        messages_per_second: Messages of a participant in the long run; what comes faster is read
            later.
        messages_burst: Messages that may come at once after a pause.
        bytes_per_second: Bytes of a participant's messages in the long run; likewise.
        bytes_burst: Bytes of messages that may come at once after a pause.
        frames_per_second: Frames of a connection that are no whole message (pings, pongs,
            fragments) in the long run; likewise.
        frames_burst: Such frames that may come at once after a pause.
        withdrawals_per_second: Withdrawals of a participant in the long run; likewise.
        withdrawals_burst: Withdrawals at once: whoever stops takes back everything.
        max_open_proposals: Proposals of a participant that are neither fulfilled nor withdrawn.
        joins_per_second: Joins of a participant in the long run; more are refused with 429, in
            answer to a join frame with 1013.
        joins_burst: Joins that may come at once after a pause.
        strangers_per_second: Connections from one address that do not say in their handshake who
            joins where, in the long run; more are refused with 429. Who joins by a frame does not
            count.
        strangers_burst: Such connections that may come at once: the members behind one address,
            when their gateway has restarted; the handshakes of more would keep the others waiting.
        failed_tokens: Wrong tokens from one address, before it is refused with 429.
        failed_token_seconds: After which one of these is forgiven.
        handshake_timeout: For a connection to send its handshake.
        join_timeout: For a connection without a header to send its join frame.
        join_frames: Frames of such a connection until it has joined: the join frame, in fragments
            perhaps, and some pings.
        ping_interval: Of silence, after which a member is pinged.
        ping_deadline: For the pong; at most ``ping_interval``.
        close_timeout: For a member to read what was sent and to answer a close frame.
        stop_timeout: For all members together when the gateway stops.
    """

    max_connections: int = 10_000
    max_spaces: int = 1_000
    max_members: int = 1_000
    max_observers: int = 16
    max_message_bytes: int = MAX_FRAME_BYTES
    max_depth: int = MAX_DEPTH
    max_queued_frames: int = 4_096
    max_queued_bytes: int = 16 * 1024 * 1024
    max_participant_queued_bytes: int = 32 * 1024 * 1024
    max_gateway_queued_bytes: int = 256 * 1024 * 1024
    max_streams: int = 16
    slow_reader_seconds: float = 1.0
    messages_per_second: float = 1_000.0
    messages_burst: int = 2_000
    bytes_per_second: float = BYTES_PER_SECOND
    bytes_burst: int = BYTES_BURST
    frames_per_second: float = 1_000.0
    frames_burst: int = 2_000
    withdrawals_per_second: float = 100.0
    withdrawals_burst: int = 1_000
    max_open_proposals: int = 1_000
    joins_per_second: float = 5.0
    joins_burst: int = 100
    strangers_per_second: float = 20.0
    strangers_burst: int = 250
    failed_tokens: int = 20
    failed_token_seconds: float = 5.0
    handshake_timeout: float = 10.0
    join_timeout: float = 10.0
    join_frames: int = 64
    ping_interval: float = 20.0
    ping_deadline: float = 20.0
    close_timeout: float = 5.0
    stop_timeout: float = 5.0

    def __post_init__(self) -> None:
        """Refuse limits that nothing could work with.

        Raises:
            ConfigurationError: A limit is not above zero, or breaks its bound.
        """
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name}: expected a number above zero")
        if self.max_message_bytes > MAX_FRAME_BYTES:
            raise ConfigurationError(f"max_message_bytes: expected at most {MAX_FRAME_BYTES}")
        if self.max_depth > MAX_DEPTH:
            raise ConfigurationError(f"max_depth: expected at most {MAX_DEPTH}")
        if self.ping_deadline > self.ping_interval:
            raise ConfigurationError("ping_deadline: expected at most ping_interval")


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Where accepted envelopes are kept, and how many of them.

    Attributes:
        path: An SQLite file; ``None``: in memory, gone with the process.
        synchronous: Of the file: ``normal`` outlives the process, ``full`` a power cut as well.
        accept_damage: With ``full``: start where the file was damaged after it was written, without
            what is lost. With ``normal`` a power cut can do the same, so nobody is asked.
        max_age: Seconds after which the file forgets an envelope; ``None``: never.
        max_bytes: Bytes of the file beyond which it forgets the oldest; ``None``: no limit.
        memory_entries: Envelopes that are kept in memory where there is no file.
        memory_bytes: Bytes of the same.
    """

    path: Path | None = None
    synchronous: Literal["normal", "full"] = "normal"
    accept_damage: bool = False
    max_age: float | None = None
    max_bytes: int | None = None
    memory_entries: int = MAX_ENTRIES
    memory_bytes: int = MAX_BYTES


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Where the HTTP port listens."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_HTTP_PORT


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The certificate, with its chain, and its key, as PEM files; both ports use them."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ParticipantConfig:
    """A participant that may join.

    Attributes:
        capabilities: What it may send, ready to ask.
        tokens: Any of these proves who it is; never shown.
        dialect: What it speaks, if neither its handshake nor its join frame says.
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
        participants: Who may join, by id.
        name: For people.
        dialect: What its members speak, if nothing else says (PROTOCOL 1).
        announce_withdrawals: Whether everybody is told of each valid withdrawal.
    """

    id: str
    participants: Mapping[str, ParticipantConfig]
    name: str = ""
    dialect: str | None = None
    announce_withdrawals: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a gateway is told.

    Attributes:
        spaces: Its spaces; each id once.
        host: Where to listen.
        port: Where to listen; 0: any free port.
        limits: What it takes and waits for.
        journal: Where it keeps what it accepted.
        http: Where its HTTP port listens; ``None``: it has none.
        tls: What it proves with who it is; ``None``: it speaks without encryption.
        insecure: It may speak without encryption where others than this machine can listen.
    """

    spaces: tuple[SpaceConfig, ...]
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    limits: Limits = field(default_factory=Limits)
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
        everybody = [
            (Identity(space.id, name), entry)
            for space in self.spaces
            for name, entry in space.participants.items()
        ]
        return Tokens(
            ((token, identity) for identity, entry in everybody for token in entry.tokens),
            ((digits, identity) for identity, entry in everybody for digits in entry.token_hashes),
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
        capabilities: What it may send.
        tokens: Any of these proves who it is.
        dialect: What it speaks, if neither its handshake nor its join frame says.
        token_hashes: SHA-256 of further tokens, as 64 hexadecimal digits.
        place: Where it is configured, for errors.

    Raises:
        ConfigurationError: Its id cannot be one, or a token is empty.
        InvalidPattern: A capability does not compile, or names what nobody is granted.
    """
    place = place or f"participants.{participant_id}"
    check_id(participant_id, place)
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


def check_id(text: str, place: str) -> None:
    """Check that a text can be the id of a participant or a space.

    Raises:
        ConfigurationError: It cannot.
    """
    if not is_name(text):
        raise ConfigurationError(
            f"{place}: expected an id of 1 to {MAX_ID_CHARS} printable characters"
        )
