"""Past proposals: those that were decided before an inbox opened, of what a gateway keeps.

A gateway tells a newcomer of no proposal that is decided, so an inbox is handed them: it compares
new calls with them, and counts how the last ones of a proposer ended. In the gateway's process they
come from its audit, ``Inbox(space, past=past_of_audit(audit.proposals))``; everywhere else from its
answer over HTTP, with :func:`past_of_documents`. Both tell the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meup_agent.approval.proposal_history import PastProposal
from meup_agent.causes import Reason
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.payloads import TARGET, Call, as_object, objects_in, read_proposal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from meup_agent.client.proposal import ProposalRecord
    from meup_agent.protocol.audit import ProposalAudit

MAX_PAST: Final = 500
"""Proposals that are looked through for decided ones: as many as a gateway tells at once."""


class ProposalEnding(NamedTuple):
    """The end of a decided proposal, with who decided it and for which reason."""

    state: ProposalState
    by: str = ""
    reason: str = ""


def past_of(record: ProposalRecord) -> PastProposal:
    """A decided proposal as the history keeps it."""
    call = read_proposal(record.envelope.payload)
    return PastProposal(record.id, record.proposer, call, *ending_of(record))


def ending_of(record: ProposalRecord) -> ProposalEnding:
    """The end of a decided proposal, in the words of a person."""
    found = ProposalEnding(record.state, record.decided_by or "", record.reason or "")
    last = record.rejections[-1] if record.rejections else None
    return _as_decided(found, None if last is None else (last.by, last.reason))


def past_of_audit(proposals: Sequence[ProposalAudit]) -> list[PastProposal]:
    """The decided ones of a gateway's latest proposals, in the order of their decisions.

    Args:
        proposals: Those of its audit, oldest first; of many, the last 500 are looked through.
    """
    found: list[tuple[int, PastProposal]] = []
    for each in proposals[-MAX_PAST:]:
        decision = each.decision
        if each.state.is_pending or decision is None:
            continue
        last = each.rejections[-1] if each.rejections else None
        ending = _as_decided(
            ProposalEnding(each.state, decision.by, decision.reason),
            None if last is None else (last.by, last.reason),
        )
        found.append((decision.at, PastProposal(each.id, each.proposer, each.call, *ending)))
    return [past for _, past in sorted(found, key=_moment)]


def past_of_documents(proposals: Iterable[dict[str, Any]]) -> list[PastProposal]:
    """The same of the proposals that a gateway tells over HTTP, oldest first.

    Args:
        proposals: Objects of its answer; what is none of a decided proposal is left out.
    """
    found: list[tuple[str, PastProposal]] = []
    for each in proposals:
        try:
            state = ProposalState(str(each.get("state")))
        except ValueError:
            continue
        if state.is_pending:
            continue
        decision, rejections = as_object(each.get("decision")), objects_in(each.get("rejections"))
        last = rejections[-1] if rejections else None
        ending = _as_decided(
            ProposalEnding(state, _text(decision, "by"), _text(decision, "reason")),
            None if last is None else (_text(last, "by"), _text(last, "reason")),
        )
        target = each.get("target")
        meta = {"_meta": {TARGET: target}} if isinstance(target, str) else {}
        call = Call(_text(each, "method"), {**as_object(each.get("params")), **meta})
        past = PastProposal(_text(each, "id"), _text(each, "proposer"), call, *ending)
        found.append((_text(decision, "at"), past))  # RFC 3339 in UTC, all of one length
    return [past for _, past in sorted(found, key=_moment)]


def _as_decided(ending: ProposalEnding, rejected: tuple[str, str] | None) -> ProposalEnding:
    """An ending without the form that it takes on the wire.

    A proposer that takes a rejection for an answer withdraws without a reason of its own, and one
    whose time is over with ``timeout`` (PROTOCOL 4.5, 4.12).
    """
    if ending.state is ProposalState.WITHDRAWN:
        if ending.reason == Reason.NO_LONGER_NEEDED and rejected is not None:
            return ProposalEnding(ProposalState.REJECTED, *rejected)
        if ending.reason == Reason.TIMEOUT:
            return ProposalEnding(ProposalState.EXPIRED)
    return ending


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def _moment(found: tuple[Any, PastProposal]) -> Any:
    return found[0]
