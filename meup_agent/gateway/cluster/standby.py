"""One gateway at work, and others with the same configuration that wait to take over from it.

All spaces are at the one that owns the log; the others listen, and let nobody in. Which one is at
work is a matter of a lock; that two never accept anything at once is the log's matter, whose fence
holds whoever has the lock (:mod:`meup_agent.gateway.journal.postgres.log`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from threading import Thread
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.cluster.checks import refuse_output_logs
from meup_agent.gateway.cluster.membership import config_parts, refuse_differing
from meup_agent.gateway.journal.postgres.journal import PostgresJournal
from meup_agent.gateway.journal.postgres.log import (
    InUse,
    NotReached,
    OwnedLog,
    place_of,
    postgres_of,
)
from meup_agent.gateway.journal.waiting import node_name

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig
    from meup_agent.gateway.runtime import GatewayRuntime

log = logging.getLogger("meup_agent.gateway")

SHORT_SECONDS: Final = 2.0
"""For a gateway that has just gone, until this one says that it waits."""

FIRST_PAUSE_SECONDS: Final = 1.0
"""Pause until the log is tried again that could not be opened or written; it doubles each time."""

MAX_PAUSE_SECONDS: Final = 60.0


class StandbyKeeper:
    """The spaces of a gateway whose journal is in PostgreSQL: all of them, or none."""

    membership = None

    def __init__(
        self, runtime: GatewayRuntime, config: JournalConfig, now: Callable[[], int]
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._place = place_of(postgres_of(config))
        self._now = now
        self._journal: PostgresJournal | None = None
        self._lost = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        runtime.on_reload.append(self._reconfigure)
        runtime.on_abort.append(self._stop)

    async def begin(self) -> None:
        """Begin all spaces, or wait until the gateway that has them is gone.

        Raises:
            ConfigurationError: They cannot be begun, or that gateway has another configuration.
        """
        try:
            await self._take_at_first()
        except InUse as error:
            at_work = ascii(error.node or "another")
            refuse_output_logs(self._runtime.config, f"({at_work} is at work); remove it")
            if error.parts:
                refuse_differing(config_parts(self._runtime.config), error.parts, error.node)
            log.info(
                "the gateway %s is at work with %s; this one waits",
                *(ascii(error.node), self._place),
            )
        # In a task of its own: a gateway may be begun by one task and ended by another.
        self._running = asyncio.create_task(self._run(), name="meup spaces")

    async def _take_at_first(self) -> None:
        was_reached = False
        while True:
            try:
                return await self._take(SHORT_SECONDS)
            except NotReached as error:
                # A server that starts again meanwhile is no mistake of who wrote the address.
                if not (was_reached or error.was_reached):
                    raise
                if not was_reached:
                    log.warning("the spaces cannot begin: %s; it is tried again", error)
                was_reached = True
                await asyncio.sleep(FIRST_PAUSE_SECONDS)

    async def leave(self) -> None:
        """Hand all spaces over: the gateway ends in order; harmless the second time."""
        self._runtime.accepting = False
        self._stop()
        if self._running is not None:
            await asyncio.wait([self._running])
        journal, self._journal = self._journal, None
        if journal is not None:
            await journal.flush(self._runtime.limits.stop_timeout)
            self._close_spaces("the gateway stops; connect again")
            await journal.aclose()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        pause, told = FIRST_PAUSE_SECONDS, ""
        while True:
            if self._journal is not None:
                await self._lost.wait()
                # An error may come again with the first message.
                await asyncio.sleep(pause)
            try:
                await self._take(inf)
            except Exception as error:
                if not isinstance(error, ConfigurationError):
                    log.exception("the spaces cannot begin")
                why = str(error) or repr(error)
                if why != told:
                    log.warning("the spaces cannot begin: %s; it is tried again", why)
                    told = why
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
            else:
                pause, told = FIRST_PAUSE_SECONDS, ""

    async def _take(self, seconds: float) -> None:
        """Own the log, once no other gateway does, and begin all spaces."""
        owned = OwnedLog(self._config, self._now, config_parts(self._runtime.config))
        try:
            await _in_thread(partial(owned.open, seconds))
            journal = PostgresJournal(self._config, self._now, owned)
            try:
                self._lost = asyncio.Event()
                journal.on_failed = partial(self._lose, journal)
                for space in self._runtime.config.spaces:
                    self._runtime.open_space(space.id, journal)
            except BaseException:
                journal.abandon()
                raise
        except BaseException:
            owned.let_go()
            self._close_spaces("the space cannot begin; connect again later")
            raise
        self._journal = journal
        log.info("this gateway is at work with %s", self._place)
        if journal.failure:
            self._lose(journal, journal.failure)

    def _lose(self, journal: PostgresJournal, sentence: str) -> None:
        """End all spaces here: the log has been taken over, or cannot be written."""
        if self._journal is not journal:
            return
        self._journal = None
        if journal.is_replaced:
            log.info("%s", sentence)
            self._close_spaces("another gateway has the space; connect again")
        else:
            for space in self._runtime.config.spaces:
                self._runtime.fail_space(space.id, sentence)
        self._lost.set()

    def _close_spaces(self, reason: str) -> None:
        for name in tuple(self._runtime.spaces):
            self._runtime.close_space(name, reason)

    def _reconfigure(self) -> None:
        if self._journal is not None:
            self._journal.log.reconfigure(config_parts(self._runtime.config))


async def _in_thread(work: Callable[[], None]) -> None:
    """Wait for what blocks, in a thread that holds up no end of the process."""
    done = Future[None]()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            work()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, name="meup-journal-opener", daemon=True).start()
    await asyncio.wrap_future(done)


@asynccontextmanager
async def keep_or_wait(
    runtime: GatewayRuntime, config: JournalConfig, now: Callable[[], int]
) -> AsyncGenerator[StandbyKeeper]:
    """Keep all spaces of a gateway in PostgreSQL, once it begins and whenever no other does.

    Leaving the block hands them over.
    """
    runtime.node = node_name(postgres_of(config))
    keeper = StandbyKeeper(runtime, config, now)
    try:
        yield keeper
    finally:
        with anyio.CancelScope(shield=True):
            await keeper.leave()
        runtime.abandon_spaces()
