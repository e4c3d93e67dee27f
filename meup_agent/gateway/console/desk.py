"""A desk: the session of a participant beside its other connections, and the inbox over it.

The person who decides there has one presence, whatever browsers and tabs it has open.
"""

from __future__ import annotations

import math
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.approval import Inbox
from meup_agent.errors import MeupError
from meup_agent.gateway.admission import UNAVAILABLE
from meup_agent.gateway.console.guard import RequestDenied
from meup_agent.gateway.console.local_transport import local_connector
from meup_agent.protocol.exchange import Mode
from meup_agent.session.settings import Settings
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from anyio.abc import TaskGroup

    from meup_agent.client.space import Space
    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.console.event_queue import EventQueue, OutcomeNotice
    from meup_agent.gateway.console.feed import InboxFeed
    from meup_agent.gateway.runtime import GatewayRuntime

JOIN_SECONDS: Final = 10.0
"""Seconds that a page waits for its participant to have joined."""

MAX_OPENING: Final = 2
"""Desks that are opened at the same time; others wait their turn."""

IDLE_SECONDS: Final = 60.0
"""Seconds after the last request and the last event stream until a participant leaves: pages follow
one another faster."""

NO_TOKEN: Final = "in-process"
"""A session wants a token to show; here the sign-in has checked one already."""


class Desk(NamedTuple):
    """A participant at work: its session in the space, and its inbox."""

    space: Space
    inbox: Inbox


class DeskOpener:
    """Opens desks in the spaces of a gateway."""

    def __init__(self, runtime: GatewayRuntime) -> None:
        self.runtime = runtime
        self._opening = anyio.Semaphore(MAX_OPENING)

    @asynccontextmanager
    async def open(
        self,
        identity: Identity,
        make_inbox: Callable[[Space], Inbox] = Inbox,
    ) -> AsyncGenerator[Desk]:
        """A desk of a participant, for the length of a block.

        Args:
            identity: The participant.
            make_inbox: Makes its inbox.

        Raises:
            MeupError: It could not join, or its session was ended.
        """
        async with AsyncExitStack() as stack:
            # One proposal may name hundreds of people: the others are served in between.
            async with self._opening:
                joining = Agent("console").join(
                    local_connector(self.runtime, identity),
                    space=identity.space,
                    token=NO_TOKEN,
                    participant=identity.participant,
                    settings=Settings(mode=Mode.BESIDE, first_welcome=JOIN_SECONDS),
                    grace=0.0,
                )
                space = await stack.enter_async_context(joining)
                inbox = make_inbox(space)
                await stack.enter_async_context(inbox)
            yield Desk(space, inbox)


class PersonPresence:
    """A participant in its space: its desk there, its streams, and when it was used last."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.last_feed: InboxFeed | None = None
        """The feed that its browsers were told by last."""
        self.tasks: TaskGroup
        self.ended = False
        self.failure: MeupError | None = None
        self.changed: Final = Condition()
        """Notified when it needs another desk or has it, and when a browser listens."""
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
            self.changed.notify_all()
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
    def feed(self) -> InboxFeed:
        """Tells its browsers of the inbox."""
        assert self.last_feed is not None, "pages wait until it is attached"
        return self.last_feed

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
        if self._is_attached and self.last_feed is feed:
            return
        self.detach()
        self.last_feed, self._is_attached = feed, True
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
