"""The two threads of a journal that numbers its entries: one writes, the other reads pages.

So the gateway's loop never waits for a disk or a server.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from meup_agent.gateway.journal.rows import Row
from meup_agent.protocol.space.decisions import DecisionRow

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig
    from meup_agent.protocol.space.journal import Fact

STEP: Final = 500
"""Envelopes that are forgotten at a time at least, so that writing waits for no more than that."""

INTERVAL: Final = 1.0
"""Seconds between two looks at the age of the oldest, while nothing is written."""

MAX_BATCH: Final = 2_048
"""Envelopes that are committed together."""

C = TypeVar("C")

Then = Callable[[Any], None]


class WriteJob(NamedTuple):
    """An envelope to write, with facts that hold from then on.

    It has the floor of its space, where it is the first envelope of that.
    """

    row: Row
    facts: tuple[Fact, ...] = ()
    floor: int | None = None
    names: tuple[int, ...] = ()  # hashed
    proposals: Sequence[DecisionRow] = ()  # as they are from then on


class _JournalThread(threading.Thread):
    """A thread of the journal, which tells its failure and ends.

    A daemon, so that a process that is ending does not wait for a disk that hangs.
    """

    on_failed: Callable[[Exception], object]

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(target=work, name=f"meup-journal-{name}", daemon=True)

    def run(self) -> None:
        """Work until the end."""
        try:
            super().run()
        except Exception as error:
            self.on_failed(error)


class WriterThread(_JournalThread, ABC):
    """Writes what is handed to it, in batches, in order, and applies the retention in between.

    In its thread it tells the last number that was committed, or the failure after which nothing is
    written. An engine says how a batch is written, and which of the oldest are forgotten.

    Attributes:
        on_written: Told the number up to which all is kept.
        on_failed: Told why nothing more is.
    """

    on_written: Callable[[int], object]

    def __init__(self, config: JournalConfig, now: Callable[[], int]) -> None:
        super().__init__("writer", self._work)
        self._max_age = None if config.max_age is None else round(config.max_age * 1_000_000)
        self._max_bytes = config.max_bytes
        self._now = now
        self._waiting: list[WriteJob] = []
        self._notes: dict[object, tuple[str, tuple[Any, ...]]] = {}
        self._stopping = False
        self._changed = threading.Condition()
        self._since = STEP  # written since the oldest were looked at
        self._looked = 0
        self._more = False

    # --- called on other threads --------------------------------------------------------------

    def put(self, work: Sequence[WriteJob]) -> None:
        """Hand over what is to be written next."""
        with self._changed:
            self._waiting += work
            self._changed.notify()

    def note(self, key: object, statement: str, *values: Any) -> None:
        """Execute a statement next, in place of an earlier one with that key."""
        with self._changed:
            self._notes[key] = statement, values
            self._changed.notify()

    def stop(self, *, discard: bool = False) -> None:
        """End when everything is written, or at once."""
        with self._changed:
            self._stopping = True
            if discard:
                self._waiting.clear()
            self._changed.notify()

    # --- an engine ----------------------------------------------------------------------------

    @property
    def interval(self) -> float | None:
        """Seconds after which to look again though nothing was written; ``None``: never."""
        return None if self._max_age is None and self._max_bytes is None else INTERVAL

    @abstractmethod
    def _execute(self, statement: str, values: tuple[Any, ...]) -> None:
        """Execute a statement."""

    @abstractmethod
    def _write(self, work: Sequence[WriteJob]) -> None:
        """Commit a batch, all or nothing; an empty one where nothing came for a while."""

    @abstractmethod
    def _find_old(self, limit: int, oldest: int, max_bytes: int | None) -> int | None:
        """The last number of those before a time, or too much for so many bytes, of so many."""

    @abstractmethod
    def _forget(self, until: int) -> None:
        """Forget all up to a number."""

    def _shrink(self) -> bool:
        """Give back what is empty; true if there is more of it."""
        return False

    # --- the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        more = self.step()
        while (work := self._next(wait=not more)) is not None:
            self._write(work)
            if work:
                self.on_written(work[-1].row.seq)
            more = self.step(len(work))

    def _next(self, *, wait: bool) -> list[WriteJob] | None:
        """The next batch, empty if it is time to forget something; ``None`` at the end."""
        with self._changed:
            if wait and not (self._waiting or self._notes or self._stopping):
                self._changed.wait(self.interval)
            notes, self._notes = self._notes, {}
            is_over = self._stopping and not self._waiting
            work = self._waiting[:MAX_BATCH]
            del self._waiting[:MAX_BATCH]
        for note in notes.values():
            self._execute(*note)
        return None if is_over else work

    def step(self, written: int = 0) -> bool:
        """Forget some of the oldest, more than were written since; true if there may be more."""
        self._since += written
        now = self._now()
        is_time = self._since >= STEP or not 0 <= now - self._looked < INTERVAL * 1_000_000
        if (self._max_age is None and self._max_bytes is None) or not (self._more or is_time):
            return False
        limit = max(STEP, 2 * self._since)
        self._since, self._looked = 0, now
        oldest = 0 if self._max_age is None else now - self._max_age
        until = self._find_old(limit, oldest, self._max_bytes)
        if until is None:
            self._more = self._shrink()
        else:
            self._forget(until)
            self._more = True
        return self._more


class JournalReader(_JournalThread, Generic[C]):
    """Runs queries on a connection, one after the other.

    A reader asks for a page when its last one has come, so what waits here is bounded by the number
    of the readers. Results and failures are told in this thread, which alone has the connection.
    """

    on_read: Callable[[Then, Any], object]

    def __init__(self, connection: C) -> None:
        super().__init__("reader", self._work)
        self._connection = connection
        self._jobs: SimpleQueue[tuple[Callable[[C], Any], Then] | None] = SimpleQueue()

    def ask(self, query: Callable[[C], Any], then: Then) -> None:
        """Queue a query, whose result the other takes in the loop."""
        self._jobs.put((query, then))

    def stop(self) -> None:
        """End after what has been asked for."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            query, then = job
            self.on_read(then, query(self._connection))
