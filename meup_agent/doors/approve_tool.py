"""A tool by which Claude Code asks before it runs something (``--permission-prompt-tool``).

Claude Code calls it by itself, and takes it out of what its model can call. The answer is a text
with a JSON object; whatever else it gets, an error or a time-out included, it takes for a no.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from meup_agent.doors.hooks import UnreadableHook, read_permission_call, unreadable_words
from meup_agent.doors.permit import Answer, HostCall, Permitted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


MAX_WAITING: Final = 64
"""Calls that wait for a decision at once: each is a proposal for people to see."""

TOO_MANY: Final = (
    f"This call was not carried out, since {MAX_WAITING} calls wait for a decision already. Nobody"
    " decided about it: wait for those, and do not try to do the same by another way."
)


OFFER: Final[dict[str, Any]] = {
    "name": "approve",
    "title": "Approval of a call",
    "description": (
        "For Claude Code itself (--permission-prompt-tool mcp__SERVER__approve): asks the space"
        " whether a call may run. It runs nothing."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "tool_name": {"type": "string"},
            "input": {"type": "object"},
            "tool_use_id": {"type": "string"},
        },
        "required": ["tool_name", "input"],
    },
}
"""The tool, as it is listed."""


class ApproveTool:
    """A tool for the program that is the client, which asks a space about a call of its own.

    Args:
        ask: Asks the space; cancelling it withdraws.
        session: The client's id of its session.
        cwd: The folder in which it works.
    """

    def __init__(
        self, ask: Callable[[HostCall], Awaitable[Answer]], *, session: str, cwd: str
    ) -> None:
        self._ask, self._session, self._cwd = ask, session, cwd
        self._waiting = 0

    @property
    def offer(self) -> dict[str, Any]:
        """The tool, as it is listed."""
        return OFFER

    async def call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Ask about a call; the result, as Claude Code reads it. Cancelling it withdraws."""
        said = await self._decide(arguments)
        return {"content": [{"type": "text", "text": json.dumps(said)}]}

    async def _decide(self, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            call = read_permission_call(arguments, self._session, self._cwd)
        except UnreadableHook as error:
            return _deny(unreadable_words("Claude Code", str(error)))
        if self._waiting >= MAX_WAITING:
            return _deny(TOO_MANY)
        self._waiting += 1
        try:
            answer = await self._ask(call)
        finally:
            self._waiting -= 1
        if isinstance(answer, Permitted):
            return {"behavior": "allow", "updatedInput": answer.arguments}
        return _deny(answer.words)


def _deny(words: str) -> dict[str, Any]:
    return {"behavior": "deny", "message": words}
