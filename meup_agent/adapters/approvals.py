"""Approvals of a space for the tools of a pydantic-ai agent. Needs the extra ``pydantic-ai``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from pydantic_ai.tools import (
    DeferredToolApprovalResult,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDenied,
)

from meup_agent.adapters.space_tools import SpaceTools
from meup_agent.agent.decorators import Decorators
from meup_agent.client.messages import Request, names
from meup_agent.errors import MeupError, RequestError, UsageError
from meup_agent.mcp.sdk import decisions
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.outcomes import Fulfillment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_ai.messages import ToolCallPart

    from meup_agent.client.proposal_handle import Ttl
    from meup_agent.client.space import Space

APPROVED: Final = "approved; the agent runs it now"

_handlers = Decorators()


class _OpenCall(NamedTuple):
    """A call that waits: its tool, and the arguments of each sender of a request for it."""

    tool: str
    approved: dict[str, dict[str, Any]]


class SpaceApprovals:
    """Approvals of a space for a pydantic-ai agent's own tools (``requires_approval=True``).

    Each call that waits for approval becomes a proposal of ours to ourselves: a participant that
    may, fulfills it by requesting the call from us, perhaps with other arguments, and the run goes
    on with these; a rejection denies it with its words. Include it in the agent that joins, and
    give its ``handler`` to the pydantic-ai agent::

        approvals = SpaceApprovals()
        participant.include(approvals)
        async with participant.join() as space:
            approvals.space = space
            agent = Agent(model, capabilities=[HandleDeferredToolCalls(approvals.handler)])

    Args:
        ttl: Seconds that a call waits for its decision; ``None``: as long as it takes. By
            default the space's (:class:`meup_agent.Settings`).
        to: The participants that should decide; empty: any that may.
    """

    def __init__(self, *, ttl: Ttl = "space", to: Iterable[str] = ()) -> None:
        self.space: Space | None = None
        self._ttl = ttl
        self._to = names(to)
        self._waiting: dict[str, _OpenCall] = {}

    @_handlers.on_request(payloads.TOOL_CALL)
    async def approve(self, request: Request) -> dict[str, Any]:
        """Take a fulfilling request as the approval of the proposal that it names, once."""
        ours = self.space is not None and request.proposer == self.space.me
        call = self._waiting.get(request.proposal or "") if ours else None
        # The sender may be allowed another tool alone.
        if call is None or request.params.get("name") != call.tool:
            raise RequestError(
                payloads.INVALID_REQUEST,
                "this participant runs nothing by request; fulfill one of its open proposals",
            )
        call.approved.setdefault(
            request.sender, payloads.as_object(request.params.get("arguments"))
        )
        return {"content": [{"type": "text", "text": APPROVED}]}

    async def handler(
        self, ctx: RunContext[Any], requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Have the space decide every call that waits for approval, all at the same time."""
        if not requests.approvals:
            return None
        results = DeferredToolResults()
        async with anyio.create_task_group() as tasks:
            for call in requests.approvals:
                tasks.start_soon(self._decide, call, results)
        return results

    async def _decide(self, call: ToolCallPart, results: DeferredToolResults) -> None:
        try:
            results.approvals[call.tool_call_id] = await self._propose(call)
        except MeupError as error:
            said = decisions.failed(call.tool_name, str(error))
            results.approvals[call.tool_call_id] = ToolDenied(said)

    async def _propose(self, call: ToolCallPart) -> DeferredToolApprovalResult:
        if self.space is None:
            raise UsageError("approvals.space is not set; set it to the joined space")
        tools = SpaceTools(self.space, ttl=self._ttl)
        async with self.space.propose(
            self.space.me, call.tool_name, call.args_as_dict(), to=self._to, ttl=self._ttl
        ) as proposal:
            waiting = self._waiting[proposal.id] = _OpenCall(call.tool_name, {})
            try:
                outcome = await proposal.outcome()
            finally:
                del self._waiting[proposal.id]
        approved = waiting.approved
        if isinstance(outcome, Fulfillment) and outcome.by in approved and not outcome.is_error:
            # Its own: another participant's request may have come first.
            return ToolApproved(override_args=approved[outcome.by])
        answer = await tools.answer(call.tool_name, outcome)
        return ToolDenied(answer.text)
