"""The limits of each participant of a space, and the form of a limit that is declared once.

A gateway's own limits are further rows after these (:mod:`meup_agent.gateway.limits`), so a space
reads what is configured by the name under which it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple, TypeVar

from meup_agent.protocol.limits import MAX_DEPTH, MAX_FRAME_BYTES

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


def limit(default: N, about: str, *, unit: str = "", at_most: N | None = None) -> N:
    """A field of a class of limits, with its row of the table."""
    row = {"default": default, "unit": unit, "about": about, "at_most": at_most}
    value: N = field(default=default, metadata={_ROW: row})
    return value


def rows_of(limits: type[Allowance]) -> tuple[LimitRow, ...]:
    """The rows of a class of limits."""
    return tuple(LimitRow(each.name, **each.metadata[_ROW]) for each in fields(limits))


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of each participant of a space."""

    max_depth: int = limit(
        MAX_DEPTH,
        "levels of arrays and objects in a message; not more than this default",
        at_most=MAX_DEPTH,
    )
    messages_per_second: float = limit(
        1_000.0, "messages of a participant in the long run; what comes faster is read later"
    )
    messages_burst: int = limit(2_000, "messages that may come at once after a pause")
    bytes_per_second: float = limit(
        # Four of the largest, or 16 KiB in each of a thousand.
        4 * MAX_FRAME_BYTES,
        "bytes of a participant's messages in the long run; what comes faster is read later",
        unit="bytes",
    )
    bytes_burst: int = limit(
        16 * MAX_FRAME_BYTES,
        "bytes of messages that may come at once after a pause",
        unit="bytes",
    )
    withdrawals_per_second: float = limit(
        100.0,
        "withdrawals of a participant in the long run; what comes faster is read later, and "
        "none is refused",
    )
    withdrawals_burst: int = limit(1_000, "withdrawals at once")
    max_open_proposals: int = limit(
        1_000, "proposals of a participant that are neither fulfilled nor withdrawn"
    )
    max_beside: int = limit(
        64,
        "connections of one participant beside the one that answers; a further one is refused "
        "with 429",
    )
    max_observers: int = limit(
        16, "connections of one participant that look on; a further one is refused with 429"
    )
    max_open_streams: int = limit(
        32, "open streams that a participant requested; a further request is refused"
    )
    max_space_streams: int = limit(
        256, "open streams of a space, of which each newcomer is told; a further one is refused"
    )
    max_stream_queued_frames: int = limit(
        256,
        "frames of one stream that wait for a member who reads slowly, and four times as many of "
        "all streams; it loses the further ones, and is told how many",
    )
    max_stream_queued_bytes: int = limit(256 * 1024, "the same, in bytes", unit="bytes")
