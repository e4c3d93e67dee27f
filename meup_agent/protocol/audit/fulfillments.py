"""The requests that carry proposals out: progress, cancels, answers, and the decision by these."""

from __future__ import annotations

from collections.abc import Iterable

from meup_agent.protocol import payloads
from meup_agent.protocol.audit.proposal_index import ProposalIndex, decide
from meup_agent.protocol.audit.records import (
    MAX_RESULT_BYTES,
    FulfillmentAudit,
    Ignored,
    ProposalAudit,
    StepKind,
    seconds,
)
from meup_agent.protocol.payloads import Call, read_response
from meup_agent.protocol.proposals.fold import ProposalFold
from meup_agent.protocol.proposals.record import FulfillingRequest, ProposalEntry
from meup_agent.protocol.proposals.resolution import MAX_NAMED, find_answered, find_referenced
from meup_agent.protocol.proposals.store import ProposalStore
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.told_rule import read_told_rule


class FulfillmentRecorder:
    """Records the requests that carry proposals out, and their ends."""

    def __init__(self, fold: ProposalFold, store: ProposalStore, index: ProposalIndex) -> None:
        self._fold = fold
        self._store = store
        self._index = index

    def record_request(self, entry: Entry, call: Call) -> None:
        """Record a request, which may name a proposal."""
        envelope = entry.envelope
        if not envelope.correlation:
            return
        folded = self._fold.request(envelope, call, seconds(entry))
        proposal, fulfillment = self._index.find(folded.record), folded.fulfillment
        if proposal is None or fulfillment is None:
            why = None if folded.doubt is None else Ignored.AMBIGUOUS
            self._record_reference(entry, call, why)
        elif any(item.request is fulfillment for item in proposal.fulfillments):
            self._index.add(proposal, entry, StepKind.REQUESTED, ignored=Ignored.AGAIN)
        else:
            late = proposal.decision is not None
            step = self._index.add(
                proposal,
                entry,
                StepKind.REQUESTED,
                ignored=Ignored.LATE if late else None,
                rule=read_told_rule(call.params),
            )
            to = fulfillment.executors
            edits = payloads.changes(proposal.call, call, to[0] if len(to) == 1 else None)
            self._index.add_request(proposal, FulfillmentAudit(fulfillment, step, edits))

    def _record_reference(self, entry: Entry, call: Call, why: Ignored | None) -> None:
        """Record a request that only refers to a proposal: it decides nothing."""
        said = f"{call.method} {call.name}".rstrip()
        for record in find_referenced(entry.envelope, self._store, seconds(entry)):
            proposal = self._index.find(record)
            if proposal is not None:
                self._index.add(proposal, entry, StepKind.REFERRED, text=said, ignored=why)

    def record_cancel(self, entry: Entry, call: Call) -> None:
        """Record the cancel of a request."""
        envelope = entry.envelope
        request_id = call.params.get("requestId")
        names = (str(request_id), *envelope.correlation[:MAX_NAMED])
        requester = payloads.on_behalf_of(envelope.sender, call.params)
        found = self._find_request(names, requester)
        was_live = found is not None and found[1].request.live
        if isinstance(request_id, int | str) and not isinstance(request_id, bool):
            self._fold.cancel(requester, names, seconds(entry))
        if found is None:
            return
        proposal, item = found
        is_late = item.cancelled is not None or (item.response is not None and not was_live)
        said = call.params.get("reason")
        step = self._index.add(
            proposal,
            entry,
            StepKind.CANCELLED,
            about=item.id,
            text=said if isinstance(said, str) else "",
            ignored=Ignored.LATE if is_late else None,
        )
        if not is_late:
            item.cancelled = step

    def _find_request(
        self, names: Iterable[str], sender: str
    ) -> tuple[ProposalAudit, FulfillmentAudit] | None:
        """The fulfilling request that its sender calls by one of these names."""
        for name in names:
            for proposal, item in self._index.find_requests(name):
                if item.by == sender:
                    return proposal, item
        return None

    def record_progress(self, entry: Entry, call: Call) -> None:
        """Record progress of a request."""
        envelope = entry.envelope
        answered = find_answered(envelope, self._store, seconds(entry))
        found = self._find_item(*(answered or (None, None)))
        if found is None:
            token = call.params.get(payloads.PROGRESS_TOKEN)
            known = self._index.find_requests(token) if isinstance(token, str) else ()
            answering = (pair for pair in known if pair[1].request.may_answer(envelope.sender))
            found = next(answering, None)
        if found is None:
            return
        proposal, item = found
        item.progress += 1
        for step in reversed(proposal.steps):
            if step.what is StepKind.PROGRESSED and (step.about, step.by) == (
                item.id,
                envelope.sender,
            ):
                step.times += 1
                step.until = entry.at
                return
        self._index.add(proposal, entry, StepKind.PROGRESSED, about=item.id)

    def record_response(self, entry: Entry) -> None:
        """Record an answer to a request."""
        envelope = entry.envelope
        folded = self._fold.answer(envelope, seconds(entry))
        found = self._find_item(folded.record, folded.fulfillment)
        if found is None:
            for about in self._index.find_referenced(envelope)[:1]:
                self._index.add(
                    about.proposal, entry, StepKind.RESPONDED, ignored=Ignored.NOT_THEIRS
                )
            return
        proposal, item = found
        payload = envelope.payload
        result, error = read_response(payload)
        step = self._index.add(proposal, entry, StepKind.RESPONDED, about=item.id)
        earlier, is_refusal = item.response, payloads.is_refusal(payload)
        if earlier is not None:
            # Of several executors, each may refuse, and one that does not still decides.
            if not item.was_refused or (is_refusal and step.by == earlier.by):
                step.ignored = Ignored.AGAIN
                return
            if is_refusal:
                step.ignored = Ignored.REFUSED
                return
        item.response = step
        item.is_error = error is not None or payloads.as_object(result).get("isError") is True
        if len(envelope.raw_payload) <= MAX_RESULT_BYTES:
            self._index.grow(proposal, len(envelope.raw_payload))
            item.answer = {"result": result} if error is None else {"error": error}
        if is_refusal:
            step.ignored = Ignored.REFUSED
        elif proposal.decision is not None or proposal.state.is_pending:
            step.ignored = Ignored.LATE
        else:
            decide(proposal, item.step)

    def _find_item(
        self, record: ProposalEntry | None, request: FulfillingRequest | None
    ) -> tuple[ProposalAudit, FulfillmentAudit] | None:
        proposal = self._index.find(record)
        if proposal is None or request is None:
            return None
        items = (item for item in proposal.fulfillments if item.request is request)
        return next(((proposal, item) for item in items), None)
