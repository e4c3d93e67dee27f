"""The limits of a gateway, each declared once.

The settings, the configuration file, the environment and the page of the reference take name,
default, bound and text from this table, which goes on after the limits of a space's participants
(:class:`~meup_agent.protocol.space.allowance.Allowance`). A further limit is one more row, and the
code that enforces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from meup_agent.errors import ConfigurationError
from meup_agent.protocol.space.allowance import Allowance, limit, rows_of
from meup_agent.protocol.wire.envelope import MAX_FRAME_BYTES


@dataclass(frozen=True, slots=True)
class GatewayLimits(Allowance):
    """The limits of a gateway; times are in seconds.

    Raises:
        ConfigurationError: A limit is not above zero, or above its bound.
    """

    max_connections: int = limit(
        10_000,
        "connections at once; a further one is refused with 503. Fewer where `meup gateway` "
        "may not have so many files open",
    )
    max_spaces: int = limit(1_000, "spaces of a gateway; a file with more is wrong")
    max_members: int = limit(
        1_000, "members of one space at once; a further one is refused with 503"
    )
    max_message_bytes: int = limit(
        MAX_FRAME_BYTES,
        "one message; not more than this default. Who sends a larger one is told, and "
        "closed with 1009; one more than twice as large is not even read: its sender is "
        "closed with 1009, and hears nothing else",
        unit="bytes",
        at_most=MAX_FRAME_BYTES,
    )
    max_queued_frames: int = limit(
        4_096, "messages that wait for a member who reads slowly; one more closes it with 1013"
    )
    max_queued_bytes: int = limit(16 * 1024 * 1024, "the same, in bytes", unit="bytes")
    max_participant_queued_bytes: int = limit(
        32 * 1024 * 1024,
        "bytes that wait for a participant, over its connections and event streams, of "
        "which the fullest is closed with 1013, and of the messages that it is sending over "
        "HTTP, of which one too many is refused with 429",
        unit="bytes",
    )
    max_gateway_queued_bytes: int = limit(
        256 * 1024 * 1024,
        "bytes that wait for all readers together, where what waits for several counts "
        "once; the participant for whom most waits is closed with 1013",
        unit="bytes",
    )
    max_streams: int = limit(
        16, "event streams of a participant at once; a further one is refused with 429"
    )
    slow_reader_seconds: float = limit(
        1.0,
        "for which loud senders wait for a reader whose queue is half full, before it is "
        "closed with 1013",
        unit="s",
    )
    frames_per_second: float = limit(
        1_000.0,
        "pings, pongs and fragments of a connection in the long run; what comes faster is "
        "read later",
    )
    frames_burst: int = limit(
        2_000,
        "such frames that may come at once after a pause: the largest message, in fragments "
        "of 2 KiB",
    )
    joins_per_second: float = limit(
        5.0,
        "joins of a participant in the long run; one more is refused with 429, in answer to "
        "a join frame with 1013",
    )
    joins_burst: int = limit(100, "joins that may come at once after a pause")
    strangers_per_second: float = limit(
        20.0,
        "connections from one address that neither say in their handshake who joins where, "
        "nor join by a frame; one more is refused with 429. Those of pages in browsers are counted "
        "by themselves",
    )
    strangers_burst: int = limit(
        250,
        "such connections at once, joined later or not: the members behind one address, "
        "when their gateway has restarted. What says its token in the handshake, as agents "
        "of this package do, is not such a connection",
    )
    failed_tokens: int = limit(
        20,
        "wrong tokens from one address that could be guessed, before such tokens are refused from "
        "there with 429; one of 128 bits or more is only looked up",
    )
    failed_token_seconds: float = limit(5.0, "after which one of these is forgiven", unit="s")
    handshake_timeout: float = limit(10.0, "until a connection has sent its handshake", unit="s")
    join_timeout: float = limit(10.0, "until a connection has said who it is", unit="s")
    join_frames: int = limit(
        64,
        "frames of a connection until then, of 16 KiB together: the join frame, in "
        "fragments perhaps, and some pings. One more closes it with 4400",
    )
    ping_interval: float = limit(20.0, "silence, after which a member is pinged", unit="s")
    ping_deadline: float = limit(20.0, "for its answer", unit="s")
    close_timeout: float = limit(
        5.0, "for one member to read its last messages when its connection is closed", unit="s"
    )
    stop_timeout: float = limit(5.0, "for all of them together when the gateway stops", unit="s")

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


LIMIT_ROWS: Final = rows_of(GatewayLimits)
"""The table."""


def check_message_size(takes: int | None, sent: int) -> None:
    """Refuse a journal that does not take what members may send, both in bytes.

    Raises:
        ConfigurationError: It does not.
    """
    if takes is not None and takes < sent:
        raise ConfigurationError(
            f"gateway.max_message_bytes: members may send {sent} bytes, and the journal takes"
            f" {max(0, takes)} (max_payload of NATS, less 64 KiB); set max_message_bytes to that or"
            " less, or raise max_payload on each server of NATS"
        )
