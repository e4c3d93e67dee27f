"""The presences of signed-in participants: one of each, whatever browsers and tabs it has open.

A person who only looks shares the desk of all who see the same (:mod:`.shared_desk`); one who
decides, or whom an open proposal names, has one of its own for as long.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.approval import Inbox
from meup_agent.errors import MeupError
from meup_agent.gateway.admission import UNAVAILABLE, NotAdmitted
from meup_agent.gateway.console.desk import JOIN_SECONDS, Desk, DeskOpener
from meup_agent.gateway.console.event_queue import EventQueue, OutcomeNotice
from meup_agent.gateway.console.feed import InboxFeed
from meup_agent.gateway.console.guard import RequestDenied
from meup_agent.gateway.console.local_transport import check_entry
from meup_agent.gateway.console.shared_desk import SharedDesk, SharedDesks
from meup_agent.gateway.logs import log, quote
from meup_agent.protocol.space.management import KICKED_CODE
from meup_agent.protocol.space.subscriber import FrameFormat, Place
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.runtime import GatewayRuntime
    from meup_agent.protocol.envelope import Envelope

IDLE_SECONDS: Final = 60.0
"""Seconds after the last request and the last event stream until a participant leaves: pages follow
one another faster."""

OWN_SECONDS: Final = 60.0
"""Interval of checking whether a person still needs a desk of its own."""

MAX_PRESENCES: Final = 500
"""Participants that are signed in and at work at once; each has a connection that hears nothing,
and some of them another one with an inbox."""


class SilentMember:
    """Connection beside that hears nothing: by it a person is present who shares a desk."""

    place = Place.BESIDE
    last_seen = None

    def __init__(self, participant: str, dialect: str, closed: Callable[[int, str], None]) -> None:
        self.participant = participant
        # With numbers, since it misses nothing that others would have to say again.
        self.form = FrameFormat(dialect, numbered=True, takes=_takes_nothing)
        self._closed = closed

    def deliver(self, packed: bytes) -> None:
        """Nothing: it takes no frame."""

    def close(self, code: int, reason: str) -> None:
        """End, by a decision of the gateway's."""
        self._closed(code, reason)

    def ready(self, then: Callable[[], None]) -> None:
        """Go on at once."""
        then()


def _takes_nothing(envelope: Envelope) -> bool:
    del envelope
    return False


@contextmanager
def present(
    runtime: GatewayRuntime, identity: Identity, closed: Callable[[int, str], None]
) -> Generator[None]:
    """Let a participant be present for the length of a block, beside any agent of it.

    Raises:
        NotAdmitted: It may not be in its space, or that is full.
    """
    check_entry(runtime, identity)
    host = runtime.spaces[identity.space]
    member = SilentMember(identity.participant, runtime.dialect(identity), closed)
    host.join(member)
    try:
        yield
    finally:
        host.leave(member)


class PersonPresence:
    """A participant in its space: its desk there, its streams, and when it was used last."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.feed: InboxFeed
        self.tasks: TaskGroup
        self.ended = False
        self.failure: MeupError | None = None
        self.changed: Final = Condition()
        """Notified when it needs another desk, or has it."""
        self.needs_own = False
        self.own: Desk | None = None
        self._is_attached = False  # to a desk that shows what it may see
        self._decisions = 0
        self._queues: dict[EventQueue, None] = {}
        self._users = 0
        self._idling = anyio.CancelScope()
        self.touch()

    # --- its use ---

    def touch(self) -> None:
        """Begin to count anew how long it is idle."""
        self._idling.deadline = math.inf if self._users else anyio.current_time() + IDLE_SECONDS

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Keep it from leaving for the length of a block."""
        self._users += 1
        self.touch()
        try:
            yield
        finally:
            self._users -= 1
            self.touch()

    async def until_idle(self) -> None:
        """Wait until it has not been used for a while, or has failed."""
        with self._idling:
            await anyio.sleep_forever()

    async def until_ended(self) -> None:
        """Wait until it is over."""
        while not self.ended:
            await self.changed.wait()

    def fail(self, error: MeupError) -> None:
        """End, since its session was ended or cannot be had."""
        self.failure, self.ended = error, True
        self._idling.cancel()
        self.changed.notify_all()

    def end(self) -> None:
        """Be over: a page that asks now begins a new one."""
        self.ended = True
        self.changed.notify_all()

    # --- its streams ---

    @property
    def streams(self) -> int:
        """Number of its browsers' event streams."""
        return len(self._queues)

    @contextmanager
    def streaming(self, queue: EventQueue) -> Generator[None]:
        """Publish to a stream what its desk publishes, for the length of a block."""
        with self.in_use():
            self._queues[queue] = None
            if self._is_attached:
                self.feed.queues.add(queue)
            try:
                yield
            finally:
                del self._queues[queue]
                if self._is_attached:
                    self.feed.queues.remove(queue)

    def notify(self, notice: OutcomeNotice) -> None:
        """Tell all its browsers what became of a decision."""
        told = notice.packed()
        for queue in self._queues:
            queue.put(told)

    # --- its desk ---

    @property
    def inbox(self) -> Inbox:
        """The proposals that wait for it."""
        return self.feed.inbox

    async def until_attached(self) -> None:
        """Wait until it is attached to a desk."""
        while not self._is_attached and not self.ended:
            await self.changed.wait()

    def attach(self, feed: InboxFeed) -> None:
        """Attach to a desk: browsers that show the queue of another one load it anew."""
        if self._is_attached and self.feed is feed:
            return
        self.detach()
        self.feed, self._is_attached = feed, True
        for queue in self._queues:
            feed.queues.add(queue)
            queue.put(feed.hello())
        self.changed.notify_all()

    def detach(self) -> None:
        """Detach from its desk: what that publishes is not for it any more."""
        if self._is_attached:
            self._is_attached = False
            for queue in self._queues:
                self.feed.queues.remove(queue)

    def want_own(self) -> None:
        """Need a desk of its own: what others see is not what it sees."""
        self.needs_own = True
        if self.own is None:
            self.detach()
        self.changed.notify_all()

    @property
    def decides(self) -> bool:
        """True while a decision is being carried out."""
        return self._decisions > 0

    @asynccontextmanager
    async def deciding(self) -> AsyncGenerator[Desk]:
        """Its own desk, which it keeps for the length of a block.

        Raises:
            RequestDenied: It cannot be had.
        """
        self._decisions += 1
        self.needs_own = True
        self.changed.notify_all()
        try:
            with anyio.move_on_after(JOIN_SECONDS):
                while self.own is None and not self.ended:
                    await self.changed.wait()
            if self.own is None:
                raise denied(self)
            yield self.own
        finally:
            self._decisions -= 1


def denied(presence: PersonPresence) -> RequestDenied:
    """The refusal of a page whose participant is not in its space."""
    if presence.failure is not None:
        return RequestDenied(UNAVAILABLE, f"The space could not be joined: {presence.failure}")
    return RequestDenied(UNAVAILABLE, "The space could not be joined in time; try again.")


class PersonPresences:
    """The presences of a gateway's console, which join on demand and leave when they are idle."""

    def __init__(self, runtime: GatewayRuntime, tasks: TaskGroup, base: str) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._base = base
        self._opener = DeskOpener(runtime)
        self._desks = SharedDesks(self._opener, tasks, base)
        self._presences: dict[Identity, PersonPresence] = {}
        self._is_closed = False

    def close(self) -> None:
        """Begin no more: a task that begins in a cancelled group is not cancelled with the rest."""
        self._is_closed = True

    def __len__(self) -> int:
        """Number of presences."""
        return len(self._presences)

    async def open(self, identity: Identity) -> PersonPresence:
        """The presence of a participant, which joins if it is not there yet.

        Raises:
            RequestDenied: It could not join.
        """
        presence = self._begin(identity)
        with anyio.move_on_after(JOIN_SECONDS):
            while presence.ended and presence.failure is None:
                # It leaves since it was idle, just as a page asks for it.
                while self._presences.get(identity) is presence:
                    await presence.changed.wait()
                presence = self._begin(identity)
            # It is not idle while a page waits for it.
            with presence.in_use():
                await presence.until_attached()
            if not presence.ended:
                return presence
        raise denied(presence)

    def _begin(self, identity: Identity) -> PersonPresence:
        """The presence of a participant, which begins if there is none."""
        presence = self._presences.get(identity)
        if presence is None:
            if self._is_closed:
                raise RequestDenied(UNAVAILABLE, "The gateway stops; try again when it is back.")
            if len(self._presences) >= MAX_PRESENCES:
                raise RequestDenied(
                    UNAVAILABLE, "Too many people are signed in at once; try again soon."
                )
            presence = self._presences[identity] = PersonPresence(identity)
            self._tasks.start_soon(self._be_present, presence)
        return presence

    async def _be_present(self, presence: PersonPresence) -> None:
        identity = presence.identity

        def removed(code: int, reason: str) -> None:
            if code == KICKED_CODE:
                presence.fail(MeupError(reason))

        try:
            # Whoever shares a desk is present by this alone.
            with present(self._runtime, identity, removed):
                async with anyio.create_task_group() as tasks:
                    presence.tasks = tasks
                    tasks.start_soon(self._keep_attached, presence)
                    await presence.until_idle()
                    # Noted first: a page that asks now begins a new one.
                    presence.end()
                    tasks.cancel_scope.cancel()
        except NotAdmitted as refused:
            presence.failure = MeupError(str(refused))
        except Exception as error:
            # One participant's trouble must not end the pages of the others.
            said = "console: %s in %s failed"
            log.exception(said, quote(identity.participant), quote(identity.space))
            presence.failure = MeupError(type(error).__name__)
        finally:
            if presence.failure is not None:
                said = "console: %s in %s left its space: %s"
                why = quote(str(presence.failure))
                log.info(said, quote(identity.participant), quote(identity.space), why)
            presence.detach()
            del self._presences[identity]
            presence.end()

    async def _keep_attached(self, presence: PersonPresence) -> None:
        """Attach to the desk that fits, until cancelled."""
        try:
            while not presence.ended:
                with self._desks.sharing(presence) as desk:
                    await desk.ready.wait()
                    while desk.fits(presence) and not presence.ended:
                        if presence.needs_own or desk.names(presence):
                            await self._attach_own(desk, presence)
                        else:
                            presence.attach(desk.feed)
                            await presence.changed.wait()
                    presence.detach()
        except MeupError as error:
            presence.fail(error)

    async def _attach_own(self, shared: SharedDesk, presence: PersonPresence) -> None:
        """Attach to a desk of its own, until that shows the same as the shared one."""
        # Its rules are known at once: what was offered as a vote must not be carried out meanwhile.
        make = partial(Inbox, like=shared.inbox)
        async with (
            self._opener.open(presence.identity, make) as desk,
            anyio.create_task_group() as tasks,
        ):
            feed = InboxFeed(desk.inbox, self._base, shared.feed.proposed_at, shared.feed)
            tasks.start_soon(feed.follow, desk.inbox)
            presence.own = desk
            presence.attach(feed)
            try:
                # Once it is over nothing here waits any more, so this would never let others run.
                while not presence.ended and (presence.decides or shared.names(presence)):
                    with anyio.move_on_after(OWN_SECONDS):
                        await presence.until_ended()
            finally:
                presence.own, presence.needs_own = None, False
            # Pages need not wait until it has left.
            if shared.fits(presence):
                presence.attach(shared.feed)
            tasks.cancel_scope.cancel()
