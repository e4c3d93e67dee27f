"""The owners of tools, learned from the answers to ``tools/list`` that pass (PROTOCOL 4.4).

A list is its participant's own word. Any participant may name any tool, so a name that several have
addresses nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from meup_agent.protocol import payloads
from meup_agent.protocol.payloads import JsonObject, as_object, objects_in

MAX_LISTED_TOOLS: Final = 1_000
"""Tools of a participant that are remembered: a list is as long as its participant likes."""


class _ToolList(msgspec.Struct):
    names: dict[str, None] = {}
    is_whole: bool = False  # its last page has passed


class ToolOwners:
    """The tools of each participant, as far as its lists have passed."""

    def __init__(self) -> None:
        self._lists: dict[str, _ToolList] = {}

    def learn(self, participant: str, payload: JsonObject, cursor: str) -> None:
        """Learn from an answer to ``tools/list``; ``cursor`` is that of its request, if any."""
        result, error = payloads.read_response(payload)
        if error is not None:
            if error.get("code") == payloads.METHOD_NOT_FOUND:
                self._lists[participant] = _ToolList({}, is_whole=True)
            return
        page = as_object(result)
        is_last = not isinstance(page.get("nextCursor"), str)
        known = self._lists.get(participant)
        if known is None or (is_last and not cursor):
            # Of a list in pages none is forgotten: two readers may ask for them at the same time.
            known = self._lists[participant] = _ToolList()
        known.is_whole = known.is_whole or is_last
        for tool in objects_in(page.get("tools")):
            name = tool.get("name")
            if len(known.names) >= MAX_LISTED_TOOLS:
                return
            if isinstance(name, str) and len(name) <= payloads.MAX_KEPT_NAME_CHARS:
                known.names[name] = None

    def outdate(self, participant: str) -> None:
        """Note that a participant which has left, or begun anew, may have other tools, too.

        Those that it had count until its next list: else another participant could list one of them
        before that, and be the only one that has it.
        """
        known = self._lists.get(participant)
        if known is not None:
            known.is_whole = False

    def has(self, participant: str, tool: str) -> bool:
        """True if a participant has listed a tool."""
        known = self._lists.get(participant)
        return known is not None and tool in known.names

    def may_have(self, participant: str, tool: str) -> bool:
        """True unless all tools of a participant are known, and this one is not among them."""
        known = self._lists.get(participant)
        if known is None or not known.is_whole or len(known.names) >= MAX_LISTED_TOOLS:
            return True
        return tool in known.names or len(tool) > payloads.MAX_KEPT_NAME_CHARS


def listing_of(payload: JsonObject) -> str | None:
    """The cursor of a request for tools, empty for the first page; ``None`` for any other."""
    if payload.get("method") != payloads.TOOL_LIST:
        return None
    return payloads.kept_name(as_object(payload.get("params")).get("cursor"))
