"""One fold of a space's envelopes into the states of its proposals, for every observer.

The audit of a journal, the gateway's ``/proposals`` and the timeline of ``meup tail`` feed their
envelopes to a :class:`ProposalFolder`, in the order of the gateway. The exchange table decides what
each does to a proposal, as in every participant; since the folder sees everything in order,
its word about what crossed is the last one (PROTOCOL 4.2).
"""

from __future__ import annotations

from itertools import count
from typing import Final, NamedTuple

from meup_agent.causes import Reason
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.audit.records import Ignored
from meup_agent.protocol.dialects.executors import as_broadcast
from meup_agent.protocol.envelope import Envelope, draft
from meup_agent.protocol.exchange import Drop, ExchangeTable
from meup_agent.protocol.exchange.table_context import TRANSIT_SECONDS
from meup_agent.protocol.guarantees import Guarantees, said_by
from meup_agent.protocol.outcomes import Rejection
from meup_agent.protocol.proposals.lifecycle import ProposalEvent, ProposalState
from meup_agent.protocol.proposals.record import FulfillingRequest, ProposalEntry, ProposalKey
from meup_agent.protocol.proposals.resolution import find_answered, resolve
from meup_agent.protocol.proposals.store import ProposalStore
from meup_agent.protocol.timestamps import rfc3339

_ME: Final = "\0observer"
"""The table's own name: one that no participant can have, so that no envelope is its own."""

_IGNORED: Final = {
    "late_withdraw": Ignored.LATE,
    "withdraw_by_another": Ignored.NOT_THEIRS,
    "late_renew": Ignored.LATE,
    "renew_by_another": Ignored.NOT_THEIRS,
    "duplicate": Ignored.AGAIN,
    "duplicate_proposal": Ignored.AGAIN,
    "duplicate_reject": Ignored.AGAIN,
    "reject_of_own_proposal": Ignored.OWN_PROPOSAL,
    "forged_system": Ignored.FORGED,
}
"""The exchange table's reasons to drop an envelope."""


class Folded(NamedTuple):
    """The effect of an envelope."""

    # The proposal that it is about; ``None`` where there is none that is known.
    record: ProposalEntry | None = None
    # The fulfilling request that it is, or that it answers.
    fulfillment: FulfillingRequest | None = None
    was_pending: bool = True  # the proposal was pending before; ``True`` where there is none
    # The reason why it changed nothing; ``None`` if it did, or had nothing to change.
    ignored: Ignored | None = None

    @property
    def rejection(self) -> Rejection | None:
        """The rejection that its proposer takes for an answer, if the envelope ends it so."""
        record = self.record
        if record is None or not self.was_pending or record.state is not ProposalState.REJECTED:
            return None
        return record.rejections.get(record.decided_by or "")


class ProposalFolder:
    """Folds envelopes into proposals; what is not told of the gateway, its welcome tells.

    Where the ``guarantees`` are told, envelopes come from its journal: ``now`` is the time at which
    it accepted them, in seconds since 1970.
    """

    def __init__(
        self, proposal_store: ProposalStore | None = None, guarantees: Guarantees | None = None
    ) -> None:
        ids = count()
        self._table = ExchangeTable(
            new_id=lambda: f"observer-{next(ids)}",
            find_handler=lambda _role, _envelope, _call: None,
            proposal_store=proposal_store,
            transit=TRANSIT_SECONDS if guarantees is None else 0.0,
        )
        self.proposal_store = self._table.proposal_store
        self._is_journal = guarantees is not None
        if guarantees is not None:
            self._table.receive(_welcome(guarantees), 0.0)

    def expire(self, now: float) -> list[ProposalEntry]:
        """End the proposals whose time is over; these."""
        due = self.proposal_store.next_expiry
        if self._is_journal and (due is None or due >= now * 1_000_000):
            return []
        return self._table.expire(now)

    def end_expired(self, key: ProposalKey, now: float) -> None:
        """End a proposal that has expired by the gateway's clock, where the folder has none."""
        record = self.proposal_store.get(key, now)
        if record is not None and record.state is ProposalState.PENDING:
            record.step(ProposalEvent.EXPIRY, "", Reason.TIMEOUT)

    def fold(self, envelope: Envelope, now: float, seq: int | None = None) -> Folded:
        """Take the next envelope in; ``now`` are seconds of a clock that only goes forward.

        ``seq`` is its number in the journal that it is read from: each entry is a message.
        """
        if self._is_journal and envelope.kind == kinds.MCP_PROPOSAL:
            # In a journal each is as its sender wrote it, and of no sender a dialect is told.
            envelope = as_broadcast(envelope) or envelope
        self.expire(now)
        about = self._find(envelope, now)
        was_pending = about.record is None or about.record.state.is_pending
        effects = self._table.receive(envelope, now, seq)
        drops = (each.why for each in effects if isinstance(each, Drop))
        ignored = next((_IGNORED[why] for why in drops if why in _IGNORED), None)
        if envelope.kind == kinds.MCP_PROPOSAL:
            about = self._find(envelope, now)  # it may have made what it is about
        elif envelope.kind == kinds.MCP_REQUEST and about.record is not None:
            found = about.record.fulfillment(envelope.sender, envelope.id)
            about = about._replace(fulfillment=found)
        return about._replace(was_pending=was_pending, ignored=ignored)

    def _find(self, envelope: Envelope, now: float) -> Folded:
        """The proposal that an envelope is about, as the table knows it."""
        store = self.proposal_store
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                return Folded(store.get(ProposalKey(envelope.sender, envelope.id), now))
            case kinds.MCP_RENEW:
                keys = (ProposalKey(envelope.sender, name) for name in envelope.correlation)
                return Folded(next(filter(None, (store.get(key, now) for key in keys)), None))
            case kinds.MCP_WITHDRAW:
                proposer = payloads.on_behalf_of(envelope.sender, envelope.payload_object)
                keys = (ProposalKey(proposer, name) for name in envelope.correlation)
                return Folded(next(filter(None, (store.get(key, now) for key in keys)), None))
            case kinds.MCP_RESPONSE:
                record, fulfillment = find_answered(envelope, store, now) or (None, None)
                return Folded(record, fulfillment)
            case kinds.MCP_REJECT:
                return Folded(resolve(envelope, store, now).record)
            case kinds.MCP_REQUEST:
                record = resolve(envelope, store, now).record
                # It is there only if it carries the proposal out.
                found = None if record is None else record.fulfillment(envelope.sender, envelope.id)
                return Folded(record, found)
            case _:
                return Folded()


def _welcome(guarantees: Guarantees) -> Envelope:
    you = {"id": _ME, "capabilities": list[object]()}
    payload = {"you": you, "participants": list[object](), **said_by(guarantees)}
    return draft(
        kinds.SYSTEM_WELCOME,
        payload,
        id="",
        sender=kinds.GATEWAY,
        to=(_ME,),
        ts=rfc3339(0),  # the gateway's clock, at the second 0 of the journal's
    )
