"""Approvals of a space for the tools of the Claude Agent SDK. Needs the extra ``claude-agent``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from claude_agent_sdk import (
    CanUseTool,
    PermissionResult,
    PermissionResultAllow,
    PermissionResultDeny,
    ToolPermissionContext,
)

from meup_agent.doors.permit import Door, HostCall, Permitted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.client.proposal import Ttl

__all__ = ["Door", "can_use_tool"]


def can_use_tool(space: Door, *, ttl: Ttl = "space", to: str | Iterable[str] = ()) -> CanUseTool:
    """The callback by which Claude asks a space before it runs a tool of its own.

    Each call that the agent's settings neither allow nor deny is a proposal of ours; with a yes
    Claude runs what was fulfilled, perhaps with other arguments, and otherwise reads who said no,
    and why. ``interrupt()``, and the end of the client, withdraw what waits::

        async with Door("claude").join() as space:
            options = ClaudeAgentOptions(can_use_tool=can_use_tool(space))
            async with ClaudeSDKClient(options) as claude:
                await claude.query("Tidy the folder up.")
                async for message in claude.receive_response():
                    print(message)

    Args:
        space: A door that is in a space; :meth:`Door.join` takes what an agent's ``join`` does.
        ttl: Seconds that a call waits for its decision; ``None``: as long as it takes. By
            default the space's (:class:`meup_agent.Settings`).
        to: The participants that should decide; empty: any that may.
    """
    session = uuid4().hex  # the callback is told none, and the ids of calls are a client's own

    async def decide(
        tool: str, arguments: dict[str, Any], context: ToolPermissionContext
    ) -> PermissionResult:
        call = HostCall(
            tool,
            arguments,
            agent="claude-agent-sdk",
            session=session,
            call_id=context.tool_use_id or "",
        )
        answer = await space.ask(call, ttl=ttl, to=to)
        if isinstance(answer, Permitted):
            return PermissionResultAllow(updated_input=answer.arguments)
        return PermissionResultDeny(message=answer.words)

    return decide
