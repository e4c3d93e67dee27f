"""A desk: the session of a participant beside its other connections, and the inbox over it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.approval import Inbox
from meup_agent.approval.inbox_backlog import pause_for_screen
from meup_agent.approval.past_proposals import past_of_audit
from meup_agent.client.proposal_feed import MAX_READINGS, NamedSince, ProposalFeed
from meup_agent.gateway.console.frame_filter import filter_of
from meup_agent.gateway.console.local_transport import local_connector
from meup_agent.gateway.console.open_proposals import OpenProposals
from meup_agent.gateway.edge.http.context import Problem
from meup_agent.gateway.edge.http.space_views import left_after, proposals_of
from meup_agent.gateway.logs import log, quote
from meup_agent.protocol import kinds
from meup_agent.protocol.envelope import draft
from meup_agent.protocol.exchange import Mode, ProposalKey
from meup_agent.session.settings import Settings
from meup_agent.transport.loops import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from meup_agent.approval.proposal_history import PastProposal
    from meup_agent.client.space import Space
    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.runtime import GatewayRuntime
    from meup_agent.protocol.audit import ProposalAudit
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import ProposalEntry
    from meup_agent.protocol.outcomes import Rejection
    from meup_agent.protocol.space.server import SpaceServer

JOIN_SECONDS: Final = 10.0
"""Seconds that a page waits for its participant to have joined."""

MAX_OPENING: Final = 2
"""Desks that are opened at the same time; others wait their turn."""

REPLAY_SECONDS: Final = 2.0
"""Seconds that an inbox waits for what is heard again; the rest then comes as if it were new."""

MAX_AWAITED: Final = 100
"""Open proposals up to which an inbox waits for all of them; of more the rest comes soon after."""

MAX_UNFOLDED: Final = 500
"""Envelopes of a journal that are folded before an inbox opens, some 50 ms; more are afterwards."""

MAX_UNFOLDED_OF_MANY: Final = 50
"""The same, where many proposals are open: then finding the most urgent ones takes its time."""

MAX_READ_AT_A_TURN: Final = 40
"""Proposals of the journal that are looked at then in one turn of the loop."""

MAX_REPLAYED: Final = 2_000
"""Envelopes of before that a participant hears again, so that it knows what became of the proposals
that are open. Older open ones are known by themselves alone."""

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
        make_inbox: Callable[..., Inbox] = Inbox,
        until_drawn: Callable[[], Awaitable[None]] = pause_for_screen,
    ) -> AsyncGenerator[Desk]:
        """A desk of a participant, for the length of a block.

        Args:
            identity: The participant.
            make_inbox: Makes its inbox.
            until_drawn: Waits until its first page is drawn; of many proposals, the rest is read
                then.

        Raises:
            MeupError: It could not join, or its session was ended.
        """
        is_seated = filter_of(self.runtime.spaces[identity.space]).is_seated

        def is_person(name: str) -> bool:
            # An agent that runs with the same token is asked by others.
            return name == identity.participant or is_seated(name)

        host = self.runtime.spaces[identity.space]
        make = partial(make_inbox, is_person=is_person, until_drawn=until_drawn)
        async with AsyncExitStack() as stack:
            # One proposal may name hundreds of people: the others are served in between.
            async with self._opening:
                # Of many, or behind a long journal, a page waits for no more than it shows.
                if _has_many(host) or not await _fold_a_little(host, MAX_UNFOLDED):
                    desk = await self._open_first(stack, identity, make, until_drawn)
                else:
                    desk = await self._open_whole(stack, identity, make)
            yield desk

    async def _open_whole(
        self, stack: AsyncExitStack, identity: Identity, make_inbox: Callable[..., Inbox]
    ) -> Desk:
        """A desk that knows all that there is when it is opened."""
        host = self.runtime.spaces[identity.space]
        found: list[ProposalAudit] = []
        newest: ProposalAudit | None = None

        async def begin() -> int | None:
            """The number after which envelopes are heard again: an observer's welcome has none."""
            nonlocal found, newest
            # Found in what the audit has folded, which later joins and readers share.
            found = await self._open_proposals(identity)
            if not found:
                return None
            number = max(found[0].first.seq - 1, self._replayed_after(host))
            newest = found[-1] if found[-1].first.seq > number else None
            return number

        space = await stack.enter_async_context(self._join(identity, begin))
        feed, named = ProposalFeed(space), NamedSince()
        with feed.following(named):
            # After a restart all of them may be older than what is heard again.
            await _until_known(space, newest)
            older: list[list[Envelope]] = []
            for _ in range(MAX_READINGS):
                named.begin()
                older = [
                    each
                    for each in await self._older(identity)
                    if feed.get(ProposalKey(each[0].sender, each[0].id)) is None
                ]
                # The session has not heard of what was decided while it was read.
                if not any(each[0].id in named for each in older):
                    break
            before, past = chain.from_iterable(older), self._past(identity)
            inbox = await stack.enter_async_context(make_inbox(space, before=before, past=past))
        _note_proposers_left(host, feed, found)
        return Desk(space, inbox)

    async def _open_first(
        self,
        stack: AsyncExitStack,
        identity: Identity,
        make_inbox: Callable[..., Inbox],
        until_drawn: Callable[[], Awaitable[None]],
    ) -> Desk:
        """A desk with its most urgent proposals, to which the rest comes in turns."""
        host = self.runtime.spaces[identity.space]
        space = await stack.enter_async_context(self._join(identity, _from_now))
        # After the join: nothing that came in between is in neither.
        earlier = OpenProposals(host)
        await earlier.read_rejections(self._replayed_after(host))
        most = MAX_UNFOLDED_OF_MANY if _has_many(host) else MAX_UNFOLDED
        past = self._past(identity) if await _fold_a_little(host, most) else []
        inbox = make_inbox(space, earlier=earlier, past=past)
        desk = Desk(space, await stack.enter_async_context(inbox))
        tasks = await stack.enter_async_context(background_tasks())
        tasks.start_soon(self._read_rest, identity, desk, earlier, until_drawn)
        return desk

    async def _read_rest(
        self,
        identity: Identity,
        desk: Desk,
        earlier: OpenProposals,
        until_drawn: Callable[[], Awaitable[None]],
    ) -> None:
        """Read in the journal what the space itself does not keep, and hand it to an inbox."""
        host = self.runtime.spaces[identity.space]
        proposals, feed, named = proposals_of(host), ProposalFeed(desk.space), NamedSince()
        await until_drawn()
        try:
            await proposals.catch_up(host, host.now())
            found = proposals.audit.proposals
            for begin in range(0, len(found), MAX_READ_AT_A_TURN):
                some = found[begin : begin + MAX_READ_AT_A_TURN]
                missing: list[ProposalAudit] = []
                with feed.following(named):
                    for _ in range(MAX_READINGS):
                        named.begin()
                        # Up to date: what was decided meanwhile must not come back.
                        await proposals.catch_up(host, host.now())
                        missing = [
                            each
                            for each in some
                            if each.state.is_pending
                            and earlier.named(each.id) is None
                            and feed.get(each.record.key) is None
                        ]
                        if not any(each.id in named for each in missing):
                            break
                desk.inbox.add_before(chain.from_iterable(map(_said_about, missing)))
                desk.inbox.add_before(_unheard_rejections(some, earlier, feed))
                _note_proposers_left(host, feed, missing)
        except Problem as problem:
            said = "console: the journal of %s could not be read: %s"
            log.warning(said, quote(host.name), problem)
        else:
            desk.inbox.add_past(self._past(identity))

    def _join(
        self, identity: Identity, begin: Callable[[], Awaitable[int | None]]
    ) -> AbstractAsyncContextManager[Space]:
        return Agent("console").join(
            local_connector(self.runtime, identity, begin),
            space=identity.space,
            token=NO_TOKEN,
            participant=identity.participant,
            settings=Settings(mode=Mode.OUTGOING_ONLY, first_welcome=JOIN_SECONDS),
            grace=0.0,
        )

    async def _older(self, identity: Identity) -> list[list[Envelope]]:
        """The open proposals that are older than what is heard again, with what was said of each.

        That a request is out, or who has rejected it, no session heard that begins now.
        """
        host = self.runtime.spaces[identity.space]
        after = self._replayed_after(host)
        found = await self._open_proposals(identity)
        known, at = proposals_of(host).audit, host.now()
        # Older than the journal: the space itself knows them as long as they are open.
        oldest = [
            [item.envelope, *(each.envelope for each in item.fulfilling.values() if each.whole)]
            for item in host.in_flight
            if item.is_proposal
            and item.whole
            and item.state_at(at).is_pending
            and known.latest_of(item.envelope.sender, item.envelope.id) is None
        ]
        return oldest + [_said_about(each) for each in found if each.first.seq <= after]

    def _past(self, identity: Identity) -> list[PastProposal]:
        """The latest decided proposals, as far as the audit has been brought up to date."""
        return past_of_audit(proposals_of(self.runtime.spaces[identity.space]).audit.proposals)

    async def _open_proposals(self, identity: Identity) -> list[ProposalAudit]:
        host = self.runtime.spaces[identity.space]
        proposals = proposals_of(host)
        await proposals.catch_up(host, host.now())
        return [each for each in proposals.audit.proposals if each.state.is_pending]

    def _replayed_after(self, host: SpaceServer) -> int:
        """The number after which envelopes are heard again: they are counted one by one."""
        return max(host.fanout.delivered - MAX_REPLAYED, host.journal.floor(host.name))


def _has_many(host: SpaceServer) -> bool:
    """True if more proposals are open than an inbox waits for."""
    waiting = (each for each in host.in_flight if each.is_proposal)
    return next(islice(waiting, MAX_AWAITED, None), None) is not None


async def _fold_a_little(host: SpaceServer, most: int) -> bool:
    """Fold of a journal as much as a page waits for; ``False``: there is more of it.

    Its numbers do not say how much: those of a gateway that was restarted begin far behind the last
    ones of before.
    """
    return await proposals_of(host).catch_up(host, host.now(), most=most)


def _said_about(proposal: ProposalAudit) -> list[Envelope]:
    """A proposal, the rejections of it without their words, and the requests that are out."""
    record = proposal.record
    rejects = [_reject(record, each) for each in record.rejections.values()]
    return [
        record.envelope,
        *rejects,
        *(each.envelope for each in record.fulfillments if each.live),
    ]


def _reject(record: ProposalEntry, rejection: Rejection) -> Envelope:
    """A rejection without its words."""
    return draft(
        kinds.MCP_REJECT,
        {"reason": rejection.reason},
        id=rejection.id,
        sender=rejection.by,
        correlation=(record.key.id,),
    )


def _unheard_rejections(
    proposals: Iterable[ProposalAudit], earlier: OpenProposals, feed: ProposalFeed
) -> list[Envelope]:
    """The rejections that a session has not heard; of those still to come, they are noted there."""
    found: list[Envelope] = []
    for record in (each.record for each in proposals if each.state.is_pending):
        rejects = [_reject(record, each) for each in record.rejections.values()]
        entry = feed.get(record.key)
        if earlier.named(record.key.id) == record.key:
            for each in rejects:
                earlier.note_rejection(each)
        elif entry is not None:
            found += [each for each in rejects if each.sender not in entry.rejections]
    return found


def _note_proposers_left(
    host: SpaceServer, feed: ProposalFeed, proposals: Iterable[ProposalAudit]
) -> None:
    """Note which proposers have left: no welcome tells a page of it (PROTOCOL 4.6)."""
    for each in proposals:
        left = left_after(host, each)
        if left is not None:
            feed.note_proposer_left(each.record.key, left)


async def _from_now() -> None:
    """No number: what was said before is known from the space."""


async def _until_known(space: Space, newest: ProposalAudit | None) -> None:
    """Wait until a proposal is known, and with it all that was heard again before it."""
    if newest is None:
        return
    feed, key = ProposalFeed(space), ProposalKey(newest.proposer, newest.id)
    with anyio.move_on_after(REPLAY_SECONDS), space.watch() as envelopes:
        while feed.get(key) is None:
            await anext(envelopes)
