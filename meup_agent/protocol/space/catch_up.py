"""Reads somebody what they missed, in order, before anything new (PROTOCOL 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meup_agent.protocol.space.journal import Entry, Journal
    from meup_agent.protocol.space.listeners import Form, Listener

PAGE: Final = 500
"""Entries that are read at a time, so that others are heard in between."""

MAX_HELD: Final = 1_000
"""Frames that wait for somebody who is still reading what it missed."""

TOO_SLOW: Final = 1013


class CatchUp:
    """One listener that reads what it missed.

    Args:
        listener: Who.
        seen: The number of the last entry that it has.
        space: The space's name.
        journal: Where what it missed stands.
        delivered: Tells the number of the last entry that everybody else got.
        gap: It was told that some of what it missed is not kept any more, and takes what there is
            from then on.
        frame: An entry in the listener's form.
        done: Takes the listener when it has read everything.
    """

    def __init__(
        self,
        listener: Listener,
        seen: int,
        *,
        space: str,
        journal: Journal,
        delivered: Callable[[], int],
        frame: Callable[[Entry, Form], bytes | None],
        done: Callable[[Listener], None],
        gap: bool = False,
    ) -> None:
        self.listener = listener
        self._seen = self._until = seen
        self._space = space
        self._journal = journal
        self._delivered = delivered
        self._frame = frame
        self._done = done
        self._gap = gap
        self._held: list[bytes] = []
        self._stopped = False

    def step(self) -> None:
        """Read the next page, or be done."""
        if self._stopped:
            return
        if self._gap:
            self._seen = max(self._seen, self._journal.floor(self._space))
        self._until = until = self._delivered()
        if self._seen >= until:
            self._stopped = True
            self._done(self.listener)
            for packed in self._held:
                self.listener.deliver(packed)
        elif not self._too_late():
            self._journal.read(
                self._space, after=self._seen, until=until, limit=PAGE, then=self._take
            )

    def hold(self, packed: bytes) -> None:
        """Keep a frame that is for this listener alone until it has read what it missed."""
        self._held.append(packed)
        if len(self._held) > MAX_HELD:
            self.listener.close(TOO_SLOW, "you read too slowly; connect again")

    def stop(self) -> None:
        """Read no more."""
        self._stopped = True

    def _take(self, entries: tuple[Entry, ...]) -> None:
        # Looked at again: some may have been dropped before they were read.
        if self._stopped or self._too_late():
            return
        self._gap = False
        for entry in entries:
            packed = self._frame(entry, self.listener.form)
            if packed is not None:
                self.listener.deliver(packed)
        # Nothing came: the rest of the numbers are other spaces'.
        self._seen = entries[-1].seq if entries else self._until
        self.listener.ready(self.step)

    def _too_late(self) -> bool:
        """Whether what comes next is not kept any more; then it ends, to be told of the gap."""
        if self._gap or self._seen >= self._journal.floor(self._space):
            return False
        self.listener.close(TOO_SLOW, "you read too slowly; connect again")
        return True
