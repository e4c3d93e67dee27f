"""Tools of a space in an agent of the OpenAI Agents SDK. Needs the extra ``openai-agents``."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from agents import FunctionTool

from meup_agent.adapters.space_tools import SpaceTool, SpaceTools
from meup_agent.mcp.sdk import decisions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agents.tool_context import ToolContext

    from meup_agent.client.proposal import Ttl
    from meup_agent.client.space import Space


async def space_tools(
    space: Space, *, ttl: Ttl = "space", to: Iterable[str] = ()
) -> list[FunctionTool]:
    """The tools that are in a space now, for the ``tools`` of an ``Agent``.

    A call that our capabilities do not allow waits as a proposal; a rejection, an expiry and a
    failure are texts for the model. Cancelling the run withdraws what waits, and cancels what runs.

    Args:
        space: A joined space.
        ttl: Seconds that a call waits, for a decision and its result; ``None``: as long as it
            takes. By default the space's (:class:`meup_agent.Settings`).
        to: The participants that should decide proposals; empty: any that may.

    Raises:
        UsageError: It is called on another loop than asyncio.
    """
    tools = SpaceTools(space, ttl=ttl, to=to)
    return [
        FunctionTool(
            name=tool.exposed,
            description=tool.description,
            params_json_schema=tool.schema,
            on_invoke_tool=partial(_invoke, tools, tool),
            # The schema is the participant's, and reaches the model as it is.
            strict_json_schema=False,
        )
        for tool in await tools.read()
    ]


async def _invoke(tools: SpaceTools, tool: SpaceTool, ctx: ToolContext[Any], given: str) -> str:
    try:
        arguments = json.loads(given or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return decisions.failed(tool.exposed, "its arguments are not a JSON object")
    return (await tools.call(tool, cast("dict[str, Any]", arguments))).text
