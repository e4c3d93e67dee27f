"""A journal that is written, or fails, when the test says so."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from meup_agent import Envelope
from tests.spaces import (
    Entry,
    Fact,
    FoldBegin,
    HistoryPage,
    HistoryQuery,
    NumberRange,
    ProposalChange,
    Recovered,
    ignore,
)


class File:
    """The part that outlives the process."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.ever: list[tuple[int, str]] = []
        """Number and id of all that was kept, also of what is forgotten."""
        self.facts: dict[str, dict[str, Any]] = {}
        self.floor = 0


class StandIn:
    """The part of a journal that the journals of tests share: nothing of theirs is lost."""

    def find_begin(self, space: str, *, proposals: int, then: Callable[[FoldBegin], None]) -> None:
        then(FoldBegin())

    def find_decisions(
        self, space: str, query: HistoryQuery, then: Callable[[HistoryPage], None]
    ) -> None:
        then(HistoryPage())

    def find_chain(
        self, space: str, number: int, then: Callable[[tuple[Entry, ...]], None]
    ) -> None:
        then(())

    def seen(self, space: str, participant: str) -> int:
        return 0

    def mark_seen(self, space: str, participant: str, at: int) -> None:
        pass

    @property
    def max_bytes(self) -> int | None:
        return None

    @property
    def max_frame_bytes(self) -> int | None:
        return None

    @property
    def problem(self) -> str:
        return ""

    def size(self) -> int | None:
        return None

    def floor(self, space: str) -> int:
        raise NotImplementedError

    def latest(self, space: str) -> int:
        raise NotImplementedError

    def resume_from(self, space: str, seen: int) -> int:
        floor = self.floor(space)
        return seen if floor <= seen <= self.latest(space) else floor

    def damaged(self, space: str, *, after: int, until: int) -> tuple[NumberRange, ...]:
        return ()


class LateJournal(StandIn):
    """A journal whose store keeps and numbers what it is given when it is told to.

    So a number is known only when an envelope is kept, as with a store on another machine.

    Args:
        file: Where it is kept.
        now: The time in microseconds.
    """

    def __init__(self, file: File, now: Callable[[], int]) -> None:
        self.file = file
        self.on_full: Callable[[bool], None] = ignore
        self.on_failed: Callable[[str], None] = ignore
        last = file.entries[-1].seq if file.entries else file.floor
        self._seq = max(now(), last)
        if not file.floor:
            file.floor = self._seq
        self._latest = last or self._seq
        self._pending: deque[Callable[[], Callable[[], None]]] = deque()
        self._asked: deque[Callable[[], None]] = deque()
        self.dead = False

    def append(
        self,
        space: str,
        at: int,
        envelope: Envelope,
        facts: tuple[Fact, ...],
        then: Callable[[Entry], None],
        changes: tuple[ProposalChange, ...] = (),
    ) -> None:
        def keep() -> Callable[[], None]:
            self._seq = self._latest = self._seq + 1
            entry = Entry(self._seq, space, at, envelope, facts)
            self.file.entries.append(entry)
            self.file.ever.append((entry.seq, envelope.id))
            for key, value in facts:
                self.file.facts.pop(key, None)
                if value is not None:
                    self.file.facts[key] = value
            return partial(then, entry)

        self._pending.append(keep)

    def call_when_kept(self, then: Callable[[], None]) -> None:
        if self._pending:
            self._pending.append(lambda: then)
        else:
            then()

    def read(
        self,
        space: str,
        *,
        after: int,
        until: int,
        limit: int,
        then: Callable[[tuple[Entry, ...]], None],
    ) -> None:
        def answer() -> None:
            found = [each for each in self.file.entries if after < each.seq <= until]
            then(tuple(found[:limit]))

        self._asked.append(answer)

    def floor(self, space: str) -> int:
        return self.file.floor

    def latest(self, space: str) -> int:
        return self._latest

    def recover(
        self, space: str, *, since: int, limit: int, open_at: int | None = None
    ) -> Recovered:
        entries = [each for each in self.file.entries if each.at >= since]
        return Recovered(dict(self.file.facts), tuple(entries[-limit:]))

    async def flush(self, timeout: float) -> None:
        self.commit(len(self._pending))

    async def aclose(self) -> None:
        self.commit(len(self._pending))

    def abandon(self) -> None:
        self.die(0)

    # --- what the store does ---

    def commit(self, at_most: int) -> None:
        """Keep so much of what waits, and then tell those who wait for it."""
        for _ in range(min(at_most, len(self._pending))):
            if not self.dead:
                self._pending.popleft()()()

    def die(self, at_most: int) -> None:
        """Keep so much of what waits, and tell of nothing more."""
        self.dead = True
        for _ in range(min(at_most, len(self._pending))):
            self._pending.popleft()()

    def answer(self, at_most: int) -> None:
        """Hand over so many of the pages that a member asked for."""
        for _ in range(min(at_most, len(self._asked))):
            if not self.dead:
                self._asked.popleft()()

    def forget(self, many: int) -> None:
        """Keep the oldest no longer."""
        gone = self.file.entries[:many]
        if gone:
            self.file.floor = gone[-1].seq
            del self.file.entries[:many]
