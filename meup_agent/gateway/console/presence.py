"""The presences of signed-in participants: one of each, whatever browsers and tabs it has open.

A person who only looks shares the inbox session of all who see the same; one who decides, or whom
an open proposal names, has one of its own for as long.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup

from meup_agent.approval import Inbox
from meup_agent.errors import MeupError
from meup_agent.gateway.auth import UNAVAILABLE, Identity, NotAdmitted
from meup_agent.gateway.console.inbox_session import (
    JOIN_SECONDS,
    InboxFeed,
    InboxSessionOpener,
    PersonPresence,
    SharedInboxSession,
    denied,
    sharing_key,
)
from meup_agent.gateway.console.local_session import check_entry
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.logs import log, quote
from meup_agent.gateway.runtime import RESTARTING, GatewayRuntime
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.link import FrameFormat, Place
from meup_agent.protocol.space.server import SpaceServer
from meup_agent.protocol.space.state.management import KICKED_CODE, NO_TOKEN_CODE

OWN_SECONDS: Final = 60.0
"""Interval of checking whether a person still needs an inbox session of its own."""

MAX_PRESENCES: Final = 500
"""Participants that are signed in and at work at once; each has a connection that hears nothing,
and some of them another one with an inbox."""


class SilentMember:
    """Connection beside that hears nothing: by it one who shares an inbox session is present."""

    place = Place.BESIDE
    last_seen = None

    def __init__(self, presence: PersonPresence, dialect: str) -> None:
        self.participant = presence.identity.participant
        # With numbers, since it misses nothing that others would have to say again.
        self.form = FrameFormat(dialect, numbered=True, pack_entry=_hear_nothing)
        self._presence = presence

    def deliver(self, packed: bytes) -> None:
        """Nothing: it takes no frame."""

    def close(self, code: int, reason: str) -> None:
        """End, by a decision of the gateway's."""
        if code in (KICKED_CODE, NO_TOKEN_CODE):
            self._presence.fail(MeupError(reason))
        elif code == RESTARTING:
            self._presence.leave()

    def ready(self, then: Callable[[], None]) -> None:
        """Go on at once."""
        then()


def _hear_nothing(entry: Entry) -> None:
    del entry


class PersonPresences:
    """The presences of a gateway's console, which join on demand and leave when they are idle."""

    def __init__(self, runtime: GatewayRuntime, tasks: TaskGroup) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._opener = InboxSessionOpener(runtime)
        # By space, and by what all who share it may.
        self._shared_sessions: dict[tuple[str, str], SharedInboxSession] = {}
        self._presences: dict[Identity, PersonPresence] = {}
        self._is_closed = False

    def close(self) -> None:
        """Begin no more: a task that begins in a cancelled group is not cancelled with the rest."""
        self._is_closed = True

    def __len__(self) -> int:
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
        host: SpaceServer | None = None
        # Whoever shares an inbox session is present by this alone.
        member = SilentMember(presence, self._runtime.dialect(identity))
        try:
            check_entry(self._runtime, identity)
            host = self._runtime.spaces[identity.space]
            # Before its tasks, whose sessions are beside it: it is here as soon as they are.
            host.join(member)
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
            if host is not None:
                host.leave(member)
            if presence.failure is not None:
                said = "console: %s in %s left its space: %s"
                why = quote(str(presence.failure))
                log.info(said, quote(identity.participant), quote(identity.space), why)
            presence.detach()
            # Out of the table before its end is told: who hears of that begins a new one.
            del self._presences[identity]
            presence.end()

    async def _keep_attached(self, presence: PersonPresence) -> None:
        """Attach to the inbox session that fits, until cancelled."""
        try:
            while not presence.ended:
                with self._sharing(presence) as session:
                    await session.ready.wait()
                    while session.fits(presence) and not presence.ended:
                        if presence.needs_own or session.names(presence):
                            await self._attach_own(session, presence)
                        else:
                            presence.attach(session.feed)
                            await presence.changed.wait()
                    presence.detach()
        except MeupError as error:
            presence.fail(error)
        except NotAdmitted as refused:
            presence.fail(MeupError(str(refused)))

    @contextmanager
    def _sharing(self, presence: PersonPresence) -> Generator[SharedInboxSession]:
        """Let a person share the inbox session of those who may do the same, within a block.

        The first one leads: the others have another session once it has left.
        """
        space = presence.identity.space
        self._runtime.check_open(space)
        place = (space, sharing_key(self._runtime.spaces[space], presence.identity))
        session = self._shared_sessions.get(place)
        if session is None or session.ended:
            session = SharedInboxSession(self._opener, presence, place[1])
            self._shared_sessions[place] = session
            presence.tasks.start_soon(session.run)
        session.people[presence.identity.participant] = presence
        try:
            yield session
        finally:
            del session.people[presence.identity.participant]
            if session.leader is presence:
                session.end()
                if self._shared_sessions.get(place) is session:
                    del self._shared_sessions[place]

    async def _attach_own(self, shared: SharedInboxSession, presence: PersonPresence) -> None:
        """Attach to an inbox session of its own, until that shows the same as the shared one."""
        # Its rules are known at once: what was offered as a vote must not be carried out meanwhile.
        make = partial(Inbox, like=shared.inbox)
        async with (
            self._opener.open(presence.identity, make) as session,
            anyio.create_task_group() as tasks,
        ):
            feed = InboxFeed(session.inbox, shared.feed.proposed_at, shared.feed)
            tasks.start_soon(feed.follow)
            presence.own = session
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
