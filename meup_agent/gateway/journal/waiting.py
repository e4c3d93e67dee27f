"""The base of engines that keep an envelope later than they are given it: what waits for that."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Generic, TypeVar

import anyio
import msgspec

from meup_agent.protocol.space.decisions import (
    DecisionRow,
    HistoryPage,
    HistoryQuery,
    select_decisions,
)
from meup_agent.protocol.space.journal import MAX_DECISIONS, Entry, FoldBegin, ignore

MAX_PENDING: Final = 10_000
"""Envelopes, and calls that wait for them; with more, members are not read from until it is
half."""

MAX_PENDING_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the same."""

A_TURN: Final = 256
"""Envelopes that are delivered in one turn of the loop, so that what else is due is not late."""


class Lost(Exception):
    """The log is not this gateway's any more, or cannot be written; says why in a sentence."""


class Replaced(Lost):
    """Another gateway owns the log."""


class WaitingRoom:
    """Bounds what waits to be kept, over all journals that share it."""

    def __init__(self) -> None:
        self.on_full: Callable[[bool], None] = ignore
        self._count = self._bytes = 0
        self._is_full = False

    def enter(self, size: int) -> None:
        """Count one in."""
        self._count += 1
        self._bytes += size
        if not self._is_full and (self._count > MAX_PENDING or self._bytes > MAX_PENDING_BYTES):
            self._is_full = True
            self.on_full(True)

    def leave(self, count: int, size: int) -> None:
        """Count so many out, of so many bytes in all."""
        self._count -= count
        self._bytes -= size
        if (
            self._is_full
            and self._count <= MAX_PENDING // 2
            and self._bytes <= MAX_PENDING_BYTES // 2
        ):
            self._is_full = False
            self.on_full(False)


class PendingCall(msgspec.Struct):
    """A call that waits for all before it."""

    then: Callable[[], None]


class PendingEntry(msgspec.Struct):
    """An entry that waits to be kept; an engine adds what it has to know of it."""

    then: Callable[[Entry], None]
    size: int


class DecisionTable:
    """The table of decisions of an engine that has it in memory, the latest alone."""

    def __init__(self, rows: Iterable[DecisionRow] = ()) -> None:
        self.rows = {row.seq: row for row in rows}

    def put(self, rows: Iterable[DecisionRow]) -> None:
        """Take in rows as they are from now on."""
        for row in rows:
            self.rows[row.seq] = row
        while len(self.rows) > MAX_DECISIONS:
            del self.rows[next(iter(self.rows))]

    def find(self, space: str, query: HistoryQuery) -> HistoryPage:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.find_decisions`."""
        return select_decisions((row for row in self.rows.values() if row.space == space), query)


W = TypeVar("W", bound=PendingEntry)


class WaitingJournal(ABC, Generic[W]):
    """A part of a :class:`~meup_agent.protocol.space.journal.Journal`: its callbacks, in order.

    An engine puts what it is to keep into ``_pending`` and the room, says what of that is kept
    (:meth:`_kept_entry`), and calls :meth:`_deliver` when it has learned of more, unless
    ``_is_delivering``: then a later turn of the loop does.

    Args:
        room: The room that it shares; without it, it has its own.
    """

    def __init__(self, room: WaitingRoom | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.on_full: Callable[[bool], None] = ignore
        """See :attr:`~meup_agent.protocol.space.journal.Journal.on_full`; a room that is shared
        tells it by itself."""
        self.on_failed: Callable[[str], None] = ignore
        self.failure = ""  # the sentence with which it failed
        if room is None:
            room = WaitingRoom()
            room.on_full = lambda is_full: self.on_full(is_full)
        self._room = room
        self._pending: deque[PendingCall | W] = deque()
        self._is_delivering = self._ended = False
        self._flushing: list[anyio.Event] = []

    @abstractmethod
    def _kept_entry(self, waiting: W) -> Entry | None:
        """The entry, from now on delivered; ``None``: it is not kept yet."""

    def call_when_kept(self, then: Callable[[], None]) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.call_when_kept`."""
        if self._ended:
            return
        if self._pending:
            self._pending.append(PendingCall(then))
            self._room.enter(0)
        else:
            then()

    def find_begin(self, space: str, *, proposals: int, then: Callable[[FoldBegin], None]) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.find_begin`; without an index."""
        then(FoldBegin())

    def find_chain(
        self, space: str, number: int, then: Callable[[tuple[Entry, ...]], None]
    ) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.find_chain`; without an index."""
        then(())

    async def flush(self, timeout: float) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.flush`."""
        if self._ended:
            return
        done = anyio.Event()
        self._flushing.append(done)
        self.call_when_kept(done.set)
        with anyio.move_on_after(timeout, shield=True):
            await done.wait()
        self._flushing.remove(done)

    def _deliver(self) -> None:
        """Call back, in order, as far as all is kept, as much as fits into a turn."""
        pending, count, size = self._pending, 0, 0
        # Also where one of them raises: the others have been promised, too.
        self._is_delivering = True
        try:
            while count < A_TURN:
                if self._ended or not pending:
                    self._is_delivering = False
                    break
                first = pending.popleft()
                if isinstance(first, PendingCall):
                    count += 1
                    first.then()
                elif (entry := self._kept_entry(first)) is not None:
                    count, size = count + 1, size + first.size
                    first.then(entry)
                else:
                    pending.appendleft(first)
                    self._is_delivering = False
                    break
        finally:
            if self._is_delivering:
                self._loop.call_soon(self._deliver)
            self._room.leave(count, size)

    def _fail(self, sentence: str) -> None:
        if self._ended:
            return
        try:
            while self._is_delivering:  # it is kept, and was to be done in a later turn
                self._deliver()
        finally:
            self._end()
            self.failure = sentence
            self.on_failed(sentence)

    def _end(self) -> None:
        """Call nothing any more, and end every wait for it."""
        self._ended = True
        self.on_full = ignore
        sizes = [each.size if isinstance(each, PendingEntry) else 0 for each in self._pending]
        self._pending.clear()
        self._room.leave(len(sizes), sum(sizes))
        for waiting in self._flushing:
            waiting.set()

    def _to_loop(self, then: Callable[..., object], *told: object) -> None:
        """Call on the gateway's loop, unless it has ended by then; from any thread."""
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for this
            self._loop.call_soon_threadsafe(self._unless_ended, then, *told)

    def _soon(self, then: Callable[..., object], *told: object) -> None:
        """Call in the next turn of the gateway's loop, unless it has ended by then."""
        self._loop.call_soon(self._unless_ended, then, *told)

    def _unless_ended(self, then: Callable[..., object], *told: object) -> None:
        if not self._ended:
            then(*told)
