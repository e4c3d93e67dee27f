"""Begins the spaces that a gateway is to own, each with a log of its own, and ends them again.

A space is begun where nobody has it and it is to be here; it is handed over where it is to be
elsewhere, a few at a time; one whose log fails stops by itself, and is begun again after a pause.
The two gateways that are next for a space follow its log, so that it begins at once when its owner
is gone.
That two gateways never accept anything in a space at once is the matter of its log alone, whose
fence holds whatever is believed here (:mod:`meup_agent.gateway.journal.nats.log`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import msgspec

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.cluster.checks import check_several
from meup_agent.gateway.cluster.membership import ClusterMembership, config_parts
from meup_agent.gateway.cluster.placement import NodeHeartbeat, next_owner, owner_of, plan_for
from meup_agent.gateway.cluster.shared import SharedValues
from meup_agent.gateway.journal.nats.journal import NatsJournal, max_frame_bytes
from meup_agent.gateway.journal.nats.link import Link
from meup_agent.gateway.journal.waiting import WaitingRoom, node_name
from meup_agent.gateway.limits import check_message_size

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from meup_agent.gateway.config import JournalConfig
    from meup_agent.gateway.runtime import GatewayRuntime

log = logging.getLogger("meup_agent.gateway")

TAKES_AT_ONCE: Final = 8
"""Spaces that are begun at the same time; each reads the rest of its stream."""

READS_AT_ONCE: Final = 2
"""Logs of others that are read at the same time."""

FOLLOW_SECONDS: Final = 0.25
"""Pause after a reading of another's log: what comes in it is taken together."""

MOVES_AT_ONCE: Final = 4
"""Spaces that are handed over at the same time, so that not all members dial at once."""

MOVE_SECONDS: Final = 5.0
"""Wait for another gateway to begin a space; then the next one is handed over."""

LOOK_SECONDS: Final = 0.5
"""Interval of the check what is to be done, if nothing has changed."""

REPLACED_SECONDS: Final = 1.0
"""Pause until a gateway that was replaced in a space looks who owns it."""

IDLE_SECONDS: Final = 5.0
"""Time in which a gateway is to say that it begins a space; then it is the next one's."""

FIRST_PAUSE_SECONDS: Final = 1.0
"""Pause until a space whose stream failed is begun again; it doubles each time."""

MAX_PAUSE_SECONDS: Final = 60.0


class RetryPause(NamedTuple):
    """The time for which a space is not begun here, and the length of the next one."""

    until: float
    seconds: float
    is_failure: bool  # another gateway may have the space meanwhile, and keeps it


class SpaceKeeper:
    """The spaces of a gateway whose journal is on NATS."""

    def __init__(
        self,
        runtime: GatewayRuntime,
        config: JournalConfig,
        link: Link,
        membership: ClusterMembership,
        now: Callable[[], int],
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._link = link
        self.membership: Final = membership
        """The gateway's place among the others."""
        self._now = now
        self._room = WaitingRoom()
        self._room.on_full = runtime.hold
        self._owned: dict[str, NatsJournal] = {}
        self._followed: dict[str, NatsJournal] = {}  # spaces of others
        self._read: set[str] = set()  # those of them whose logs were read to their end
        self._working: set[str] = set()  # spaces that are being begun or handed over
        self._moving: dict[str, float] = {}  # handed over at a time
        self._pauses: dict[str, RetryPause] = {}
        # Spaces that others are to begin and do not, with those: since when, and until when they
        # are the next one's.
        self._idle: dict[tuple[str, str], float] = {}
        self._passed_over: dict[tuple[str, str], float] = {}
        self._begins: Final = asyncio.Semaphore(TAKES_AT_ONCE)
        self._reads: Final = asyncio.Semaphore(READS_AT_ONCE)
        self._first_error: ConfigurationError | None = None
        self._is_first = True
        self._tasks: TaskGroup | None = None
        self._running: asyncio.Task[None] | None = None
        runtime.on_reload.append(self._reconfigure)
        runtime.on_abort.append(membership.end)

    async def begin(self) -> None:
        """Begin the spaces that are to be here now, and go on as gateways come and go.

        Raises:
            ConfigurationError: One of them cannot be, and there is no other gateway that could.
        """
        await self.membership.join()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self._look()
        self._is_first = False
        if self._first_error is not None and len(self.membership.nodes) == 1:
            raise self._first_error
        # In a task of its own: a gateway may be begun by one task and ended by another.
        self._running = asyncio.create_task(self._run(), name="meup spaces")
        self._running.add_done_callback(partial(_note_end, self._runtime))

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            while True:
                self._look()
                with anyio.move_on_after(LOOK_SECONDS):
                    await self.membership.changed.wait()

    async def leave(self) -> None:
        """Hand all spaces over: the gateway ends in order; harmless the second time."""
        self._runtime.accepting = False
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        self._unfollow(tuple(self._followed))
        self.membership.leave()
        async with anyio.create_task_group() as tasks:
            for name in tuple(self._owned):
                tasks.start_soon(self._hand_over, name, "the gateway stops; connect again")

    def _reconfigure(self) -> None:
        self.membership.reconfigure(self._runtime.config)
        # What a space makes of an entry depends on its configuration.
        self._unfollow(tuple(self._followed))

    def _look(self) -> None:
        """Begin what there is to do."""
        tasks, membership, now = self._tasks, self.membership, asyncio.get_running_loop().time()
        if tasks is None or not self._runtime.accepting:
            return
        names = [space.id for space in self._runtime.config.spaces]
        paused = {name: pause for name, pause in self._pauses.items() if pause.until > now}
        for name in tuple(self._runtime.stopped):
            if membership.owner_of(name) is not None:
                del self._runtime.stopped[name]  # another gateway could begin it
        membership.refuse(name for name, pause in paused.items() if pause.is_failure)
        nodes = self._able_nodes(names, now)
        plan = plan_for(membership.nonce, nodes, names, membership.steady)
        for name in plan.take:
            if name not in self._working and name not in paused:
                self._working.add(name)
                tasks.start_soon(self._take, name)
        membership.begin(self._working.difference(self._owned))
        self._moving = {
            name: until
            for name, until in self._moving.items()
            if until > now and (name in self._owned or membership.owner_of(name) is None)
        }
        for name in plan.hand_over:
            if len(self._moving) >= MOVES_AT_ONCE:
                break
            if name in self._owned and name not in self._working:
                self._working.add(name)
                self._moving[name] = now + MOVE_SECONDS
                tasks.start_soon(self._hand_over, name, "the space moves; connect again")

        if not self._is_first:  # else its end would be waited for
            # One that nobody has is followed on: another one is about to take it.
            owned = {name for name in self._followed if membership.owner_of(name) is not None}
            self._unfollow(owned.difference(plan.follow, self._working))
            for name in plan.follow:
                if name not in self._followed and name not in self._working:
                    self._followed[name] = journal = self._journal_of(name)
                    tasks.start_soon(self._follow, name, journal)

    def _able_nodes(self, names: Sequence[str], now: float) -> dict[str, NodeHeartbeat]:
        """The gateways; who was to begin a space and did not refuses it for a while."""
        membership = self.membership
        self._passed_over = {key: until for key, until in self._passed_over.items() if until > now}
        nodes = membership.nodes_for(names)
        for name, nonce in self._passed_over:
            if (node := nodes.get(nonce)) is not None:
                nodes[nonce] = msgspec.structs.replace(node, refused=[*node.refused, name])
        idle = dict[tuple[str, str], float]()
        for name in names if membership.hears else ():
            if owner_of(name, nodes.values()) is None:
                taking = next_owner(name, nodes.values())
                if taking is None or taking.nonce == membership.nonce or name in taking.begins:
                    continue
                key = name, taking.nonce
                idle[key] = self._idle.get(key, now)
                if now - idle[key] > IDLE_SECONDS:
                    self._passed_over[key] = now + MAX_PAUSE_SECONDS
                    log.warning(
                        "the gateway %s is to begin space %s, and does not",
                        *(ascii(taking.node), ascii(name)),
                    )
        self._idle = idle
        return nodes

    def _journal_of(self, name: str) -> NatsJournal:
        journal = NatsJournal(self._config, self._now, self._link, self._room)
        journal.on_failed = partial(self._lose, name, journal)
        journal.configuration = partial(self.membership.parts_of, name)
        journal.format = self.membership.common_format
        return journal

    def _unfollow(self, names: Iterable[str]) -> None:
        for name in names:
            self._followed.pop(name).abandon()
        self._note_read()

    def _note_read(self) -> None:
        # What is being begun here is read: nobody else is to begin it meanwhile.
        self._read.intersection_update({*self._followed, *self._working})
        self.membership.follow(self._read)

    async def _follow(self, name: str, journal: NatsJournal) -> None:
        """Read what is said in a space of another gateway, until it is to be followed no more."""
        begin, told = partial(self._runtime.begin_fold, name, journal), ""
        while True:
            try:
                async with self._reads:
                    if self._followed.get(name) is not journal:
                        return
                    await journal.follow(name, begin)
                if name not in self._read and self._followed.get(name) is journal:
                    self._read.add(name)
                    self._note_read()
            except Exception as error:
                if self._followed.get(name) is journal:
                    self._read.discard(name)
                    self._note_read()
                # A takeover finds the same, and stops the space.
                if told != str(error):
                    told = str(error)
                    log.warning("space %s is not followed: %s", ascii(name), told or repr(error))
            await anyio.sleep(FOLLOW_SECONDS)
            await journal.wait_for_more()

    async def _take(self, name: str) -> None:
        """Begin a space."""
        try:
            async with self._begins:
                journal = self._followed.get(name)
                if journal is not None and name not in self._read:
                    # Before it is asked who has the space: it takes a while, in which a gateway
                    # that was not heard for a moment may be heard again.
                    with suppress(Exception):  # whatever it is, the beginning finds it, too
                        await journal.follow(name, partial(self._runtime.begin_fold, name, journal))
                if self.membership.owner_of(name) is None:
                    await self._open(name)
        finally:
            self._working.discard(name)
            self._note_read()
            self.membership.changed.notify_all()

    async def _open(self, name: str) -> None:
        journal = self._followed.pop(name, None) or self._journal_of(name)
        config = self._runtime.config
        try:
            fold = await journal.open(name, partial(self._runtime.begin_fold, name, journal))
            if self._runtime.config is not config:
                # What may be done there was read again meanwhile: it is begun anew at once.
                journal.abandon()
                return
            self._runtime.open_space(name, journal, fold)
        except BaseException as error:
            journal.abandon()
            if isinstance(error, ConfigurationError):
                self._first_error = self._first_error or error
            elif isinstance(error, Exception):
                log.exception("space %s cannot begin", ascii(name))
            else:
                raise
            self._pause(name, str(error) or repr(error))
        else:
            self._owned[name] = journal
            self._pauses.pop(name, None)
            self.membership.claim(name, journal.epoch(name))
            if journal.failure:
                self._lose(name, journal, journal.failure)

    def _pause(self, name: str, why: str) -> None:
        before = self._pauses.get(name)
        seconds = FIRST_PAUSE_SECONDS if before is None else before.seconds
        self._pauses[name] = RetryPause(
            asyncio.get_running_loop().time() + seconds,
            min(2 * seconds, MAX_PAUSE_SECONDS),
            is_failure=True,
        )
        self._runtime.fail_space(name, why)

    def _lose(self, name: str, journal: NatsJournal, sentence: str) -> None:
        """End a space here whose log has been taken over, or cannot be written."""
        if self._owned.get(name) is not journal:
            return
        del self._owned[name]
        if journal.is_replaced:
            log.info("%s", sentence)
            until = asyncio.get_running_loop().time() + REPLACED_SECONDS
            self._pauses[name] = RetryPause(until, FIRST_PAUSE_SECONDS, is_failure=False)
            self._runtime.close_space(name, "another gateway has the space; connect again")
        else:
            self._pause(name, sentence)
        self.membership.disclaim(name)

    async def _hand_over(self, name: str, reason: str) -> None:
        """Keep what was accepted, tell its senders, and let another gateway have the space."""
        try:
            journal = self._owned.get(name)
            if journal is None:
                return
            await journal.flush(self._runtime.limits.stop_timeout)
            if self._owned.pop(name, None) is not journal:
                return  # it was lost meanwhile
            self._runtime.close_space(name, reason)
            with anyio.CancelScope(shield=True):
                await journal.aclose()
            self.membership.disclaim(name)
        finally:
            self._working.discard(name)


@asynccontextmanager
async def keep_spaces(
    runtime: GatewayRuntime, journal: JournalConfig, now: Callable[[], int]
) -> AsyncGenerator[SpaceKeeper]:
    """Keep the spaces of a gateway whose journal is on NATS, once it begins with them, in a block.

    Leaving the block hands them over.

    Raises:
        ConfigurationError: NATS cannot be used.
    """
    config = runtime.config
    nats = journal.nats
    assert nats is not None, "who calls this asked before"
    check_several(config)
    async with aclosing(Link(nats)) as link:
        link.open()
        check_message_size(max_frame_bytes(link), config.limits.max_message_bytes)
        await link.do(link.find_jetstream())
        membership = ClusterMembership(
            link,
            nats.prefix,
            node_name(nats),
            config_parts(config),
            nats.advertise or "",
            nats.known_token,
        )
        values: list[SharedValues] = []

        def open_values(name: str, seconds: float) -> SharedValues:
            values.append(SharedValues(link, nats, name, seconds))
            return values[-1]

        runtime.open_values = open_values
        runtime.node = membership.node
        keeper = SpaceKeeper(runtime, journal, link, membership, now)
        try:
            yield keeper
        finally:
            with anyio.CancelScope(shield=True):
                await keeper.leave()
                for each in values:  # who signed out a moment ago is so at other gateways
                    await each.settle()
            membership.end()
            runtime.abandon_spaces()


def _note_end(runtime: GatewayRuntime, running: asyncio.Task[None]) -> None:
    if not running.cancelled() and (error := running.exception()) is not None:
        log.error("the spaces are kept no more", exc_info=error)
        runtime.fail(f"the spaces are kept no more: {error!r}")
