"""An agent with two tools, and one that a test plays by hand, with their lists."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from meup_agent import Agent, Envelope, Space
from tests.interaction.people import Meeting, Notes, Raw, raw
from tests.interaction.views import Tape, call_of
from tests.patience import PATIENCE
from tests.wire import decode, kinds, payloads

LIST = "tools/list"
WRITE = {
    "name": "write",
    "inputSchema": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["path"],
        "additionalProperties": False,
    },
}
READ = {"name": "read", "inputSchema": {"type": "object"}}


def writer(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def write(path: str, size: int = 0) -> str:
        notes(("write", path, size))
        return path

    @agent.tool
    async def read() -> str:
        return "text"

    return agent


def names(tools: list[dict[str, Any]]) -> list[str]:
    return [tool["name"] for tool in tools]


class Lister:
    """A participant that gives its list of tools when it is told to, and counts who asked."""

    def __init__(self, by_hand: Raw) -> None:
        self.raw = by_hand
        self.tape = Tape()

    async def hear(self) -> None:
        async for frame in self.raw.transport:
            self.tape.put(decode(frame))

    async def asked(self, count: int) -> Envelope:
        """Wait until the list was asked for so many times; the latest request."""

        def asks(envelope: Envelope) -> bool:
            is_list = envelope.kind == kinds.MCP_REQUEST and call_of(envelope).method == LIST
            return is_list and "mallory" in envelope.to

        return await self.tape.until(asks, count)

    def count(self) -> int:
        """The times that the list was asked for."""
        return len([each for each in self.tape.calls(LIST) if "mallory" in each.to])

    async def give(self, request: Envelope, *tools: dict[str, Any], **more: Any) -> None:
        payload = payloads.result(request.id, {"tools": tools} | more)
        await self.raw.answer(request, payload)

    async def say_changed(self, id: str) -> None:
        method = "notifications/tools/list_changed"
        await self.raw.say(kinds.MCP_REQUEST, payloads.notification(method, {}), id=id)

    async def cancelled(self) -> Envelope:
        def cancels(envelope: Envelope) -> bool:
            return (
                envelope.kind == kinds.MCP_REQUEST and call_of(envelope).method == kinds.CANCELLED
            )

        return await self.tape.until(cancels)


@asynccontextmanager
async def lister(meeting: Meeting) -> AsyncGenerator[Lister]:
    """Give a list by hand, for a block that may not hang."""
    with anyio.fail_after(PATIENCE):
        async with raw(meeting) as by_hand, anyio.create_task_group() as tasks:
            lists = Lister(by_hand)
            tasks.start_soon(lists.hear)
            yield lists
            tasks.cancel_scope.cancel()


async def ask(space: Space, into: list[Any], **options: Any) -> None:
    into.append(await space.offers.tools("mallory", **options))
