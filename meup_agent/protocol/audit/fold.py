"""Folds the entries of a journal into what became of each proposal.

What an envelope does to a proposal is decided by the exchange table, as in every participant; the
audit only writes down what it saw. It sees the gateway's order, and everything, so its word is the
last one about what crossed (PROTOCOL 4.2).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, NamedTuple, TypeVar

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.audit.chains import Chains
from meup_agent.protocol.audit.managing import Operation, read_operation
from meup_agent.protocol.audit.records import (
    MAX_RESULT_BYTES,
    MAX_STEPS,
    MAX_TEXT,
    Decision,
    FulfillmentAudit,
    ProposalAudit,
    Step,
    What,
    Why,
)
from meup_agent.protocol.envelope import Envelope, draft
from meup_agent.protocol.exchange import Drop, ExchangeTable
from meup_agent.protocol.exchange.incoming import USED_AGAIN
from meup_agent.protocol.exchange.ledger import (
    Fulfillment,
    Ledger,
    ProposalKey,
    ProposalRecord,
)
from meup_agent.protocol.exchange.own import read_response
from meup_agent.protocol.guarantees import OURS, said_by
from meup_agent.protocol.lifecycle import ProposalEvent, ProposalState
from meup_agent.protocol.payloads import Call
from meup_agent.protocol.reasons import Reason, read_reason
from meup_agent.protocol.space.journal import Entry

MAX_OPERATIONS: Final = 10_000
"""What was done to the space is kept up to so many operations, where proposals are bounded."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes that proposals and what was said about them take, where they are bounded."""

_STEP_BYTES: Final = 500
# What a step takes besides its words, as a round figure.

_ME: Final = "\0audit"
"""The table's own name: one that no participant can have, so that nobody's words are its own."""

T = TypeVar("T")

_FOREVER: Final = float("inf")
_MICROSECONDS: Final = 1_000_000

_WHY: Final = {
    "late_withdraw": Why.LATE,
    "withdraw_by_another": Why.NOT_THEIRS,
    "duplicate_proposal": Why.AGAIN,
    "duplicate_reject": Why.AGAIN,
    "reject_of_own_proposal": Why.OWN_PROPOSAL,
}
"""What the exchange table leaves out, and why."""


class _Named(NamedTuple):
    """An envelope of a proposal's chain, by its id."""

    id: str
    seq: int
    sender: str
    proposal: ProposalAudit


class Audit:
    """The proposals of a space, and what was done to the space.

    Without a limit it grows with the journal: by each proposal with its payload, the requests that
    carry it out with theirs, and up to a few hundred bytes for each step.

    Args:
        limit: Proposals that are kept; one that was decided is forgotten first.
        max_bytes: Bytes that they may take, where there is a limit.
    """

    def __init__(self, *, limit: int | None = None, max_bytes: int = MAX_BYTES) -> None:
        ids = count()
        self._limit = limit
        self._max_bytes = max_bytes
        self._bytes = 0
        self._table = ExchangeTable(
            new_id=lambda: f"audit-{next(ids)}",
            wants=lambda _role, _envelope, _call: False,
            ledger=Ledger(count=sys.maxsize, seconds=_FOREVER, size=None),
        )
        # The gateway checks who says what, so what it says itself counts (PROTOCOL 5).
        self._table.receive(_welcome(), 0.0)
        self._proposals: dict[int, ProposalAudit] = {}
        self._current: dict[ProposalKey, ProposalAudit] = {}
        self._names: dict[str, list[_Named]] = {}
        self._requests: dict[str, list[tuple[ProposalAudit, FulfillmentAudit]]] = {}
        self._operations: list[Operation] = []
        self._chains = Chains()
        self._latest = 0
        self._unknown = 0

    @property
    def proposals(self) -> list[ProposalAudit]:
        """Every proposal, oldest first."""
        return list(self._proposals.values())

    @property
    def operations(self) -> list[Operation]:
        """Everything that was done to the space, oldest first."""
        return list(self._operations)

    @property
    def latest(self) -> int:
        """The number of the last entry that was taken; 0 before the first."""
        return self._latest

    @property
    def unknown(self) -> int:
        """Decisions about proposals that are not in these entries: they are older."""
        return self._unknown

    def named(self, wanted: str, *, proposer: str | None = None) -> list[ProposalAudit]:
        """The proposals with an id; several proposers may have used it, and one may use it again.

        Args:
            wanted: The id, or as much of its beginning as is known.
            proposer: Only this participant's.
        """
        theirs = [item for item in self.proposals if proposer in (None, item.proposer)]
        exact = [item for item in theirs if item.id == wanted]
        return exact or [item for item in theirs if item.id.startswith(wanted)]

    def take(self, entry: Entry) -> None:
        """Take the next entry of the space's journal in."""
        self._latest = entry.seq
        envelope = entry.envelope
        if self._limit is not None:
            self._make_room(self._limit - (envelope.kind == kinds.MCP_PROPOSAL))
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                self._proposed(entry)
            case kinds.MCP_WITHDRAW:
                self._withdrew(entry)
            case kinds.MCP_REJECT:
                self._rejected(entry)
            case kinds.MCP_REQUEST:
                call = payloads.read_call(envelope.payload)
                if call.method == kinds.CANCELLED:
                    self._cancelled(entry, call)
                elif call.method == kinds.PROGRESS:
                    self._progressed(entry, call)
                elif not call.is_notification:
                    self._requested(entry, call)
            case kinds.MCP_RESPONSE:
                self._responded(entry)
            case kinds.CHAT:
                self._said(entry)
            case _:
                self._operated(entry)

    # --- proposals ---

    def _proposed(self, entry: Entry) -> None:
        envelope, now = entry.envelope, _seconds(entry)
        key = ProposalKey(envelope.sender, envelope.id)
        known = self._current.get(key)
        why = self._feed(entry)
        record = self._table.ledger.get(key, now)
        if record is None or (known is not None and record is known.record):
            if known is not None:
                self._add(known, entry, What.PROPOSED, ignored=why or Why.AGAIN)
            return
        if known is not None and known.decision is None:
            # Its proposer began to count anew: nobody will ask for the older one.
            reason = known.record.reason
            step = self._add(known, entry, What.WITHDREW, reason=reason, text=USED_AGAIN)
            self._decide(known, step)
        proposal = ProposalAudit(record, _bare_step(entry, What.PROPOSED, record.state))
        self._proposals[id(proposal)] = self._current[key] = proposal
        self._keep(proposal, proposal.first)
        self._grow(proposal, len(envelope.raw_payload))
        if not record.state.is_pending:  # its withdrawal was there before it
            self._decide(proposal, proposal.first)

    def _withdrew(self, entry: Entry) -> None:
        envelope, now = entry.envelope, _seconds(entry)
        reason = read_reason(envelope.payload_object.get("reason"))
        found: list[tuple[ProposalAudit, Step | None]] = []
        for name in envelope.correlation:
            proposal = self._withdrawn(envelope, name, now)
            if proposal is not None:
                found.append((proposal, _accept_rejection(proposal, envelope, reason)))
        why = self._feed(entry)
        for proposal, rejection in found:
            if proposal.decision is not None:
                self._add(proposal, entry, What.WITHDREW, reason=reason, ignored=Why.LATE)
            elif proposal.state.is_pending:
                self._add(proposal, entry, What.WITHDREW, reason=reason, ignored=why)
            else:
                step = self._add(proposal, entry, What.WITHDREW, reason=reason)
                self._decide(proposal, rejection or step)
        if not found:
            self._unknown += 1

    def _withdrawn(self, withdraw: Envelope, name: str, now: float) -> ProposalAudit | None:
        """The proposal that a withdrawal takes back, or would."""
        own = self._current.get(ProposalKey(_on_behalf_of(withdraw, withdraw.payload_object), name))
        return own or self._of(self._table.ledger.named((name,), now, to=withdraw.to))

    def _rejected(self, entry: Entry) -> None:
        envelope = entry.envelope
        record = self._table.ledger.named(envelope.correlation, _seconds(entry), to=envelope.to)
        proposal = self._of(record)
        why = self._feed(entry)
        if proposal is None:
            self._unknown += 1
            return
        if why is None and not proposal.state.is_pending:
            why = Why.LATE
        reason = read_reason(envelope.payload_object.get("reason"))
        self._add(proposal, entry, What.REJECTED, reason=reason, ignored=why)

    # --- requests ---

    def _requested(self, entry: Entry, call: Call) -> None:
        envelope = entry.envelope
        if not envelope.correlation:
            return
        now = _seconds(entry)
        self._feed(entry)
        # It is there only if it carries the proposal out.
        record = self._table.ledger.named(envelope.correlation, now)
        fulfillment = None if record is None else record.fulfillment(envelope.sender, envelope.id)
        proposal = self._of(record)
        if proposal is None or fulfillment is None:
            self._referred(entry, call)
        elif any(item.request is fulfillment for item in proposal.fulfillments):
            self._add(proposal, entry, What.REQUESTED, ignored=Why.AGAIN)
        else:
            late = proposal.decision is not None
            step = self._add(proposal, entry, What.REQUESTED, ignored=Why.LATE if late else None)
            self._note(proposal, fulfillment, call, step)

    def _note(
        self, proposal: ProposalAudit, fulfillment: Fulfillment, call: Call, step: Step
    ) -> None:
        to = fulfillment.envelope.to
        item = FulfillmentAudit(
            request=fulfillment,
            step=step,
            changes=payloads.changes(proposal.call, call, to[0] if len(to) == 1 else None),
            says_edited=call.meta.get(payloads.EDITED) is True,
        )
        proposal.fulfillments.append(item)
        self._grow(proposal, len(fulfillment.envelope.raw_payload))
        for name in fulfillment.names:
            self._requests.setdefault(name, []).append((proposal, item))

    def _referred(self, entry: Entry, call: Call) -> None:
        """A request that only refers to a proposal: whoever asked for little decides nothing."""
        record = self._table.ledger.named(entry.envelope.correlation, _seconds(entry))
        proposal = self._of(record)
        if proposal is not None:
            said = f"{call.method} {call.name}".rstrip()
            self._add(proposal, entry, What.REFERRED, text=said)

    def _cancelled(self, entry: Entry, call: Call) -> None:
        envelope = entry.envelope
        request_id = call.params.get("requestId")
        names = (str(request_id), *envelope.correlation)
        found = self._request(names, _on_behalf_of(envelope, call.params))
        self._feed(entry)
        if found is None:
            return
        proposal, item = found
        is_late = item.response is not None or item.cancelled is not None
        said = call.params.get("reason")
        step = self._add(
            proposal,
            entry,
            What.CANCELLED,
            about=item.id,
            text=said if isinstance(said, str) else "",
            ignored=Why.LATE if is_late else None,
        )
        if item.cancelled is None and item.response is None:
            item.cancelled = step

    def _request(
        self, names: Iterable[str], sender: str
    ) -> tuple[ProposalAudit, FulfillmentAudit] | None:
        """The fulfilling request that its sender calls by one of these names."""
        for name in names:
            for proposal, item in reversed(self._requests.get(name, ())):
                if item.by == sender:
                    return proposal, item
        return None

    def _progressed(self, entry: Entry, call: Call) -> None:
        envelope = entry.envelope
        found = self._answered(envelope, _seconds(entry))
        if found is None:
            token = call.params.get(payloads.PROGRESS_TOKEN)
            known = self._requests.get(token, ()) if isinstance(token, str) else ()
            answering = (pair for pair in known if pair[1].request.may_answer(envelope.sender))
            found = next(answering, None)
        if found is None:
            return
        proposal, item = found
        item.progress += 1
        for step in reversed(proposal.steps):
            if step.what is What.PROGRESSED and (step.about, step.by) == (item.id, envelope.sender):
                step.times += 1
                step.until = entry.at
                return
        self._add(proposal, entry, What.PROGRESSED, about=item.id)

    def _responded(self, entry: Entry) -> None:
        envelope = entry.envelope
        found = self._answered(envelope, _seconds(entry))
        self._feed(entry)
        if found is None:
            about = self._referred_to(envelope)
            if about is not None:
                self._add(about.proposal, entry, What.RESPONDED, ignored=Why.NOT_THEIRS)
            return
        proposal, item = found
        payload = envelope.payload
        result, error = read_response(payload)
        step = self._add(proposal, entry, What.RESPONDED, about=item.id)
        if item.response is not None:
            step.ignored = Why.AGAIN
            return
        item.response = step
        item.is_error = error is not None or payloads.as_object(result).get("isError") is True
        if len(envelope.raw_payload) <= MAX_RESULT_BYTES:
            self._grow(proposal, len(envelope.raw_payload))
            item.answer = {"result": result} if error is None else {"error": error}
        if payloads.is_refusal(payload):
            step.ignored = Why.REFUSED
        elif proposal.decision is not None or proposal.state.is_pending:
            step.ignored = Why.LATE
        else:
            self._decide(proposal, item.step)

    def _answered(
        self, envelope: Envelope, now: float
    ) -> tuple[ProposalAudit, FulfillmentAudit] | None:
        """The fulfilling request that a response or progress is about."""
        found = self._table.ledger.responded(envelope, now)
        proposal = None if found is None else self._of(found[0])
        if found is None or proposal is None:
            return None
        items = (item for item in proposal.fulfillments if item.request is found[1])
        return next(((proposal, item) for item in items), None)

    # --- what is said besides ---

    def _said(self, entry: Entry) -> None:
        envelope = entry.envelope
        found = self._referred_to(envelope)
        if found is None:
            return
        payload = envelope.payload_object
        text = payload.get("message", payload.get("text"))
        about = "" if found.id == found.proposal.id else found.id
        said = text if isinstance(text, str) else ""
        self._add(found.proposal, entry, What.SAID, about=about, text=said)

    def _referred_to(self, envelope: Envelope) -> _Named | None:
        """The envelope that one refers to: its sender's own, otherwise the latest."""
        found = [named for name in envelope.correlation for named in self._names.get(name, ())]
        return max(
            found, key=lambda named: (named.sender == envelope.sender, named.seq), default=None
        )

    def _operated(self, entry: Entry) -> None:
        if entry.envelope.kind == kinds.SYSTEM_PRESENCE:
            self._chains.joined(entry.envelope.payload_object)
            return
        operation = read_operation(entry, self._chains)
        if operation is None:
            return
        self._operations.append(operation)
        if self._limit is not None and len(self._operations) > MAX_OPERATIONS:
            del self._operations[0]

    # --- bookkeeping ---

    def _feed(self, entry: Entry) -> Why | None:
        """Let the table take an envelope; why it left it out, if it did."""
        effects = self._table.receive(entry.envelope, _seconds(entry))
        whys = (_WHY[each.why] for each in effects if isinstance(each, Drop) and each.why in _WHY)
        return next(whys, None)

    def _of(self, record: ProposalRecord | None) -> ProposalAudit | None:
        proposal = None if record is None else self._current.get(record.key)
        return proposal if proposal is not None and proposal.record is record else None

    def _add(
        self,
        proposal: ProposalAudit,
        entry: Entry,
        what: What,
        *,
        about: str = "",
        reason: str | None = None,
        text: str = "",
        ignored: Why | None = None,
    ) -> Step:
        step = self._step(proposal, entry, what, reason=reason)
        step.about, step.text, step.ignored = about, text[:MAX_TEXT], ignored
        self._keep(proposal, step)
        return step

    def _step(
        self, proposal: ProposalAudit, entry: Entry, what: What, *, reason: str | None = None
    ) -> Step:
        step = _bare_step(entry, what, proposal.state)
        step.reason = reason or ""
        return step

    def _keep(self, proposal: ProposalAudit, step: Step) -> None:
        if len(proposal.steps) >= MAX_STEPS:
            proposal.omitted += 1
            return
        proposal.steps.append(step)
        self._grow(proposal, _STEP_BYTES + len(step.text) + len(step.reason))
        self._names.setdefault(step.id, []).append(_Named(step.id, step.seq, step.by, proposal))

    def _grow(self, proposal: ProposalAudit, size: int) -> None:
        proposal.size += size
        self._bytes += size

    def _decide(self, proposal: ProposalAudit, step: Step) -> None:
        reason = proposal.record.reason or ""
        proposal.decision = Decision(step.by, step.at, step, reason)

    def _make_room(self, limit: int) -> None:
        """Forget proposals until there are no more than this, nor more bytes than are kept."""
        while self._proposals and (len(self._proposals) > limit or self._bytes > self._max_bytes):
            found = self._proposals.values()
            decided = (item for item in found if item.decision is not None)
            self._forget(next(decided, None) or next(iter(found)))

    def _forget(self, proposal: ProposalAudit) -> None:
        del self._proposals[id(proposal)]
        self._bytes -= proposal.size
        key = proposal.record.key
        if self._current.get(key) is proposal:
            del self._current[key]
            self._table.ledger.forget(key)
        for step in proposal.steps:
            _drop(self._names, step.id, lambda named: named.proposal is proposal)
        for item in proposal.fulfillments:
            for name in item.request.names:
                _drop(self._requests, name, lambda pair: pair[0] is proposal)


def _welcome() -> Envelope:
    you = {"id": _ME, "capabilities": list[object]()}
    payload = {"you": you, "participants": list[object](), **said_by(OURS)}
    return draft(kinds.SYSTEM_WELCOME, payload, id="", sender=kinds.GATEWAY, to=(_ME,))


def _on_behalf_of(envelope: Envelope, said: payloads.JsonObject) -> str:
    """Whose exchange an end is about: its sender's, or that of whom the gateway names."""
    if envelope.sender in kinds.GATEWAY_NAMES:
        return payloads.begun_by(said.get(payloads.META)) or envelope.sender
    return envelope.sender


def _seconds(entry: Entry) -> float:
    return entry.at / _MICROSECONDS


def _bare_step(entry: Entry, what: What, state: ProposalState) -> Step:
    envelope = entry.envelope
    return Step(
        entry.seq, entry.at, what, envelope.sender, envelope.id, envelope.to, state, until=entry.at
    )


def _accept_rejection(proposal: ProposalAudit, withdraw: Envelope, reason: str) -> Step | None:
    """Whether a withdrawal says that its proposer takes a rejection for an answer; that rejection.

    Only the proposer knows which one ends its wait; it then withdraws the proposal, and gives no
    reason of its own (PROTOCOL 4.5, 4.12).
    """
    record = proposal.record
    if withdraw.sender != proposal.proposer or reason != Reason.NO_LONGER_NEEDED:
        return None
    asked, said = record.envelope.to, proposal.rejections
    found = [step for step in said if step.by in asked] or said
    if not found or not record.step(ProposalEvent.REJECTION, found[-1].by, found[-1].reason):
        return None
    return found[-1]


def _drop(index: dict[str, list[T]], name: str, is_dropped: Callable[[T], bool]) -> None:
    kept = [each for each in index.pop(name, []) if not is_dropped(each)]
    if kept:
        index[name] = kept
