"""An audit as JSON values."""

from __future__ import annotations

from typing import Any

from meup_agent.protocol.audit.managing import Operation
from meup_agent.protocol.audit.records import FulfillmentAudit, ProposalAudit, Step
from meup_agent.protocol.payloads import Change
from meup_agent.protocol.timestamps import rfc3339

JsonObject = dict[str, Any]


def proposal_as_json(proposal: ProposalAudit, *, timeline: bool = False) -> JsonObject:
    """A proposal with its state, who decided it, when and why, and what was edited.

    Args:
        proposal: The proposal.
        timeline: With every step.
    """
    call, decision = proposal.call, proposal.decision
    said: JsonObject = {
        "id": proposal.id,
        "proposer": proposal.proposer,
        "seq": proposal.first.seq,
        "at": rfc3339(proposal.first.at),
        "to": list(proposal.record.envelope.to),
        "target": call.target,
        "method": call.method,
        "params": {name: value for name, value in call.params.items() if name != "_meta"},
        "expires_at": None if call.expires_at is None else call.expires_at.isoformat(),
        "state": proposal.state.value,
        "in_progress_by": proposal.record.in_progress_by,
        "decision": None,
        "changes": [_change(change) for change in proposal.changes],
        "fulfillments": [_fulfillment(item) for item in proposal.fulfillments],
        "rejections": [
            {
                "by": step.by,
                "at": rfc3339(step.at),
                "id": step.id,
                "reason": step.reason,
                "explanation": proposal.explanation(step),
            }
            for step in proposal.rejections
        ],
    }
    if decision is not None:
        said["decision"] = {
            "by": decision.by,
            "at": rfc3339(decision.at),
            "reason": decision.reason or None,
            "explanation": proposal.explanation(decision.step),
        }
    if timeline:
        said["timeline"] = [_step(step) for step in proposal.steps]
        said["omitted"] = proposal.omitted
    return said


def operation_as_json(operation: Operation) -> JsonObject:
    """What was done to the space."""
    return {
        "operation": operation.what,
        "id": operation.id,
        "seq": operation.seq,
        "at": rfc3339(operation.at),
        "by": operation.by,
        "whom": operation.whom or None,
        "grant": operation.grant or None,
        "reason": operation.reason or None,
        "rests_on": list(operation.rests_on),
        "ended": list(operation.ended),
        "details": operation.details,
    }


def _fulfillment(item: FulfillmentAudit) -> JsonObject:
    return {
        "id": item.id,
        "by": item.by,
        "to": list(item.to),
        "at": rfc3339(item.step.at),
        "changes": [_change(change) for change in item.changes],
        "progress": item.progress,
        "cancelled_at": None if item.cancelled is None else rfc3339(item.cancelled.at),
        "cancelled_because": None if item.cancelled is None else item.cancelled.text,
        "responded_at": None if item.response is None else rfc3339(item.response.at),
        "responded_by": None if item.response is None else item.response.by,
        "is_error": item.is_error,
        "answer": item.answer,
    }


def _change(change: Change) -> JsonObject:
    return {"path": change.path, "proposed": change.proposed, "fulfilled": change.fulfilled}


def _step(step: Step) -> JsonObject:
    said: JsonObject = {
        "seq": step.seq,
        "at": rfc3339(step.at),
        "what": step.what.value,
        "by": step.by,
        "id": step.id,
        "to": list(step.to),
        "about": step.about or None,
        "reason": step.reason or None,
        "text": step.text or None,
        "state": step.state.value,
        "ignored": None if step.ignored is None else step.ignored.value,
    }
    if step.times > 1:
        said["times"], said["until"] = step.times, rfc3339(step.until)
    return said
