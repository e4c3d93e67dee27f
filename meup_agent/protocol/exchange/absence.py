"""The end of a wait for want of a participant that could answer (PROTOCOL 4.6)."""

from __future__ import annotations

from itertools import chain

import msgspec

from meup_agent.protocol.callers import MissingCaller, find_missing
from meup_agent.protocol.exchange.outbound_exchange import (
    OutboundExchange,
    Wait,
    able_to_fulfill,
    rejection_without_the_absent,
    undecided_addressees,
)
from meup_agent.protocol.exchange.proposal_store import ProposalEntry
from meup_agent.protocol.exchange.table_context import ABSENCE_SECONDS, TableContext
from meup_agent.protocol.lifecycle import OutboundState
from meup_agent.protocol.outcomes import Ending, Expiry, Gone, Rejection


class AbsenceWatch:
    """Tells when the wait for a request or proposal of ours ends, and how, if none is there."""

    def __init__(self, context: TableContext) -> None:
        self._context = context

    def gone_at(self, exchange: OutboundExchange, now: float) -> float | None:
        """The time at which it ends for want of a participant that could answer (PROTOCOL 4.6)."""
        if exchange.state is not OutboundState.WAITING or not self._context.connected:
            return None
        awaited = self._awaited(exchange)
        waits = exchange.wait in (Wait.DEADLINE, Wait.LATER)
        record = exchange.proposal
        in_progress = record is not None and record.in_progress_by is not None
        if awaited or record is None or waits or in_progress:
            return self._context.absent_for_good(awaited, now)
        if self._has_able_participant(record):
            exchange.unanswerable_since = None
            return None
        if exchange.unanswerable_since is None:
            exchange.unanswerable_since = now
        return exchange.unanswerable_since + ABSENCE_SECONDS

    def _has_able_participant(self, record: ProposalEntry) -> bool:
        """True if a participant is present that may fulfill a broadcast proposal."""
        roster = self._context.roster
        others = (each for each in roster.participants() if each.id != roster.me)
        # Not every gateway announces what its participants may send.
        return any(not each.capabilities for each in others) or bool(
            able_to_fulfill(record, roster)
        )

    def _awaited(self, exchange: OutboundExchange) -> tuple[str, ...]:
        """The participants that could answer; of a proposal in progress, its fulfillers.

        A fulfiller that asks over HTTP is not present at all: its executors stand in for it.
        """
        record = exchange.proposal
        if record is not None and record.in_progress_by is not None:
            live = [item for item in record.fulfillments if item.live]
            stays = ((item.executors if item.unattended else (item.by,)) for item in live)
            return tuple(dict.fromkeys(chain.from_iterable(stays)))
        if record is not None and exchange.wait is Wait.ALL:
            return undecided_addressees(exchange, record)
        return exchange.draft.to

    def ending(self, exchange: OutboundExchange) -> Gone | Rejection:
        """The ending for want of such a participant; of a broadcast, with what is missing."""
        rejection = rejection_without_the_absent(exchange, exchange.proposal)
        if rejection is not None:
            return rejection
        awaited, record = self._awaited(exchange), exchange.proposal
        if awaited or record is None:
            return Gone(exchange.key.id, awaited)
        return Gone(exchange.key.id, (), self._missing(record))

    def expiry(self, exchange: OutboundExchange) -> Ending:
        """The ending at its deadline; of a broadcast that nobody may fulfill, with what is missing.

        A caller that waits for less than the wait of rule 4.6 hears of it, too.
        """
        ending, record = exchange.expiry(), exchange.proposal
        if isinstance(ending, Expiry) and record and exchange.unanswerable_since is not None:
            return msgspec.structs.replace(ending, missing=self._missing(record))
        return ending

    def _missing(self, record: ProposalEntry) -> MissingCaller:
        roster = self._context.roster
        present = ((each.id, each.capabilities) for each in roster.participants())
        return find_missing(record.call, present, me=roster.me)
