"""Tools that changed since they were accepted: the mark in a list, and the methods about them.

A bridge with pinned tools marks what its server offers otherwise than it was accepted (PROTOCOL 5).
Whoever decides reads the mark, and a person accepts the difference by the methods here. They are
methods of their own, so that the gateway lets only those send them that may.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from meup_agent.client.method_params import write_params
from meup_agent.errors import RequestError
from meup_agent.protocol.kinds import ACCEPT_TOOLS
from meup_agent.protocol.payload_reader import MAX_NAME_CHARS
from meup_agent.protocol.payloads import INTERNAL_ERROR, META, PREFIX, as_object

if TYPE_CHECKING:
    from meup_agent.client.space import Space

TOOL_CHANGES: Final = f"{PREFIX}tool_changes"
"""Tells how a server's tools differ from the accepted ones."""

ACCEPT_CALL: Final = f"{PREFIX}accept_call"
"""Lets the sender carry out one proposal with a tool of a form that was not accepted."""

CHANGED: Final = f"{PREFIX}changed"
"""In the ``_meta`` of a listed tool: it differs from the accepted one."""

MAX_MARKED_LINES: Final = 8
"""Differences of a form that a mark has; a person decides by few, and the rest is counted."""

MAX_LINE_CHARS: Final = 300
"""Characters of a difference in a mark."""

CHANGES_SECONDS: Final = 15.0
"""Wait for a bridge to tell of its tools, or to accept them: a server may have to list them."""

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]


class ToolMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The difference of a listed tool from the accepted one.

    Attributes:
        form: Digest of its form, where that is not the accepted one: then no rule allows its calls.
        difference: The differences of the form, in words, as many as have room.
        texts: Its texts are not the accepted ones, which the list has in their place.
    """

    form: str = ""
    difference: tuple[str, ...] = ()
    texts: bool = False


class ChangedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that is not as it was accepted.

    Attributes:
        name: Its name.
        form: Differences of its form, in words: all but its texts.
        texts: Differences of its texts, in words.
    """

    name: str
    form: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


class ToolDifference(msgspec.Struct, frozen=True):
    """The difference of a server's tools from the accepted ones.

    Attributes:
        server: The server's name.
        digest: Digest of the tools as they are now, by which they are accepted.
        tools: The tools that differ; none: they are as they were accepted.
        omitted: The number of differences that had no room.
    """

    server: str
    digest: str
    tools: tuple[ChangedTool, ...] = ()
    omitted: int = 0


class AcceptToolsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of an acceptance.

    Attributes:
        digest: Digest of the tools that were looked at.
    """

    digest: str


class AcceptCallParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of the acceptance for one call.

    Attributes:
        proposal: The id of the proposal that the sender is about to carry out.
        proposer: Its proposer.
        tool: The tool.
        form: Digest of the form that was looked at.
    """

    proposal: _Name
    proposer: _Name
    tool: str
    form: str


def read_mark(tool: Mapping[str, Any]) -> ToolMark | None:
    """The mark of a listed tool; ``None``: it is as it was accepted, or nobody pins it.

    A mark that cannot be read marks a form that nobody has accepted.
    """
    written = as_object(tool.get(META)).get(CHANGED)
    if written is None:
        return None
    try:
        mark = msgspec.convert(written, ToolMark)
    except msgspec.ValidationError:
        return ToolMark(form="unreadable")
    lines = tuple(each[:MAX_LINE_CHARS] for each in mark.difference[: MAX_MARKED_LINES + 1])
    return msgspec.structs.replace(mark, difference=lines)


async def read_difference(space: Space, participant: str) -> ToolDifference:
    """The difference of a participant's tools from the accepted ones.

    Raises:
        MeupError: As :meth:`Space.request`; −32601: it pins no tools.
    """
    said = await space.request(participant, TOOL_CHANGES, {}, timeout=CHANGES_SECONDS)
    try:
        return msgspec.convert(said, ToolDifference)
    except msgspec.ValidationError:
        raise RequestError(
            INTERNAL_ERROR, f"{participant!r} does not tell how its tools have changed"
        ) from None


async def accept_tools(space: Space, participant: str, digest: str) -> None:
    """Accept a participant's tools as they were seen.

    Raises:
        MeupError: As :meth:`Space.request`; an error says that they have changed since.
    """
    params = write_params(AcceptToolsParams(digest))
    await space.request(participant, ACCEPT_TOOLS, params, timeout=CHANGES_SECONDS)


async def accept_call(space: Space, participant: str, accepted: AcceptCallParams) -> None:
    """Accept a tool's form for one call, which is to be made next.

    Raises:
        MeupError: As :meth:`Space.request`; an error says that it has changed since.
    """
    await space.request(participant, ACCEPT_CALL, write_params(accepted), timeout=CHANGES_SECONDS)
