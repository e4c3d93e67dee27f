"""The one thread that reads a journal's file for those who missed something."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from meup_agent.gateway.journal.rows import READ, entries_of

if TYPE_CHECKING:
    from meup_agent.protocol.space.journal import Entry


class PageRequest(NamedTuple):
    """What is to be read: see :meth:`meup_agent.protocol.space.journal.Journal.read`."""

    space: str
    after: int
    until: int
    limit: int
    then: Callable[[tuple[Entry, ...]], None]


class PageReader:
    """Reads pages, one after the other.

    Nobody asks for a page before the one that it asked for has come, so what waits here is bounded
    by the number of those who read.

    Args:
        connection: Used by this thread alone, once it has started.
        read: Takes a page and what it has; called in the thread.
        failed: Takes what went wrong; called in the thread.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        read: Callable[[PageRequest, tuple[Entry, ...]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._connection = connection
        self._read = read
        self._failed = failed
        self._pages: SimpleQueue[PageRequest | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="meup-journal-reader", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def ask(self, page: PageRequest) -> None:
        """Ask for a page."""
        self._pages.put(page)

    def stop(self) -> None:
        """End after what has been asked for."""
        self._pages.put(None)

    def join(self, timeout: float) -> bool:
        """Wait for the end; whether it has come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (page := self._pages.get()) is not None:
                self._read(page, tuple(entries_of(page.space, self._found(page))))
        except Exception as error:
            self._failed(error)

    def _found(self, page: PageRequest) -> str:
        values = (page.space, page.after, page.until, page.limit)
        found: str = self._connection.execute(READ, values).fetchone()[0]
        return found
