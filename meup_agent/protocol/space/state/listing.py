"""Lists of proposals for one asker, made from the state of a space (PROTOCOL 3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain, islice
from math import inf
from typing import Final

import msgspec

from meup_agent.causes import Reason
from meup_agent.errors import NotExpressible
from meup_agent.protocol.dialects import encode
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.space.state.indexes import OpenItem
from meup_agent.protocol.space.state.inflight import InFlight
from meup_agent.protocol.space.state.presence import AbsenceTracker
from meup_agent.protocol.space.state.verdicts import Answer, May, gateway_draft
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, encode_leniently, rfc3339
from meup_agent.protocol.wire.membership import (
    ListedDecision,
    ListedProposal,
    ListedRejection,
    ListedRequest,
    ProposalPage,
    ProposalQuery,
)
from meup_agent.protocol.wire.payloads import JsonObject

MAX_LISTED_BYTES: Final = 1024 * 1024
"""Bytes of a page; a single larger proposal is one by itself, and fits in a frame, since what is
kept of it and of its requests is bounded."""

MAX_CONSIDERED: Final = 1_000
"""Proposals that are looked at for one page: a question costs no more, whatever it asks for."""

MAX_LISTED_REJECTIONS: Final = 64
"""Rejections of one proposal on a page; the asker's own comes first."""

MAX_READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes of proposals that are read for one page of those which its asker may decide."""

MAX_SORTED: Final = 20_000
"""Proposals that are sorted by their deadlines: as many as an inbox holds."""

MAX_SHARED_BYTES: Final = 256 * 1024
"""Bytes of all requests for one proposal that are listed, and of a proposal to decide: a larger one
would take the place of others."""

MAX_LISTED_REQUESTS: Final = 4
"""Requests that are out for one proposal, and as many that were cancelled: with hundreds for one
proposal, a participant would keep all others from a reader."""

_CONSIDERED_BYTES: Final = 1024
"""Bytes that each proposal which is looked at counts besides in the asker's pace: it takes some
microseconds, whether it is listed or not."""


def list_proposals(
    exchanges: InFlight,
    absences: AbsenceTracker,
    question: Envelope,
    query: ProposalQuery,
    dialect: str,
    at: int,
    may: May,
) -> Answer:
    """The answer to a question: a page of the proposals at this moment, for its sender alone."""
    exchanges.expire_unannounced(at)
    if query.state == "open":
        items: Sequence[OpenItem] = exchanges.open_in_order()
    else:
        items = exchanges.decided(at)
    begin = bisect_right(items, query.after, key=lambda item: _place(item) or query.after + 1)
    count, weighed = len(items), 0
    if query.urgent:
        items, begin = sorted(items[:MAX_SORTED], key=lambda item: item.expires_at or inf), 0
        weighed = len(items)
    elif query.to_decide and query.state == "open":
        items, begin = list(islice(exchanges.proposals.round_robin(), MAX_CONSIDERED)), 0
    chosen = items[begin : begin + MAX_CONSIDERED]
    is_only_page = query.urgent or query.to_decide
    decides = _Decider(question.sender, may) if query.to_decide else None
    page, listed, size, looked_at = ProposalPage(), list[OpenItem](), 0, 0
    for item in chosen:
        if len(listed) >= query.limit:
            break
        deciders = item.addressees.deciders
        expired = item.decision is None and not item.state_at(at).is_pending
        takes = query.takes(item.envelope, item.called[1], deciders, question.sender)
        if takes and not expired and (decides is None or decides.may(item)):
            document = _document(item, absences, question.sender, dialect) if item.whole else None
            # With its rejections: others write these, and a page too large closes its reader.
            more = 0 if document is None else len(encode_leniently(document))
            is_full = bool(listed) and size + more > MAX_LISTED_BYTES
            if is_full and decides is None:
                break
            if document is None or is_full:
                page.omitted += 1
            else:
                page.proposals.append(document)
                listed.append(item)
                size += more
        looked_at += 1
    if query.to_decide and not query.urgent:
        # The newest were chosen; they are told in the order of their acceptance.
        order = sorted(range(len(listed)), key=lambda each: listed[each].number)
        page.proposals = [page.proposals[each] for each in order]
        listed = [listed[each] for each in order]
    page.left = count - (len(listed) if is_only_page else begin + looked_at)
    last = chosen[looked_at - 1] if page.left and not is_only_page else None
    decision = None if last is None else last.decision  # an open one may be decided until we write

    def write(seq: int) -> Envelope:
        # Now the journal has numbered all that is listed.
        for document, item in zip(page.proposals, listed, strict=True):
            document.seq = item.seq
        page.seq = seq
        if last is not None:
            page.next = last.seq if decision is None else decision.number
        return gateway_draft(
            kinds.PROPOSALS, encode_leniently(page), to=question.sender, about=question.id
        )

    size += _CONSIDERED_BYTES * max(looked_at, weighed)
    return Answer(question, write, size)


def list_waiting(exchanges: InFlight, participant: str, may: May | None, at: int) -> list[OpenItem]:
    """The proposals that wait for the decision of a participant, the oldest first.

    Args:
        exchanges: The state of the space.
        participant: The participant.
        may: Tells what it may send; ``None``: all that wait for any decision are listed.
        at: The time.
    """
    exchanges.expire_unannounced(at)
    decides = None if may is None else _Decider(participant, may)
    found: list[OpenItem] = []
    for item in islice(exchanges.proposals.round_robin(), MAX_CONSIDERED):
        deciders = item.addressees.deciders
        if item.fulfilling or item.state_at(at) is not ProposalState.PENDING:
            continue
        if decides is not None and (
            participant in item.rejections
            or (deciders and participant not in deciders)
            or not decides.may(item)
        ):
            continue
        found.append(item)
    return sorted(found, key=lambda item: item.number)


class _Decider:
    """An asker that may decide some proposals; what is read and written for it is bounded."""

    def __init__(self, participant: str, may: May) -> None:
        self._participant = participant
        self._may = may
        self._rejects = may(kinds.MCP_REJECT, {"reason": str(Reason.DISAGREE)}, ())
        self._left = MAX_READ_BYTES

    def may(self, proposal: OpenItem) -> bool:
        """True if it may decide a proposal of another's."""
        if proposal.proposer == self._participant or not _has_place(proposal):
            return False
        self._left -= proposal.size
        if self._left < 0:
            return False
        return self._rejects or self._may(kinds.MCP_REQUEST, *call_of(proposal.envelope))


def _has_place(item: OpenItem) -> bool:
    return item.whole and item.size <= MAX_SHARED_BYTES


def call_of(proposal: Envelope) -> tuple[JsonObject, tuple[str, ...]]:
    call = payloads.read_proposal(proposal.payload_object)
    to = (call.target,) if call.target is not None else proposal.to
    return payloads.request(call.method, call.params, ""), to


def _requests_for(proposal: OpenItem) -> list[OpenItem]:
    """The latest requests for a proposal that were cancelled, and the first that are out."""
    cancelled = islice(reversed(proposal.cancelled.values()), MAX_LISTED_REQUESTS)
    kept = (each for each in proposal.fulfilling.values() if _has_place(each))
    size, found = 0, list[OpenItem]()
    for request in chain(islice(kept, MAX_LISTED_REQUESTS), cancelled):
        size += request.size
        if size > MAX_SHARED_BYTES:
            break
        found.append(request)
    return sorted(found, key=lambda request: request.number)


def _place(item: OpenItem) -> int:
    """The place of an item in its list; 0: the journal has not numbered it yet."""
    return item.seq if item.decision is None else item.decision.number


def _document(
    item: OpenItem, absences: AbsenceTracker, asker: str, dialect: str
) -> ListedProposal | None:
    """A proposal as a page has it; ``None`` if the asker's dialect cannot express it."""
    decision, left, requests = None, None, list[OpenItem]()
    if item.decision is None:
        if not item.outlives:
            left = absences.left_after(item.envelope.sender, item.at)
        requests = _requests_for(item)
    else:
        by, reason = item.decided_by or "", str(item.reason or "")
        _, at, rule = item.decision
        decision = ListedDecision(str(item.state), rfc3339(at), by, reason, rule, item.report)
        if item.carried_out is not None and asker == item.proposer:
            decision.carried_out = _answer(item.carried_out, dialect)
    rejections = sorted(item.rejections.items(), key=lambda rejection: rejection[0] != asker)
    try:
        return ListedProposal(
            _encoded(item, dialect),
            item.seq,
            _moment(item.expires_at),
            _moment(left),
            [
                ListedRejection(by, each.id, each.reason, each.rule)
                for by, each in rejections[:MAX_LISTED_REJECTIONS]
            ],
            [
                ListedRequest(_encoded(each, dialect), each.number in item.cancelled)
                for each in requests
            ],
            decision,
            item.told if decision is None else None,
        )
    except NotExpressible:
        return None


def _answer(carried_out: tuple[Envelope, Envelope], dialect: str) -> list[msgspec.Raw]:
    """The request that carried a proposal out, and its answer; none that have no words there."""
    try:
        return [msgspec.Raw(encode(each, dialect)) for each in carried_out]
    except NotExpressible:
        return []


def _moment(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)


def _encoded(item: OpenItem, dialect: str) -> msgspec.Raw:
    return msgspec.Raw(encode(item.envelope, dialect))
