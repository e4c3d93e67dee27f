"""When the processes of a participant went away that left proposals open."""

from __future__ import annotations

from typing import Final

GONE_SECONDS: Final = 30.0
"""After which a process that is away will not be back for what it proposed (PROTOCOL 4.6)."""

_GONE_MICROSECONDS: Final = round(GONE_SECONDS * 1_000_000)


class Departures:
    """Knows until when what a participant proposed was left behind by a process that is gone.

    A process that crashed cannot withdraw what it proposed: its participant would be refused
    further proposals for as long as these count as open.
    """

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        self._gone: dict[str, int] = {}

    def left(self, participant: str, at: int) -> None:
        """A participant has left the space.

        Args:
            participant: Who.
            at: When, in microseconds.
        """
        self._left[participant] = at

    def joined(self, participant: str, at: int, *, new: bool) -> None:
        """A participant has joined the space.

        Args:
            participant: Who.
            at: When, in microseconds.
            new: It has nothing to resume: another process than the one before.
        """
        left = self._left.pop(participant, None)
        if new:
            self._gone[participant] = at
        elif left is not None and at - left >= _GONE_MICROSECONDS:
            self._gone[participant] = left

    def gone_until(self, participant: str, at: int) -> int | None:
        """Up to when processes of a participant spoke that have been gone for long enough.

        Args:
            participant: Who.
            at: The time in microseconds.
        """
        for moment in (self._left.get(participant), self._gone.get(participant)):
            if moment is not None and at - moment >= _GONE_MICROSECONDS:
                return moment
        return None
