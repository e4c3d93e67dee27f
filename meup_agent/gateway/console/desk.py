"""A desk: the session of a participant beside its other connections, and the inbox over it."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.approval import Inbox
from meup_agent.approval.past_proposals import past_of_audit
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.gateway.console.connector import local_connector
from meup_agent.gateway.console.frame_filter import filter_of
from meup_agent.gateway.edge.http.space_views import proposals_of
from meup_agent.protocol.exchange import Mode, ProposalKey
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.session.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from meup_agent.approval.proposal_history import PastProposal
    from meup_agent.client.space import Space
    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.runtime import GatewayRuntime
    from meup_agent.protocol.audit import ProposalAudit
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.space.server import SpaceServer

JOIN_SECONDS: Final = 10.0
"""Seconds that a page waits for its participant to have joined."""

MAX_OPENING: Final = 2
"""Desks that are opened at the same time; others wait their turn."""

REPLAY_SECONDS: Final = 2.0
"""Seconds that an inbox waits for what is heard again; the rest then comes as if it were new."""

MAX_AWAITED: Final = 100
"""Open proposals up to which an inbox waits for all of them; of more the rest comes soon after."""

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
        self, identity: Identity, make_inbox: Callable[..., Inbox] = Inbox
    ) -> AsyncGenerator[Desk]:
        """A desk of a participant, for the length of a block.

        Raises:
            MeupError: It could not join, or its session was ended.
        """
        is_seated = filter_of(self.runtime.spaces[identity.space]).is_seated

        def has_no_tools(name: str) -> bool:
            # An agent that runs with the same token is asked by others.
            return name == identity.participant or is_seated(name)

        found = await self._open_proposals(identity)
        # Of thousands the first screen need not wait for the last.
        newest = found[-1] if 0 < len(found) <= MAX_AWAITED else None
        join = Agent("console").join(
            local_connector(self.runtime, identity, lambda: self._begin(identity)),
            space=identity.space,
            token=NO_TOKEN,
            participant=identity.participant,
            settings=Settings(mode=Mode.OUTGOING_ONLY, first_welcome=JOIN_SECONDS),
            grace=0.0,
        )
        async with AsyncExitStack() as stack:
            # One proposal may name hundreds of people: the others are served in between.
            async with self._opening:
                space = await stack.enter_async_context(join)
                await _until_known(space, newest)
                inbox = make_inbox(
                    space,
                    before=await self._older(identity),
                    past=self._past(identity),
                    has_no_tools=has_no_tools,
                )
                await stack.enter_async_context(inbox)
            yield Desk(space, inbox)

    async def _begin(self, identity: Identity) -> int | None:
        """The number before the oldest open proposal: an observer is told of none by its welcome.

        It is found in what the audit has folded, which later joins and readers share.
        """
        host = self.runtime.spaces[identity.space]
        oldest = next(iter(await self._open_proposals(identity)), None)
        if oldest is None:
            return None
        return max(oldest.first.seq - 1, self._replayed_after(host))

    async def _older(self, identity: Identity) -> list[Envelope]:
        """The open proposals that are older than what is heard again."""
        host = self.runtime.spaces[identity.space]
        after = self._replayed_after(host)
        found = await self._open_proposals(identity)
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
        return past_of_audit(proposals_of(self.runtime.spaces[identity.space]).audit.proposals)

    async def _open_proposals(self, identity: Identity) -> list[ProposalAudit]:
        host = self.runtime.spaces[identity.space]
        proposals = proposals_of(host)
        await proposals.catch_up(host, host.now())
        return [each for each in proposals.audit.proposals if each.state.is_pending]

    def _replayed_after(self, host: SpaceServer) -> int:
        """The number after which envelopes are heard again: they are counted one by one."""
        return max(host.fanout.delivered - MAX_REPLAYED, host.journal.floor(host.name))


async def _until_known(space: Space, newest: ProposalAudit | None) -> None:
    """Wait until a proposal is known, and with it all that was heard again before it."""
    if newest is None:
        return
    feed, key = ProposalFeed(space), ProposalKey(newest.proposer, newest.id)
    with anyio.move_on_after(REPLAY_SECONDS), space.watch() as envelopes:
        while feed.get(key) is None:
            await anext(envelopes)
