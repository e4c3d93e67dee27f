"""Past proposals: those that were decided before an inbox opened, of what a gateway keeps.

A gateway tells a newcomer of no proposal that is decided, so an inbox is handed them: it compares
new calls with them, and counts how the last ones of a proposer ended. In the gateway's process they
come from its audit, ``Inbox(space, past=past_of_audit(audit.proposals))``; everywhere else from its
answer over HTTP, with :func:`past_of_documents`. Both tell the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meup_agent.approval.proposal_history import PastProposal
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.payloads import TARGET, Call, as_object, read_proposal

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
    """The end of a decided proposal."""
    return ProposalEnding(record.state, record.decided_by or "", record.reason or "")


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
        ending = ProposalEnding(each.state, decision.by, decision.reason)
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
        decision = as_object(each.get("decision"))
        ending = ProposalEnding(state, _text(decision, "by"), _text(decision, "reason"))
        target = each.get("target")
        meta = {"_meta": {TARGET: target}} if isinstance(target, str) else {}
        call = Call(_text(each, "method"), {**as_object(each.get("params")), **meta})
        past = PastProposal(_text(each, "id"), _text(each, "proposer"), call, *ending)
        found.append((_text(decision, "at"), past))  # RFC 3339 in UTC, all of one length
    return [past for _, past in sorted(found, key=_moment)]


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def _moment(found: tuple[Any, PastProposal]) -> Any:
    return found[0]
