"""A person at the inbox's screen: a space in memory, proposals, and a pilot."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
from textual.pilot import Pilot

from meup_agent import Agent, Space
from meup_agent.approval import Inbox, InboxItem
from meup_agent.cli.inbox.questions import ScreenQuestion
from meup_agent.cli.inbox.screen import InboxApp
from meup_agent.cli.inbox.views import RowsView
from tests.interaction.people import PATIENCE, InMemory, join


def tools() -> Agent:
    agent = Agent("tools")

    @agent.tool(read_only=True)
    async def read(path: str) -> str:
        return f"text of {path}"

    @agent.tool(destructive=True)
    async def wipe(disk: str) -> str:
        return f"wiped {disk}"

    return agent


class Desk:
    """The screen, its inbox, and those who propose."""

    def __init__(self, app: InboxApp, inbox: Inbox, pilot: Pilot[None], proposer: Space) -> None:
        self.app, self.inbox, self.pilot, self.proposer = app, inbox, pilot, proposer
        self.now = 1_000.0

    async def press(self, *keys: str) -> None:
        """Press keys, each long after the last change."""
        for key in keys:
            self.now += 10
            await self.pilot.press(key)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(PATIENCE):
            while not condition():
                await self.pilot.pause(0.01)
        await self.pilot.pause()

    async def arrived(self, count: int = 1) -> InboxItem:
        """The first of so many items, once the screen shows it, with its tool's own words."""
        await self.until(
            lambda: (
                len(self.inbox) == count
                and self.app.current is not None
                and self.inbox.items[0].tool_facts is not None
            )
        )
        return self.inbox.items[0]

    def asks(self, question: ScreenQuestion) -> bool:
        """Whether a question is the open one."""
        return self.app.question is question

    def text(self, part: str) -> str:
        """What a part of the screen says."""
        widget = self.app.query_one(part)
        if isinstance(widget, RowsView):
            return "\n".join(each.plain for each in widget.rows)
        return str(widget.render())


@asynccontextmanager
async def desk(
    *,
    size: tuple[int, int] = (80, 24),
    edit: Callable[[str], Awaitable[str]] | None = None,
    **options: Any,
) -> AsyncGenerator[Desk]:
    """A person's screen beside a participant that proposes, and one that has the tools."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        meeting = InMemory()
        await enter(join(meeting, tools()))
        proposer = await enter(join(meeting, "proposer"))
        inbox = await enter(Inbox(await enter(join(meeting, "reviewer"))))
        made: list[Desk] = []
        app = InboxApp(
            inbox,
            where="reviewer in demo",
            edit=edit,
            clock=lambda: made[0].now if made else 0.0,
            **options,
        )
        async with app.run_test(size=size) as pilot:
            made.append(Desk(app, inbox, pilot, proposer))
            yield made[0]
