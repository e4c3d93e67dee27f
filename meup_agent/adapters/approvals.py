"""Approvals of a space for the tools of a pydantic-ai agent. Needs the extra ``pydantic-ai``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from pydantic_ai.tools import (
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDenied,
)

from meup_agent.doors.permit import Door, HostCall, Permitted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from pydantic_ai.messages import ToolCallPart

    from meup_agent.client.proposal import Ttl

__all__ = ["Door", "approve_calls"]


def approve_calls(
    space: Door, *, ttl: Ttl = "space", to: str | Iterable[str] = ()
) -> Callable[[RunContext[Any], DeferredToolRequests], Awaitable[DeferredToolResults | None]]:
    """The handler by which an agent asks a space before it runs its own tools that need approval.

    Each such call (``requires_approval=True``) is a proposal of ours; with a yes the run goes on
    with what was fulfilled, perhaps with other arguments, and otherwise the model reads who said
    no, and why. Cancelling the run withdraws what waits::

        async with Door("cleaner").join() as space:
            handler = approve_calls(space)
            agent = Agent(model, capabilities=[HandleDeferredToolCalls(handler)])

    Args:
        space: A door that is in a space; :meth:`Door.join` takes what an agent's ``join`` does.
        ttl: Seconds that a call waits for its decision; ``None``: as long as it takes. By
            default the space's (:class:`meup_agent.Settings`).
        to: The participants that should decide; empty: any that may.
    """

    async def decide(call: ToolCallPart, results: DeferredToolResults) -> None:
        # Without the call's id: models repeat theirs, and each call is to be decided.
        asked = HostCall(call.tool_name, call.args_as_dict(), agent="pydantic-ai")
        answer = await space.ask(asked, ttl=ttl, to=to)
        results.approvals[call.tool_call_id] = (
            ToolApproved(override_args=answer.arguments)
            if isinstance(answer, Permitted)
            else ToolDenied(answer.words)
        )

    async def handler(
        _context: RunContext[Any], requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        if not requests.approvals:
            return None
        results = DeferredToolResults()
        async with anyio.create_task_group() as tasks:
            for call in requests.approvals:
                tasks.start_soon(decide, call, results)
        return results

    return handler
