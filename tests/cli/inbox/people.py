"""A person at the inbox's screen: a space in memory, proposals, and a pilot."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from textual.pilot import Pilot

from meup_agent import Agent, ProposalHandle, Space
from meup_agent.approval import DecidedItem, Inbox, InboxItem, Reviewer
from meup_agent.cli.render.screen import RowsView
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.cli.commands import InboxApp, ScreenQuestion
from tests.interaction.people import InMemory, join
from tests.patience import PATIENCE


def tools() -> Agent:
    agent = Agent("tools")

    @agent.tool(read_only=True)
    async def read(path: str) -> str:
        return f"text of {path}"

    @agent.tool(destructive=True)
    async def wipe(disk: str) -> str:
        return f"wiped {disk}"

    @agent.tool(read_only=True)
    async def deploy(version: int) -> int:
        return version

    return agent


_BARS = str.maketrans(dict.fromkeys("▁▂▃▄▅▆▇█▔", " "))
"""The ends of a scrollbar, which textual draws as it likes."""


class Desk:
    """The screen, its inbox, and those who propose."""

    def __init__(
        self, app: InboxApp, inbox: Inbox, pilot: Pilot[None], proposer: Space, meeting: InMemory
    ) -> None:
        self.app, self.inbox, self.pilot, self.proposer = app, inbox, pilot, proposer
        self.meeting = meeting
        self.now = 1_000.0
        self.pressed = 0

    async def press(self, *keys: str) -> None:
        """Press keys, each long after the last change."""
        for key in keys:
            self.now += 10
            self.pressed += 1
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

    def looks(self) -> str:
        """The screen as text, line by line, without its scrollbars."""
        strips = self.app.screen._compositor.render_strips()
        lines = (strip.text.translate(_BARS).rstrip() for strip in strips)
        return "\n".join(lines) + "\n"

    def colours(self) -> set[tuple[int, ...]]:
        """The colours on the screen, as red, green and blue."""
        strips = self.app.screen._compositor.render_strips()
        styles = [segment.style for strip in strips for segment in strip if segment.style]
        found = [each for style in styles for each in (style.color, style.bgcolor) if each]
        return {tuple(each.get_truecolor()) for each in found}

    def asks(self, question: ScreenQuestion) -> bool:
        """True where a question is the open one."""
        return self.app.question is question

    def text(self, part: str) -> str:
        """The text of a part of the screen."""
        widget = self.app.query_one(part)
        if isinstance(widget, RowsView):
            return "\n".join(each.plain for each in widget.rows)
        return str(widget.render())


@asynccontextmanager
async def desk(
    *,
    size: tuple[int, int] = (80, 24),
    edit: Callable[[str], Awaitable[str]] | None = None,
    policy: Path | None = None,
    past: Iterable[DecidedItem] = (),
    having: Agent | None = None,
    **options: Any,
) -> AsyncGenerator[Desk]:
    """A person's screen beside a participant that proposes, and one that has the tools.

    With a policy a reviewer by the name of ``second`` counts votes.
    """
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        meeting = InMemory()
        await enter(join(meeting, having or tools()))
        if policy is not None:
            seat = meeting.connector("second"), meeting.token("second")
            await enter(Reviewer(policy).join(seat[0], token=seat[1]))
        proposer = await enter(join(meeting, "proposer"))
        inbox = await enter(Inbox(await enter(join(meeting, "reviewer"))))
        inbox._history.note_before(past)
        made: list[Desk] = []
        app = InboxApp(
            inbox,
            where="reviewer in demo",
            edit=edit,
            clock=lambda: made[0].now if made else 0.0,
            **options,
        )
        with anyio.fail_after(PATIENCE):
            async with app.run_test(size=size) as pilot:
                made.append(Desk(app, inbox, pilot, proposer, meeting))
                yield made[0]


@asynccontextmanager
async def shown(
    tool: str, arguments: dict[str, Any], *, to: str | tuple[str, ...] = (), **options: Any
) -> AsyncGenerator[tuple[Desk, ProposalHandle]]:
    """A person's screen with a proposal on it."""
    async with desk(**options) as d, d.proposer.propose("tools", tool, arguments, to=to) as made:
        await d.arrived()
        yield d, made
