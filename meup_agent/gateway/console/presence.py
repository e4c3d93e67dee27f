"""The presences of signed-in participants: one of each, whatever browsers and tabs it has open."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.approval import Inbox
from meup_agent.approval.past_proposals import past_of_audit
from meup_agent.approval.seat import SEATED, keep_seat
from meup_agent.errors import MeupError
from meup_agent.gateway.admission import UNAVAILABLE
from meup_agent.gateway.console.connector import local_connector, seat_connector
from meup_agent.gateway.console.frame_filter import filter_of
from meup_agent.gateway.console.guard import Denied
from meup_agent.gateway.edge.http.space_views import proposals_of
from meup_agent.gateway.logs import log, quote
from meup_agent.protocol.exchange import Mode
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.session.settings import Settings

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from meup_agent.approval.proposal_history import PastProposal
    from meup_agent.client.space import Space
    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.console.feed import InboxFeed
    from meup_agent.gateway.runtime import GatewayRuntime
    from meup_agent.protocol.audit import ProposalAudit
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.space.server import SpaceServer

JOIN_SECONDS: Final = 10.0
"""Seconds that a page waits for its participant to have joined."""

IDLE_SECONDS: Final = 60.0
"""Seconds after the last request and the last event stream until a participant leaves: pages follow
one another faster."""

MAX_PRESENCES: Final = 500
"""Participants that are signed in and at work at once; each holds an observer's connection and its
inbox."""

MAX_REPLAYED: Final = 2_000
"""Envelopes of before that a participant hears again, so that it knows what became of the proposals
that are open. Older open ones are known by themselves alone."""

NO_TOKEN: Final = "in-process"
"""A session wants a token to show; here the sign-in has checked one already."""


class PersonPresence:
    """A participant in its space: its session there, its inbox, and when it was used last."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.space: Space
        self.inbox: Inbox
        self.feed: InboxFeed
        self.tasks: TaskGroup
        self.ready = anyio.Event()
        self.ended = False
        self.failure: MeupError | None = None
        self._users = 0
        self._idling = anyio.CancelScope()
        self.touch()

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
        """Wait until it has not been used for a while."""
        with self._idling:
            await anyio.sleep_forever()


class PersonPresences:
    """The presences of a gateway's console, which join on demand and leave when they are idle."""

    def __init__(self, runtime: GatewayRuntime, tasks: TaskGroup, base: str) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._base = base
        self._presences: dict[Identity, PersonPresence] = {}

    def __len__(self) -> int:
        """Number of presences."""
        return len(self._presences)

    async def open(self, identity: Identity) -> PersonPresence:
        """The presence of a participant, which joins if it is not there yet.

        Raises:
            Denied: It could not join.
        """
        presence = self._presences.get(identity)
        if presence is None:
            if len(self._presences) >= MAX_PRESENCES:
                raise Denied(UNAVAILABLE, "Too many people are signed in at once; try again soon.")
            presence = self._presences[identity] = PersonPresence(identity)
            self._tasks.start_soon(self._be_present, presence)
        presence.touch()
        with anyio.move_on_after(JOIN_SECONDS):
            await presence.ready.wait()
        if presence.failure is not None:
            raise Denied(UNAVAILABLE, f"The space could not be joined: {presence.failure}")
        if not presence.ready.is_set() or presence.ended:
            raise Denied(UNAVAILABLE, "The space could not be joined in time; try again.")
        return presence

    async def _be_present(self, presence: PersonPresence) -> None:
        identity = presence.identity
        try:
            await self._join(presence)
        except MeupError as error:
            presence.failure = error
            said = "console: %s in %s left its space: %s"
            log.info(said, quote(identity.participant), quote(identity.space), quote(str(error)))
        except Exception as error:
            # One participant's trouble must not end the pages of the others.
            said = "console: %s in %s failed"
            log.exception(said, quote(identity.participant), quote(identity.space))
            presence.failure = MeupError(type(error).__name__)
        finally:
            presence.ended = True
            del self._presences[identity]
            presence.ready.set()

    async def _join(self, presence: PersonPresence) -> None:
        from meup_agent.gateway.console.feed import InboxFeed

        identity = presence.identity
        async with (
            Agent("console").join(
                local_connector(self._runtime, identity, lambda: self._begin(identity)),
                space=identity.space,
                token=NO_TOKEN,
                participant=identity.participant,
                settings=Settings(mode=Mode.OUTGOING_ONLY, first_welcome=JOIN_SECONDS),
                grace=0.0,
            ) as space,
            Inbox(
                space,
                before=await self._older(identity),
                past=self._past(identity),
                has_no_tools=filter_of(self._runtime.spaces[identity.space]).is_seated,
            ) as inbox,
        ):
            presence.space, presence.inbox = space, inbox
            async with anyio.create_task_group() as tasks:
                presence.tasks = tasks
                presence.feed = InboxFeed(inbox, self._base)
                tasks.start_soon(presence.feed.follow)
                tasks.start_soon(keep_seat, space, partial(self._sit, identity))
                presence.ready.set()
                await presence.until_idle()
                # Noted first: a page that asks now begins a new one.
                presence.ended = True
                tasks.cancel_scope.cancel()

    def _sit(self, identity: Identity, holder: Agent) -> AbstractAsyncContextManager[Space]:
        """Join as a member, where no agent of the participant is one."""
        return holder.join(
            seat_connector(self._runtime, identity),
            space=identity.space,
            token=NO_TOKEN,
            participant=identity.participant,
            settings=SEATED,
            grace=0.0,
        )

    async def _begin(self, identity: Identity) -> int | None:
        """The number before the oldest open proposal: an observer is told of none by its welcome.

        It is found in what the audit has folded, which later joins and readers share.
        """
        host = self._runtime.spaces[identity.space]
        oldest = next(iter(await self._open_proposals(host)), None)
        if oldest is None:
            return None
        return max(oldest.first.seq - 1, self._replayed_after(host))

    async def _older(self, identity: Identity) -> list[Envelope]:
        """The open proposals that are older than what is heard again."""
        host = self._runtime.spaces[identity.space]
        after = self._replayed_after(host)
        found = await self._open_proposals(host)
        known, at = proposals_of(host).audit, host.now()
        # Older than the journal: the space itself knows them as long as they are open.
        oldest = [
            item.envelope
            for item in host.in_flight
            if item.is_proposal
            and item.whole
            and item.state_at(at) is ProposalState.PENDING
            and known.latest_of(item.envelope.sender, item.envelope.id) is None
        ]
        return oldest + [each.record.envelope for each in found if each.first.seq <= after]

    def _past(self, identity: Identity) -> list[PastProposal]:
        """The latest decided proposals, as far as the audit has been brought up to date."""
        return past_of_audit(proposals_of(self._runtime.spaces[identity.space]).audit.proposals)

    async def _open_proposals(self, host: SpaceServer) -> list[ProposalAudit]:
        proposals = proposals_of(host)
        await proposals.catch_up(host, host.now())
        return [each for each in proposals.audit.proposals if each.state.is_pending]

    def _replayed_after(self, host: SpaceServer) -> int:
        """The number after which envelopes are heard again: they are counted one by one."""
        return max(host.fanout.delivered - MAX_REPLAYED, host.journal.floor(host.name))
