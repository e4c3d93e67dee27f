"""The tools of a space for a model: their names and schemas, and calls with texts it can act on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from meup_agent.client.messages import names
from meup_agent.client.offers import TOOLS, ask_each
from meup_agent.client.proposal import Ttl, resolve_ttl
from meup_agent.client.space import Space, directory_of
from meup_agent.errors import ConnectionFailed, MeupError, ToolError, UsageError
from meup_agent.mcp.sdk import decisions
from meup_agent.mcp.sdk.naming import exposed_name
from meup_agent.protocol.exchange import Wait
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.outcomes import CallOutcome, Fulfillment, Responded
from meup_agent.transport.base import runs_on_asyncio

if TYPE_CHECKING:
    from collections.abc import Iterable


LIST_SECONDS: Final = 5.0
"""Wait for a participant's list of tools; then its tools are left out."""

EMPTY_SCHEMA: Final = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class SpaceTool:
    """A tool of a participant, as a framework offers it to a model.

    Attributes:
        exposed: The name for the model: letters, digits, ``_`` and ``-``, at most 64.
        participant: The participant that has it.
        name: Its name there.
        description: The participant's description: a stranger's words.
        schema: The JSON schema of its arguments, as the participant gave it.
    """

    exposed: str
    participant: str
    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer to a call, for a model.

    Attributes:
        value: What the tool returned; a text where it was not carried out, or failed.
        is_error: It was not carried out, or failed.
    """

    value: Any
    is_error: bool = False

    @property
    def text(self) -> str:
        """The value as a text: as it is, or as JSON."""
        if isinstance(self.value, str):
            return self.value
        return json.dumps(self.value, ensure_ascii=False)


class SpaceTools:
    """The tools of every participant of a space that we may see, and calls of them.

    Args:
        space: A joined space.
        ttl: Seconds that a call waits, for a decision and its result; ``None``: as long as it
            takes. By default the space's (:class:`meup_agent.Settings`).
        to: The participants that should decide proposals; empty: any that may, and then the first
            rejection decides.

    Raises:
        UsageError: It is made on another loop than asyncio.
    """

    def __init__(self, space: Space, *, ttl: Ttl = "space", to: Iterable[str] = ()) -> None:
        if not runs_on_asyncio():
            raise UsageError(
                "the adapters for agent frameworks work on asyncio alone; "
                "run the program with asyncio.run(…)"
            )
        self.space = space
        self._ttl = resolve_ttl(ttl, space.proposals.ttl)
        self._to = names(to)

    async def read(self) -> list[SpaceTool]:
        """Every tool; those of a participant that does not answer in time are left out."""
        owners = sorted(each.id for each in self.space.participants if each.id != self.space.me)
        lists = await ask_each(owners, self._read_from, at_a_time=max(len(owners), 1))
        return [tool for listed in lists for tool in listed]

    async def _read_from(self, owner: str) -> list[SpaceTool]:
        try:
            listed = await directory_of(self.space).read(owner, TOOLS, LIST_SECONDS)
        except ConnectionFailed:
            return []
        return [_read_tool(owner, each) for each in listed or () if _has_name(each)]

    async def call(self, tool: SpaceTool, arguments: dict[str, Any]) -> ToolAnswer:
        """Call a tool: a request if our capabilities allow it, otherwise a proposal.

        Cancelling withdraws or cancels it. A rejection, an expiry and a failure are answers with a
        text that says what to do now.
        """
        try:
            outcome = await self.space.invoke(
                tool.participant,
                tool.name,
                arguments,
                to=self._to,
                timeout=self._ttl,
                ttl=self._ttl,
                wait=Wait.ADDRESSED if self._to else Wait.LATER,
            )
            return await self.answer(tool.exposed, outcome)
        except MeupError as error:
            return failed_answer(tool.exposed, error)

    async def answer(self, tool: str, outcome: CallOutcome) -> ToolAnswer:
        """The answer that the outcome of a call is."""
        if isinstance(outcome, Fulfillment | Responded):
            answer = ToolAnswer(_readable(outcome.result(accept_edits=True)))
            if isinstance(outcome, Responded) or outcome.as_proposed:
                return answer
            return ToolAnswer(f"{answer.text}\n\n{decisions.edited(outcome)}")
        return ToolAnswer(await decisions.undone(tool, outcome, self._ttl), is_error=True)


def failed_answer(tool: str, error: MeupError) -> ToolAnswer:
    """The answer to a call that the tool, or the way to it, failed."""
    said = str(error) if isinstance(error, ToolError) else decisions.failed(tool, str(error))
    return ToolAnswer(said, is_error=True)


def _has_name(described: dict[str, Any]) -> bool:
    name = described.get("name")
    return isinstance(name, str) and bool(name)


def _read_tool(owner: str, described: dict[str, Any]) -> SpaceTool:
    name, description = described["name"], described.get("description")
    schema = payloads.as_object(described.get("inputSchema"))
    return SpaceTool(
        exposed=exposed_name(owner, name),
        participant=owner,
        name=name,
        description=description if isinstance(description, str) else "",
        schema=schema or EMPTY_SCHEMA,
    )


def _readable(value: Any) -> Any:
    """MCP content that is text alone as that text; anything else as it is."""
    if value and payloads.is_list(value):
        texts = [each.get("text") for each in payloads.objects_in(value)]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(map(str, texts))
    return value
