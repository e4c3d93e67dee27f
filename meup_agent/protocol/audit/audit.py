"""The audit: folds the entries of a journal, and hands settled proposals over.

The fold decides what an envelope does to a proposal; the audit writes it down.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Final

from meup_agent.causes import USED_AGAIN, read_reason
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.audit.fulfillments import FulfillmentRecorder
from meup_agent.protocol.audit.operations import (
    SpaceOperation,
    ToolAcceptances,
    read_operation,
)
from meup_agent.protocol.audit.proposal_index import ProposalIndex, decide
from meup_agent.protocol.audit.records import (
    IGNORED_DROPS,
    Ignored,
    ProposalAudit,
    StepKind,
    seconds,
)
from meup_agent.protocol.dialects.executors import as_broadcast
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.proposals.fold import ProposalFold
from meup_agent.protocol.proposals.record import ProposalKey
from meup_agent.protocol.proposals.resolution import MAX_NAMED
from meup_agent.protocol.proposals.store import ProposalStore
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.told_rule import read_told_rule
from meup_agent.protocol.ttl_map import Tombstones

MAX_OPERATIONS: Final = 10_000
"""Operations that are kept, where proposals are bounded."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes that proposals and what was said about them take, where they are bounded."""


class Audit:
    """The proposals of a space, and the operations on it; without a limit, all of them."""

    def __init__(self, *, limit: int | None = None, max_bytes: int = MAX_BYTES) -> None:
        self._store = ProposalStore(count=sys.maxsize, seconds=math.inf, size=None)
        # This package's gateway checks who says what, so its own word counts (PROTOCOL 5).
        self._fold = ProposalFold(self._store, Tombstones())
        self._index = ProposalIndex(self._store, limit=limit, max_bytes=max_bytes)
        self._fulfillments = FulfillmentRecorder(self._fold, self._store, self._index)
        self._most_operations = None if limit is None else MAX_OPERATIONS
        self._operations: list[SpaceOperation] = []
        self._acceptances = ToolAcceptances()
        self.latest = 0  # the number of the last entry that was taken
        # Decisions about proposals that are not in these entries: they are older.
        self.unknown = 0

    @property
    def proposals(self) -> list[ProposalAudit]:
        """Every proposal, oldest first."""
        return self._index.proposals

    def release(self, proposal: ProposalAudit) -> None:
        """Forget a proposal whose reader is done; what is said of it later does not count."""
        self._index.release(proposal)

    def pop_operations(self) -> list[SpaceOperation]:
        """The operations since the last call, oldest first, which are forgotten by it."""
        taken, self._operations = self._operations, []
        return taken

    def latest_of(self, proposer: str, proposal: str) -> ProposalAudit | None:
        """The latest proposal of a proposer under an id; ``None``: none is known."""
        return self._index.latest(ProposalKey(proposer, proposal))

    def find_referenced(self, envelope: Envelope) -> list[ProposalAudit]:
        """The proposals of the envelope that one refers to."""
        return [named.proposal for named in self._index.find_referenced(envelope)]

    def named(self, wanted: str, *, proposer: str | None = None) -> list[ProposalAudit]:
        """The proposals with an id, or, if none has it, with ids that begin so; of all, or one."""
        theirs = [item for item in self.proposals if proposer in (None, item.proposer)]
        exact = [item for item in theirs if item.id == wanted]
        return exact or [item for item in theirs if item.id.startswith(wanted)]

    def pass_time(self, at: int) -> None:
        """Let proposals expire up to a time of the gateway's clock, in microseconds since 1970.

        Entries tell their time themselves; a caller with the gateway's clock says what it is now.
        """
        for record in self._store.expire(at):
            proposal = self._index.find(record)
            if proposal is not None and proposal.decision is None:
                decide(proposal, self._index.add_expiry(proposal))

    def add(self, entry: Entry) -> None:
        """Take the next entry of the space's journal in."""
        self.pass_time(entry.at)
        self.latest = entry.seq
        envelope = entry.envelope
        self._index.make_room(1 if envelope.kind == kinds.MCP_PROPOSAL else 0)
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                self._record_proposal(entry)
            case kinds.MCP_WITHDRAW:
                self._record_withdrawal(entry)
            case kinds.MCP_REJECT:
                self._record_rejection(entry)
            case kinds.MCP_RENEW:
                self._record_renewal(entry)
            case kinds.MCP_REQUEST:
                call = payloads.read_call(envelope.payload)
                if call.method == kinds.CANCELLED:
                    self._fulfillments.record_cancel(entry, call)
                elif call.method == kinds.PROGRESS:
                    self._fulfillments.record_progress(entry, call)
                elif not call.is_notification:
                    self._fulfillments.record_request(entry, call)
                if call.method == kinds.ACCEPT_TOOLS:
                    self._acceptances.note_request(entry)
            case kinds.MCP_RESPONSE:
                self._fulfillments.record_response(entry)
                self._add_operation(self._acceptances.read_answer(entry))
            case kinds.CHAT:
                self._record_chat(entry)
            case _:
                self._add_operation(read_operation(entry))

    # --- proposals ---

    def _record_proposal(self, entry: Entry) -> None:
        # In a journal each is as its sender wrote it, and of no sender a dialect is told; and each
        # entry is a message, however often its id was used.
        envelope = as_broadcast(entry.envelope) or entry.envelope
        known = self._index.latest(ProposalKey(envelope.sender, envelope.id))
        record = self._fold.propose(envelope, seconds(entry), entry.at, is_new=True).record
        assert record is not None
        if known is not None and known.decision is None:
            # Its proposer began to count anew, and will not ask for the older one.
            reason = known.record.reason
            step = self._index.add(known, entry, StepKind.WITHDREW, reason=reason, text=USED_AGAIN)
            decide(known, step)
        proposal = self._index.begin(record, entry)
        if not record.state.is_pending:  # its withdrawal was there before it
            decide(proposal, proposal.first)

    def _record_withdrawal(self, entry: Entry) -> None:
        envelope, now, payload = entry.envelope, seconds(entry), entry.envelope.payload_object
        proposer, is_known = payloads.on_behalf_of(envelope.sender, payload), False
        for name in envelope.correlation[:MAX_NAMED]:
            key = ProposalKey(proposer, name)
            folded = self._fold.withdraw(key, payload, now, entry.at)
            proposal = self._index.latest(key)
            if proposal is None and len(named := self._store.under(name, now)) == 1:
                proposal = self._index.find(named[0])
            if proposal is None:
                continue
            why, is_known = IGNORED_DROPS.get(folded.dropped), True
            step = self._index.add(
                proposal,
                entry,
                StepKind.WITHDREW,
                reason=read_reason(payload.get("reason")),
                ignored=why if proposal.decision is None else Ignored.LATE,
            )
            if proposal.decision is None and not proposal.state.is_pending:
                decide(proposal, proposal.accepted_rejection or step)
        if not is_known and not self._index.was_released(*envelope.correlation):
            self.unknown += 1

    def _record_renewal(self, entry: Entry) -> None:
        # The gateway takes no renewal that is too late.
        folded = self._fold.renew(entry.envelope, seconds(entry), None)
        proposal = self._index.find(folded.record)
        if proposal is not None:
            until = payloads.read_renewal(entry.envelope.payload_object)
            why = IGNORED_DROPS.get(folded.dropped)
            self._index.add_renewal(proposal, entry, until or entry.at, why)

    def _record_rejection(self, entry: Entry) -> None:
        envelope = entry.envelope
        folded = self._fold.reject(envelope, seconds(entry))
        proposal, why = self._index.find(folded.record), IGNORED_DROPS.get(folded.dropped)
        if proposal is None:
            if not self._index.was_released(*envelope.correlation):
                self.unknown += 1
            return
        if why is None and not proposal.state.is_pending:
            why = Ignored.LATE
        payload = envelope.payload_object
        reason, rule = read_reason(payload.get("reason")), read_told_rule(payload)
        self._index.add(proposal, entry, StepKind.REJECTED, reason=reason, ignored=why, rule=rule)

    # --- what is said besides ---

    def _record_chat(self, entry: Entry) -> None:
        envelope = entry.envelope
        payload = envelope.payload_object
        text = payload.get("message", payload.get("text"))
        said = text if isinstance(text, str) else ""
        for found in self._index.find_referenced(envelope):
            about = "" if found.id == found.proposal.id else found.id
            self._index.add(found.proposal, entry, StepKind.SAID, about=about, text=said)

    def _add_operation(self, operation: SpaceOperation | None) -> None:
        if operation is None:
            return
        self._operations.append(operation)
        most = self._most_operations
        if most is not None and len(self._operations) > most:
            del self._operations[0]


LOOK_AHEAD: Final = 4_000
"""Envelopes after its decision until a proposal is settled; as many keep the order in which they
were proposed. They are read in a third of a second."""


class SettledProposals:
    """The settled proposals of an audit that is being fed, oldest first but for long open ones."""

    def __init__(
        self,
        audit: Audit,
        look_ahead: int = LOOK_AHEAD,
        keep: Callable[[ProposalAudit], bool] | None = None,
    ) -> None:
        self._audit = audit
        self._look_ahead = look_ahead
        self._keep = keep
        # Of each proposal, how many envelopes had been taken when it was seen first, and decided.
        self._begun: dict[int, int] = {}
        self._decided: dict[int, int] = {}

    def pop(self, taken: int) -> Iterator[ProposalAudit]:
        """The proposals that are settled after so many envelopes; the audit forgets them."""
        until = taken - self._look_ahead
        waits = False
        for proposal in self._audit.proposals:
            if self._keep is not None and self._keep(proposal):
                continue
            key = id(proposal)
            begun = self._begun.setdefault(key, taken)
            if proposal.decision is None:
                waits = waits or begun > until
            elif self._decided.setdefault(key, taken) > until:
                # Those that were open for long and end one after the other must not hold up all.
                waits = waits or begun > until - self._look_ahead
            elif not waits:
                del self._begun[key], self._decided[key]
                self._audit.release(proposal)
                yield proposal
