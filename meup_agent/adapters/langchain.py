"""Tools of a space for LangChain and LangGraph. Needs the extra ``langchain``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from meup_agent.adapters.space_tools import SpaceTool, SpaceTools

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.client.proposal import Ttl
    from meup_agent.client.space import Space


async def space_tools(
    space: Space, *, ttl: Ttl = "space", to: Iterable[str] = ()
) -> list[BaseTool]:
    """The tools that are in a space now, for ``create_agent`` and any graph.

    A call that our capabilities do not allow waits as a proposal; a rejection, an expiry and a
    failure are texts for the model, with the status ``error``. Cancelling the run withdraws what
    waits, and cancels what runs. The tools are async: a plain ``invoke`` is refused.

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
        StructuredTool(
            name=tool.exposed,
            description=tool.description,
            args_schema=tool.schema,
            coroutine=partial(_call, tools, tool),
            handle_tool_error=True,
        )
        for tool in await tools.read()
    ]


async def _call(tools: SpaceTools, tool: SpaceTool, /, **arguments: Any) -> Any:
    answer = await tools.call(tool, arguments)
    if answer.is_error:
        raise ToolException(answer.text)
    return answer.value
