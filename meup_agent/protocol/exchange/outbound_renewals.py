"""Renewals of our own proposals: more time for each, and for what waits on it (PROTOCOL 4.17)."""

from __future__ import annotations

from typing import Final

from meup_agent.errors import AlreadyDecided, UsageError
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.effects import Key, Priority
from meup_agent.protocol.exchange.outbound_exchange import OutboundExchange, OutboundIndex
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.proposals.record import ProposalEntry, ProposalKey
from meup_agent.protocol.ttl_map import TTLMap

RENEWAL_COUNT: Final = 1_000
"""Renewals of our own proposals, to take back those that are refused."""

RENEWAL_SECONDS: Final = 300.0
"""Renewals that are remembered, to take back those that the gateway refuses."""


class OutboundRenewals:
    """Moves the deadlines of our own proposals, and of what waits on renewed ones."""

    def __init__(self, context: TableContext, index: OutboundIndex) -> None:
        self._context = context
        self._index = index
        # Renewals that the gateway may refuse, each with the deadlines before it.
        self._renewals: TTLMap[str, tuple[OutboundExchange, float, int]] = TTLMap(
            count=RENEWAL_COUNT, seconds=RENEWAL_SECONDS
        )

    def renew(self, key: Key, seconds: float) -> Envelope:
        """Give a proposal of ours more time from now on; raises as :meth:`ExchangeTable.renew`."""
        now = self._context.now
        context, exchange = self._context, self._index.find_open(key.id)
        record = None if exchange is None else exchange.proposal
        if exchange is not None and record is None and exchange.is_proposal:
            raise UsageError(
                f"proposal {key.id} waits for those that it depends on; its time has not begun"
            )
        if exchange is None or record is None:
            known = context.proposal_store.get(ProposalKey(context.me, key.id), now)
            state = ProposalState.EXPIRED if known is None else context.state_of(known)
            raise AlreadyDecided(key.id, ProposalState.EXPIRED if state.is_pending else state)
        moment, before, deadline = context.moment(), record.expires_at, exchange.deadline
        until = None if moment is None else (moment // 1_000 + round(seconds * 1_000)) * 1_000
        if before is None or deadline is None or until is None:
            raise UsageError(
                f"proposal {key.id} has no deadline, and waits as long as it takes; propose it with"
                " a ttl to renew it"
            )
        problem = context.proposal_store.renew(record, until, moment)
        if problem:
            raise UsageError(f"proposal {key.id} was not renewed: {problem}")
        exchange.deadline = now + seconds
        context.look_again(exchange.deadline, key)
        renewal = context.envelope_sender.send(
            kinds.MCP_RENEW,
            payloads.build_renewal(until),
            priority=Priority.ANSWER,
            to=exchange.draft.to,
            correlation=(key.id,),
        )
        self._renewals.put(renewal.id, (exchange, deadline, before), now)
        return renewal

    def take_back(self, envelope_id: str) -> bool:
        """Return to the deadline before a renewal that the gateway refused; true if it was one."""
        found = self._renewals.pop(envelope_id)
        if found is None:
            return False
        exchange, deadline, expires_at = found
        if exchange.is_open and exchange.proposal is not None:
            exchange.deadline = deadline
            self._context.proposal_store.set_deadline(exchange.proposal, expires_at)
            self._context.look_again(max(deadline, self._context.now), exchange.key)
        return True

    def postpone(self, record: ProposalEntry, seconds: float) -> None:
        """Let what waits for a proposal wait longer: it was renewed, perhaps beside us."""
        own = self._index.find_own_proposal(record)
        waiting = self._index.open_fulfillments(record.key) if own is None else [own]
        for each in waiting:
            follows = each.fulfilling is None or each.fulfilling.follows
            if each.is_open and each.deadline is not None and follows:
                each.deadline += seconds
                self._context.look_again(each.deadline, each.key)
