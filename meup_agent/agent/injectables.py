"""What handlers can ask for by annotation, and the decorators that need no agent."""

from __future__ import annotations

from typing import Final

from meup_agent.agent.context import Context
from meup_agent.agent.decorators import Decorators
from meup_agent.agent.definitions import Injectables, Role
from meup_agent.client.chat import Chat
from meup_agent.client.deciding import Proposal
from meup_agent.client.space import Space
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange import Conflict, Gap, Participant
from meup_agent.protocol.management_payloads import Grant, Revocation
from meup_agent.protocol.outcomes import Rejection, Withdrawal

_ANYWHERE: Final = {Context: "context", Space: "space", Envelope: "envelope"}

INJECTABLES: Final[Injectables] = {
    Role.TOOL: _ANYWHERE,
    Role.PROPOSAL: {**_ANYWHERE, Proposal: "proposal"},
    Role.REJECT: {**_ANYWHERE, Rejection: "subject"},
    Role.WITHDRAW: {**_ANYWHERE, Withdrawal: "subject"},
    Role.CONFLICT: {**_ANYWHERE, Conflict: "subject"},
    Role.CHAT: {**_ANYWHERE, Chat: "chat"},
    Role.JOIN: {**_ANYWHERE, Participant: "participant"},
    Role.LEAVE: {**_ANYWHERE, Participant: "participant"},
    Role.GAP: {**_ANYWHERE, Gap: "subject"},
    Role.GRANT: {**_ANYWHERE, Grant: "subject"},
    Role.REVOKE: {**_ANYWHERE, Revocation: "subject"},
    Role.KIND: _ANYWHERE,
}
"""What the handlers of each role can ask for, by annotation."""

handlers: Final = Decorators(INJECTABLES)
"""Decorators for functions and methods that belong to no agent yet: ``@handlers.tool``.

They only mark; :meth:`Agent.include` takes a module, an object or a function that has marks.
"""
