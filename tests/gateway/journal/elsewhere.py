"""An engine whose store is elsewhere: it gives the numbers, and answers late and out of band.

The store is a thread, and what it says comes back through ``call_soon_threadsafe``, as from a
client library of a server. Nothing knows a number before the store has given it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import anyio
import anyio.to_thread

from meup_agent import Envelope
from meup_agent.gateway import JournalConfig
from meup_agent.gateway.journal import waiting
from meup_agent.gateway.journal.engines import Engine
from tests.properties.late_journal import StandIn
from tests.spaces import Entry, Fact, MemoryJournal, ProposalChange, Recovered, ignore

_stores: dict[Path | None, MemoryJournal] = {}
"""The stores, which outlive the gateway's process, by their address: here, the path of a file that
is never made."""


class RemoteJournal(StandIn):
    """The gateway's end of it."""

    def __init__(self, config: JournalConfig, now: Callable[[], int]) -> None:
        self.on_full: Callable[[bool], None] = ignore
        self.on_failed: Callable[[str], None] = ignore
        self._loop = asyncio.get_running_loop()
        self._store = store = _stores.setdefault(config.path, MemoryJournal(now))
        self._latest = {space: ring.latest for space, ring in store._rings.items()}
        # What is to be called, in order, after how many answers of the store.
        self._asked = self._answered = 0
        self._then: deque[tuple[int, Callable[[], None]]] = deque()
        self._full = self._ended = False
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def append(
        self,
        space: str,
        at: int,
        envelope: Envelope,
        facts: tuple[Fact, ...],
        then: Callable[[Entry], None],
        changes: tuple[ProposalChange, ...] = (),
    ) -> None:
        if self._ended:
            return
        self._asked += 1
        asked = self._asked

        def tell(entry: Entry) -> None:
            self._tell(self._kept, asked, entry, then)

        self._work.put(partial(self._store.append, space, at, envelope, facts, tell))
        self._look_if_full()

    def call_when_kept(self, then: Callable[[], None]) -> None:
        if self._ended:
            return
        if self._asked == self._answered and not self._then:
            then()
        else:
            self._then.append((self._asked, then))
            self._look_if_full()

    def _look_if_full(self) -> None:
        count = self._asked - self._answered + len(self._then)
        limit = waiting.MAX_PENDING // 2 if self._full else waiting.MAX_PENDING
        if self._full != (count > limit):
            self._full = not self._full
            self.on_full(self._full)

    def read(self, *space: Any, then: Callable[[tuple[Entry, ...]], None], **page: Any) -> None:
        if not self._ended:
            tell = partial(self._tell, self._unless_ended, then)
            self._work.put(partial(self._store.read, *space, then=tell, **page))

    def floor(self, space: str) -> int:
        return self._store.floor(space)

    def latest(self, space: str) -> int:
        return self._latest.get(space, self._store.floor(space))

    def recover(
        self, space: str, *, since: int, limit: int, open_at: int | None = None
    ) -> Recovered:
        # Of what may be open it does not tell the old from the others, so it reads them, too.
        since = since if open_at is None else 0
        return self._store.recover(space, since=since, limit=limit)

    async def flush(self, timeout: float) -> None:
        done = anyio.Event()
        self.call_when_kept(done.set)
        with anyio.move_on_after(timeout, shield=True):
            if not self._ended:
                await done.wait()

    async def aclose(self) -> None:
        self._work.put(None)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._thread.join)
        self._ended = True

    def abandon(self) -> None:
        self._ended = True
        with suppress(Exception):
            while True:
                self._work.get_nowait()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _tell(self, then: Callable[..., None], *told: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(then, *told)

    def _unless_ended(self, then: Callable[..., None], told: object) -> None:
        if not self._ended:
            then(told)

    def _kept(self, asked: int, entry: Entry, then: Callable[[Entry], None]) -> None:
        if self._ended:
            return
        self._latest[entry.space] = entry.seq
        try:
            self._call_due(asked - 1)
            self._answered = asked
            then(entry)
        finally:
            self._call_due(asked)
            self._look_if_full()

    def _call_due(self, answered: int) -> None:
        while self._then and self._then[0][0] <= answered:
            self._then.popleft()[1]()


ELSEWHERE = Engine(lambda _: True, RemoteJournal, lambda *_: "elsewhere")
