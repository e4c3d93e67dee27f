"""The proposals of a space with their decisions, folded from its journal.

The entries of a journal come in, one by one and in their order. A
:class:`~meup_agent.protocol.proposals.fold.ProposalFold` decides, as in every participant, what
each does to a proposal; :class:`Audit` writes it down: a :class:`AuditRecord` of each proposal,
with every step and the decision, and a :class:`SpaceOperation` for each grant, revocation,
invitation and kick. Both go out as records or as JSON values.
:class:`SettledRecords` hands over what a long journal is done with, and lets go of it. An audit
decides nothing itself, sends nothing, and has no clock: time is that of the entries.

``meup audit`` and the gateway's ``/proposals`` read it.
"""

from __future__ import annotations

from meup_agent.protocol.audit.audit import Audit, SettledRecords
from meup_agent.protocol.audit.records import (
    AuditRecord,
    Decision,
    FulfillmentAudit,
    Ignored,
    SpaceOperation,
    Step,
    StepKind,
    operation_as_json,
    proposal_as_json,
)

__all__ = [
    "Audit",
    "AuditRecord",
    "Decision",
    "FulfillmentAudit",
    "Ignored",
    "SettledRecords",
    "SpaceOperation",
    "Step",
    "StepKind",
    "operation_as_json",
    "proposal_as_json",
]
