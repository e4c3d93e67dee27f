"""Tools of a space in a pydantic-ai agent. Needs the extra ``pydantic-ai``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic_ai import ToolDefinition
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from meup_agent.adapters.space_tools import SpaceTool, SpaceTools
from meup_agent.mcp.sdk import decisions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.client.proposal import Ttl
    from meup_agent.client.space import Space

_ANY_OBJECT: Final = SchemaValidator(core_schema.dict_schema())
"""The participant checks its tool's arguments; here only their form is sure."""


class SpaceToolset(AbstractToolset[AgentDepsT]):
    """The tools of a space for a pydantic-ai agent, ``Agent(model, toolsets=[…])``.

    A call that our capabilities do not allow waits as a proposal; a rejection, an expiry and a
    failure are texts for the model. Cancelling the run withdraws what waits, and cancels what runs.

    Args:
        space: A joined space.
        ttl: Seconds that a call waits, for a decision and its result; ``None``: as long as it
            takes. By default the space's (:class:`meup_agent.Settings`).
        to: The participants that should decide proposals; empty: any that may.
        id: The toolset's id, which durable execution asks for.

    Raises:
        UsageError: It is made on another loop than asyncio.
    """

    def __init__(
        self,
        space: Space,
        *,
        ttl: Ttl = "space",
        to: Iterable[str] = (),
        id: str | None = None,
    ) -> None:
        self._tools = SpaceTools(space, ttl=ttl, to=to)
        self._known: dict[str, SpaceTool] = {}
        self._id = id

    @property
    def id(self) -> str | None:
        """The toolset's id."""
        return self._id

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        """The tools that are there now, by their names for the model."""
        self._known = {tool.exposed: tool for tool in await self._tools.read()}
        return {
            name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=name,
                    description=tool.description or None,
                    parameters_json_schema=tool.schema,
                ),
                max_retries=0,
                args_validator=_ANY_OBJECT,
            )
            for name, tool in self._known.items()
        }

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[AgentDepsT],
        tool: ToolsetTool[AgentDepsT],
    ) -> Any:
        """Call a tool in the space; the value that it returned, or a text for the model."""
        known = self._known.get(name)
        if known is None:
            return decisions.failed(name, "its participant has left the space")
        return (await self._tools.call(known, tool_args)).value
