"""The open proposals of before we came, asked for at a welcome and entered as they are listed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from meup_agent.causes import declines
from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.envelope import Envelope, draft
from meup_agent.protocol.exchange.effects import Priority
from meup_agent.protocol.exchange.handler_scheduler import TablePart
from meup_agent.protocol.exchange.inbound_calls import InboundProposals, InboundRequests
from meup_agent.protocol.exchange.table_context import Mode
from meup_agent.protocol.proposal_query import MAX_LISTED, ListedProposal, ProposalPage
from meup_agent.protocol.proposals.record import ProposalKey


@dataclass
class ListedProposals(TablePart):
    """Asks which proposals are open that we may decide, and enters each page for us (PROTOCOL 4.6).

    A page is entered whoever of us asked for it. Those of our own question are offered to handlers.
    """

    _proposals: InboundProposals
    _requests: InboundRequests
    _is_sound: Callable[[Envelope], bool]  # false for what no reader may take, as where it is heard
    _question: str = ""  # the id of our own; it is sent again with all that was not answered

    def ask(self) -> None:
        """Ask for what we may decide, in place of what we have not heard."""
        context = self._context
        if context.mode is not Mode.OBSERVING and context.roster.guarantees.lists_proposals:
            asked = {"to_decide": True}
            said = context.envelope_sender.send(
                kinds.LIST_PROPOSALS, asked, priority=Priority.ANSWER
            )
            self._question = said.id

    def receive(self, answer: Envelope) -> None:
        """Enter the open proposals of a page."""
        context = self._context
        is_told = context.roster.guarantees.lists_proposals and answer.concerns(context.me)
        if answer.sender not in kinds.GATEWAY_NAMES or not is_told:
            context.drop("forged_list", answer)
            return
        try:
            page = msgspec.json.decode(answer.raw_payload, type=ProposalPage)
        except (msgspec.DecodeError, RecursionError):
            context.drop("malformed_list", answer)
            return
        context.is_new = False
        is_ours = bool(self._question) and self._question in answer.correlation
        for listed in page.proposals[:MAX_LISTED]:
            if listed.decision is None:
                try:
                    self._enter(listed, offered=is_ours)
                except (InvalidEnvelope, ValueError):
                    context.drop("malformed_list", answer)

    def _enter(self, listed: ListedProposal, *, offered: bool) -> None:
        proposal, store = decode(bytes(listed.envelope)), self._context.proposal_store
        if proposal.kind != kinds.MCP_PROPOSAL or not self._is_sound(proposal):
            return
        key = ProposalKey(proposal.sender, proposal.id)
        self._proposals.enter(proposal, listed)
        record = store.get(key, self._context.now)
        if record is None:
            return
        for each in listed.rejections:
            if each.by == self._context.me and declines(each.reason):
                self._proposals.note_own_rejection(record, each.reason)
            elif each.by not in record.rejections:
                rejection = draft(
                    kinds.MCP_REJECT,
                    payloads.build_rejection(each.reason),
                    id=each.id,
                    sender=each.by,
                    to=(proposal.sender,),
                    correlation=(proposal.id,),
                )
                self._proposals.receive_reject(rejection)
        for request in listed.requests:
            said = decode(bytes(request.envelope))
            if said.kind == kinds.MCP_REQUEST and self._is_sound(said):
                call = payloads.read_call(said.payload)
                self._requests.enter(said, call, cancelled=request.cancelled)
        if offered:
            self._proposals.offer(record)
