"""What became of the proposals of a space, and who decided it, read from its journal.

:class:`Audit` takes the entries of a journal one by one, in their order, and keeps a
:class:`ProposalAudit` of each proposal and an :class:`Operation` for each thing that was done to
the space itself. Both are there as JSON values, too. :class:`SettledProposals` hands over what a
long journal is done with, and lets go of it.
"""

from __future__ import annotations

from meup_agent.protocol.audit.audit import Audit, SettledProposals
from meup_agent.protocol.audit.operations import Operation, operation_as_json
from meup_agent.protocol.audit.records import (
    Decision,
    FulfillmentAudit,
    Ignored,
    ProposalAudit,
    Step,
    StepKind,
    proposal_as_json,
)

__all__ = [
    "Audit",
    "Decision",
    "FulfillmentAudit",
    "Ignored",
    "Operation",
    "ProposalAudit",
    "SettledProposals",
    "Step",
    "StepKind",
    "operation_as_json",
    "proposal_as_json",
]
