"""Shows on a terminal that something takes its time, and how far it is."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.escape import visible
from meup_agent.transport.loops import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from rich.console import Console

    from meup_agent.client.messages import Progress

PATIENCE: Final = 2.0  # seconds before anything is shown; a progress shows it at once
REDRAWN_SECONDS: Final = 0.1
BAR: Final = 20  # columns of the bar
MAX_MESSAGE: Final = 60  # characters of what a tool says that it is doing


@asynccontextmanager
async def progress_line(console: Console, what: str) -> AsyncGenerator[ProgressLine]:
    """Show for the length of a block that something takes its time."""
    waiting = ProgressLine(console, what)
    async with background_tasks() as tasks:
        tasks.start_soon(waiting.show)
        yield waiting


class ProgressLine:
    """A line that moves while we wait, and is gone afterwards; nothing where no terminal is."""

    def __init__(self, console: Console, what: str) -> None:
        self._console = console
        self._what = visible(what, MAX_MESSAGE)
        self._progress: Progress | None = None
        self._told = anyio.Event()

    def update(self, progress: Progress) -> None:
        """The tool has told of its progress."""
        self._progress = progress
        self._told.set()

    def rename(self, what: str) -> None:
        """Say otherwise what we wait for; it is shown no sooner by that."""
        self._what = visible(what, MAX_MESSAGE)

    async def show(self) -> None:
        """Show it, after a moment, until it is cancelled."""
        if not self._console.is_terminal:
            return
        with anyio.move_on_after(PATIENCE):
            await self._told.wait()
        await self._redraw()

    async def _redraw(self) -> None:
        # Loaded when something takes long enough: a short call does not wait for it.
        from rich import progress as rich

        shown = rich.Progress(
            rich.SpinnerColumn("line" if self._console.encoding != "utf-8" else "dots"),
            rich.TextColumn("{task.description}", markup=False),
            rich.BarColumn(BAR),
            rich.TextColumn("{task.fields[figures]}", markup=False),
            rich.TimeElapsedColumn(),
            console=self._console,
            auto_refresh=False,
            transient=True,
        )
        line = shown.add_task(self._what, total=None, figures="")
        with shown:
            while True:
                if (told := self._progress) is None:
                    shown.update(line, description=self._what)
                else:
                    total = told.total if told.total is not None and told.total > 0 else None
                    shown.update(
                        line,
                        description=visible(told.message, MAX_MESSAGE) or self._what,
                        completed=told.done,
                        total=total,
                        figures=f"{told.done:g}" + ("" if total is None else f"/{total:g}"),
                    )
                shown.refresh()
                await anyio.sleep(REDRAWN_SECONDS)
