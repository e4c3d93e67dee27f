"""What a gateway serves: its spaces, who is in them, and its limits.

The records here are made by :mod:`~meup_agent.gateway.files` from a file, by
:mod:`~meup_agent.gateway.dev` for trying things out, or by a program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.auth import Identity, Tokens
from meup_agent.protocol.capability import Capabilities, refuse_reserved
from meup_agent.protocol.kinds import GATEWAY_NAMES
from meup_agent.protocol.limits import MAX_FRAME_BYTES
from meup_agent.protocol.space.arrival import MAX_ID_CHARS, is_name
from meup_agent.protocol.space.space import member_capabilities

DEFAULT_HOST: Final = "127.0.0.1"
"""Only this machine, until somebody says otherwise."""

DEFAULT_PORT: Final = 8420


@dataclass(frozen=True, slots=True)
class Limits:
    """What a gateway takes and waits for; times are in seconds.

    Attributes:
        max_connections: Connections at once, those that have not joined yet included; more are
            refused with 503. Each has a read buffer, which grows to twice the largest message that
            it sent.
        max_message_bytes: Bytes of one message; at most 4 MiB, which every reader takes.
        max_queued_frames: Frames that wait for a member who does not keep up: some seconds of a
            lively space. One more closes it with 1013.
        max_queued_bytes: The same in bytes: room for four of the largest messages.
        join_timeout: For a connection without a header to send its join frame.
        ping_interval: Of silence, after which a member is pinged.
        ping_deadline: For the pong; at most ``ping_interval``.
        close_timeout: For a member to read what was sent and to answer a close frame.
        stop_timeout: For all members together when the gateway stops.
    """

    max_connections: int = 1_000
    max_message_bytes: int = MAX_FRAME_BYTES
    max_queued_frames: int = 4_096
    max_queued_bytes: int = 16 * 1024 * 1024
    join_timeout: float = 10.0
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
        if self.ping_deadline > self.ping_interval:
            raise ConfigurationError("ping_deadline: expected at most ping_interval")


@dataclass(frozen=True, slots=True)
class ParticipantConfig:
    """A participant that may join.

    Attributes:
        capabilities: What it may send, ready to ask.
        tokens: Any of these proves who it is; never shown.
    """

    capabilities: Capabilities
    tokens: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class SpaceConfig:
    """A space and its participants by id."""

    id: str
    participants: Mapping[str, ParticipantConfig]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a gateway is told.

    Attributes:
        spaces: Its spaces; each id once.
        host: Where to listen.
        port: Where to listen; 0: any free port.
        limits: What it takes and waits for.
    """

    spaces: tuple[SpaceConfig, ...]
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    limits: Limits = field(default_factory=Limits)

    def space(self, space_id: str) -> SpaceConfig | None:
        """A space by its id."""
        return next((space for space in self.spaces if space.id == space_id), None)

    def tokens(self) -> Tokens:
        """Every token, ready to ask.

        Raises:
            ConfigurationError: Two participants have the same token.
        """
        known: dict[str, Identity] = {}
        for space in self.spaces:
            for participant_id, participant in space.participants.items():
                for token in participant.tokens:
                    identity = Identity(space.id, participant_id)
                    other = known.setdefault(token, identity)
                    if other != identity:
                        raise ConfigurationError(
                            f"participants.{participant_id}.tokens: a token is also"
                            f" {other.participant!r}'s; give each participant tokens of its own"
                        )
        return Tokens(known.items())


def participant(
    participant_id: str,
    capabilities: Iterable[Mapping[str, Any]],
    tokens: Sequence[str],
) -> ParticipantConfig:
    """A participant, checked.

    Raises:
        ConfigurationError: Its id cannot be one, or a token is empty.
        InvalidPattern: A capability does not compile, or names what nobody is granted.
    """
    place = f"participants.{participant_id}"
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
    return ParticipantConfig(compiled, tuple(tokens))


def check_id(text: str, place: str) -> None:
    """Check that a text can be the id of a participant or a space.

    Raises:
        ConfigurationError: It cannot.
    """
    if not is_name(text):
        raise ConfigurationError(
            f"{place}: expected an id of 1 to {MAX_ID_CHARS} printable characters"
        )
