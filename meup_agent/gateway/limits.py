"""The limits of a gateway, each declared once.

The settings, the configuration file, the environment and the page of the reference take name,
default, bound and text from this table. A further limit is one more row, and the code that
enforces it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple, TypeVar

from meup_agent.errors import ConfigurationError
from meup_agent.protocol.limits import MAX_DEPTH, MAX_FRAME_BYTES
from meup_agent.protocol.space.rate_limits import BYTES_BURST, BYTES_PER_SECOND

N = TypeVar("N", int, float)

_ROW: Final = "json_schema_extra"
"""The key of a row in a field's metadata: one that pydantic knows, for what means nothing to it."""

_UNITS: Final = ((1 << 20, "MiB"), (1 << 10, "KiB"))


class LimitRow(NamedTuple):
    """One row of the table.

    Attributes:
        name: The key in the configuration.
        default: The value, if nothing else is configured.
        unit: ``bytes``, ``s``, or nothing.
        about: The thing that is limited, for the reference.
        at_most: The highest value; ``None``: any above zero.
    """

    name: str
    default: float
    unit: str
    about: str
    at_most: float | None

    @property
    def shown(self) -> str:
        """The default as people read it: ``4 MiB``, ``10 s``, ``1,000``."""
        for size, unit in _UNITS:
            if self.unit == "bytes" and self.default % size == 0:
                return f"{round(self.default / size):,} {unit}"
        return f"{self.default:,g} s" if self.unit == "s" else f"{self.default:,.0f}"


def _limit(default: N, about: str, *, unit: str = "", at_most: N | None = None) -> N:
    row = {"default": default, "unit": unit, "about": about, "at_most": at_most}
    limit: N = field(default=default, metadata={_ROW: row})
    return limit


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """The limits of a gateway; times are in seconds.

    Raises:
        ConfigurationError: A limit is not above zero, or above its bound.
    """

    max_connections: int = _limit(
        10_000,
        "connections at once; a further one is refused with 503. Fewer where `meup gateway` "
        "may not have so many files open",
    )
    max_spaces: int = _limit(1_000, "spaces of a gateway; a file with more is wrong")
    max_members: int = _limit(
        1_000, "members of one space at once; a further one is refused with 503"
    )
    max_observers: int = _limit(
        16, "connections of one participant that look on; a further one is refused with 429"
    )
    max_message_bytes: int = _limit(
        MAX_FRAME_BYTES,
        "one message; not more than this default. Who sends a larger one is told, and "
        "closed with 1009; one more than twice as large is not even read: its sender is "
        "closed with 1009, and hears nothing else",
        unit="bytes",
        at_most=MAX_FRAME_BYTES,
    )
    max_depth: int = _limit(
        MAX_DEPTH,
        "levels of arrays and objects in a message; not more than this default",
        at_most=MAX_DEPTH,
    )
    max_queued_frames: int = _limit(
        4_096, "messages that wait for a member who reads slowly; one more closes it with 1013"
    )
    max_queued_bytes: int = _limit(16 * 1024 * 1024, "the same, in bytes", unit="bytes")
    max_participant_queued_bytes: int = _limit(
        32 * 1024 * 1024,
        "bytes that wait for a participant, over its connections and event streams, of "
        "which the fullest is closed with 1013, and of the messages that it is sending over "
        "HTTP, of which one too many is refused with 429",
        unit="bytes",
    )
    max_gateway_queued_bytes: int = _limit(
        256 * 1024 * 1024,
        "bytes that wait for all readers together, where what waits for several counts "
        "once; the participant for whom most waits is closed with 1013",
        unit="bytes",
    )
    max_streams: int = _limit(
        16, "event streams of a participant at once; a further one is refused with 429"
    )
    max_open_streams: int = _limit(
        32, "open streams that a participant requested; a further request is refused"
    )
    max_space_streams: int = _limit(
        256, "open streams of a space, of which each newcomer is told; a further one is refused"
    )
    max_stream_queued_frames: int = _limit(
        256,
        "frames of one stream that wait for a member who reads slowly, and four times as many of "
        "all streams; it loses the further ones, and is told how many",
    )
    max_stream_queued_bytes: int = _limit(256 * 1024, "the same, in bytes", unit="bytes")
    slow_reader_seconds: float = _limit(
        1.0,
        "for which loud senders wait for a reader whose queue is half full, before it is "
        "closed with 1013",
        unit="s",
    )
    messages_per_second: float = _limit(
        1_000.0, "messages of a participant in the long run; what comes faster is read later"
    )
    messages_burst: int = _limit(2_000, "messages that may come at once after a pause")
    bytes_per_second: float = _limit(
        BYTES_PER_SECOND,
        "bytes of a participant's messages in the long run; what comes faster is read later",
        unit="bytes",
    )
    bytes_burst: int = _limit(
        BYTES_BURST, "bytes of messages that may come at once after a pause", unit="bytes"
    )
    frames_per_second: float = _limit(
        1_000.0,
        "pings, pongs and fragments of a connection in the long run; what comes faster is "
        "read later",
    )
    frames_burst: int = _limit(
        2_000,
        "such frames that may come at once after a pause: the largest message, in fragments "
        "of 2 KiB",
    )
    withdrawals_per_second: float = _limit(
        100.0,
        "withdrawals of a participant in the long run; what comes faster is read later, and "
        "none is refused",
    )
    withdrawals_burst: int = _limit(1_000, "withdrawals at once")
    max_open_proposals: int = _limit(
        1_000, "proposals of a participant that are neither fulfilled nor withdrawn"
    )
    joins_per_second: float = _limit(
        5.0,
        "joins of a participant in the long run; one more is refused with 429, in answer to "
        "a join frame with 1013",
    )
    joins_burst: int = _limit(100, "joins that may come at once after a pause")
    strangers_per_second: float = _limit(
        20.0,
        "connections from one address that neither say in their handshake who joins where, "
        "nor join by a frame; one more is refused with 429",
    )
    strangers_burst: int = _limit(
        250,
        "such connections at once, joined later or not: the members behind one address, "
        "when their gateway has restarted. What says its token in the handshake, as agents "
        "of this package do, is no such connection",
    )
    failed_tokens: int = _limit(20, "wrong tokens from one address, before it is refused with 429")
    failed_token_seconds: float = _limit(5.0, "after which one of these is forgiven", unit="s")
    handshake_timeout: float = _limit(10.0, "until a connection has sent its handshake", unit="s")
    join_timeout: float = _limit(10.0, "until a connection has said who it is", unit="s")
    join_frames: int = _limit(
        64,
        "frames of a connection until then, of 16 KiB together: the join frame, in "
        "fragments perhaps, and some pings. One more closes it with 4400",
    )
    ping_interval: float = _limit(20.0, "silence, after which a member is pinged", unit="s")
    ping_deadline: float = _limit(20.0, "for its answer", unit="s")
    close_timeout: float = _limit(
        5.0, "for one member to read its last messages when its connection is closed", unit="s"
    )
    stop_timeout: float = _limit(5.0, "for all of them together when the gateway stops", unit="s")

    def __post_init__(self) -> None:
        """Refuse limits that nothing could work with."""
        for row in LIMIT_ROWS:
            value = getattr(self, row.name)
            if value <= 0:
                raise ConfigurationError(f"{row.name}: expected a number above zero")
            if row.at_most is not None and value > row.at_most:
                raise ConfigurationError(f"{row.name}: expected at most {row.at_most}")
        if self.ping_deadline > self.ping_interval:
            raise ConfigurationError("ping_deadline: expected at most ping_interval")


LIMIT_ROWS: Final = tuple(
    LimitRow(each.name, **each.metadata[_ROW]) for each in fields(GatewayLimits)
)
"""The table."""
