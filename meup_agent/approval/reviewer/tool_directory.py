"""Tools of the participants of a space, as they describe them, asked for where they matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from meup_agent.client.offers import TOOLS
from meup_agent.client.space import directory_of
from meup_agent.client.tool_changes import ToolMark, digest_of_form, read_mark
from meup_agent.errors import ConnectionFailed
from meup_agent.protocol.wire.payloads import as_object
from meup_agent.transport.base import Condition

if TYPE_CHECKING:
    from meup_agent.client.space import Space

LIST_SECONDS: Final = 5.0
"""Wait for the tools of a participant; what is not known by then is shown as not known."""

MAX_DIRECTORIES: Final = 64
"""Participants whose tools are asked for: the executors of what waits."""

MAX_AT_A_TIME: Final = 8
"""Of these, asked at the same time."""

MAX_TOOLS: Final = 1_000
"""Tools of a participant that are kept."""

MAX_DESCRIPTION: Final = 4_000
"""Characters of a tool's description that are kept."""


class ToolFacts(msgspec.Struct, frozen=True):
    """A tool as the participant that has it describes it.

    Attributes:
        description: The tool's description.
        schema: Its ``inputSchema``.
        annotations: Its ``annotations``, hints of MCP.
        mark: Its difference from the accepted tool; ``None``: it has none.
        seen: Digest of its form, accepted or not.
    """

    description: str = ""
    schema: Mapping[str, Any] = {}
    annotations: Mapping[str, Any] = {}
    mark: ToolMark | None = None
    seen: str = ""

    @property
    def form(self) -> str:
        """Digest of its form, where nobody has accepted that."""
        return "" if self.mark is None else self.mark.form

    @property
    def is_destructive(self) -> bool:
        """True if it is marked as one that may destroy something."""
        return self.annotations.get("destructiveHint") is True

    @property
    def hints(self) -> tuple[str, ...]:
        """Its annotations in words."""
        said = ((self.annotations.get(key), words) for key, words in _HINTS.items())
        return tuple(words[not value] for value, words in said if isinstance(value, bool))


_HINTS: Final = {
    "readOnlyHint": ("reads only", "changes something"),
    "destructiveHint": ("may destroy", "destroys nothing"),
    "idempotentHint": ("can be repeated", "not to be repeated"),
    "openWorldHint": ("reaches outside", "stays inside"),
}


class ToolDirectory:
    """The tools of those participants that were asked for.

    Args:
        space: The space.
        came: Told of each participant whose tools have come, or could not be had.
    """

    def __init__(self, space: Space, came: Callable[[str], None]) -> None:
        self._space = space
        self._came = came
        self._known: dict[str, dict[str, ToolFacts] | None] = {}
        # Those that are asked, and that are to be (None).
        self._asked: dict[str, anyio.CancelScope | None] = {}
        self._changed = Condition()

    @property
    def is_settled(self) -> bool:
        """True if there is an answer, or none, to everything that was asked."""
        return not self._asked

    def want(self, participant: str) -> None:
        """Ask for the tools of a participant, if that has not been done."""
        if not self.is_wanted(participant) and len(self._known) < MAX_DIRECTORIES:
            self._asked[participant] = None
            self._changed.notify_all()

    def tools(self, participant: str) -> Mapping[str, ToolFacts] | None:
        """The tools of a participant, by name; ``None`` where they are not known."""
        return self._known.get(participant)

    def is_wanted(self, participant: str) -> bool:
        return participant in self._known or participant in self._asked

    def could_not_be_had(self, participant: str) -> bool:
        return self._known.get(participant, ()) is None

    def learn_from(self, other: ToolDirectory) -> None:
        """Take over the tools that another directory of the same space knows."""
        self._known.update({name: each for name, each in other._known.items() if each is not None})

    def forget(self, participant: str) -> None:
        self._known.pop(participant, None)

    def ask_again(self, participant: str, *, refresh: bool = False) -> None:
        """Ask for the tools of a participant that has come, whatever was asked before it did.

        With ``refresh`` itself, although the space has a list of it.
        """
        self.forget(participant)
        if refresh:
            directory_of(self._space).forget_tools(participant)
        scope = self._asked.get(participant)
        if scope is not None:
            # What was asked of who was not here is answered by nobody.
            scope.cancel()
        else:
            self.want(participant)

    async def run(self) -> None:
        """Ask for what is wanted, until cancelled."""
        limiter = anyio.CapacityLimiter(MAX_AT_A_TIME)
        async with anyio.create_task_group() as tasks:
            while True:
                for participant, begun in [*self._asked.items()]:
                    if begun is None:
                        scope = self._asked[participant] = anyio.CancelScope()
                        tasks.start_soon(self._ask, participant, scope, limiter)
                await self._changed.wait()

    async def _ask(
        self, participant: str, scope: anyio.CancelScope, limiter: anyio.CapacityLimiter
    ) -> None:
        listed: list[dict[str, Any]] | None = None
        with scope, suppress(ConnectionFailed):
            async with limiter:
                listed = await directory_of(self._space).read(participant, TOOLS, LIST_SECONDS)
        del self._asked[participant]
        if scope.cancelled_caught:
            self.want(participant)
            return
        self._known[participant] = None if listed is None else _read_all(listed[:MAX_TOOLS])
        self._came(participant)


def _read_all(listed: list[dict[str, Any]]) -> dict[str, ToolFacts]:
    found: dict[str, ToolFacts] = {}
    for each in listed:
        name = str(each.get("name"))
        # Of two with one name it is not known which one runs: it is the more dangerous.
        if name not in found or not (found[name].is_destructive or found[name].form):
            found[name] = _read(each)
    return found


def _read(tool: Mapping[str, Any]) -> ToolFacts:
    description = tool.get("description")
    return ToolFacts(
        description[:MAX_DESCRIPTION] if isinstance(description, str) else "",
        as_object(tool.get("inputSchema")),
        as_object(tool.get("annotations")),
        read_mark(tool),
        digest_of_form(tool),
    )
