"""Lines of several programs on standard output, each behind its program's name in a colour."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
from rich.text import Text

from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.output import Output, OutputClosed

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

COLOURS: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_red")

MAX_NAME: Final = 24
"""Columns of a name; a longer one is cut."""

MAX_WAITING: Final = 1_000
"""Lines that wait for a terminal that is held, or a pipe that is not read; later ones are lost."""

LAST_LINES: Final = 1.0
"""Seconds in which the lines that wait are written at the end."""


class PrefixedOutput:
    """Standard output that never makes a program wait; made by :func:`open_prefixed`."""

    def __init__(self, names: Sequence[str], lines: MemoryObjectSendStream[Text | str]) -> None:
        self._lines = lines
        shown = {name: visible(name, MAX_NAME) for name in names}
        width = max(map(len, shown.values()), default=0)
        self._prefixes = {
            name: (f"{shown[name]:{width}} | ", COLOURS[at % len(COLOURS)])
            for at, name in enumerate(names)
        }
        self._lost = 0

    def show(self, name: str, line: str) -> None:
        """Show a line of a program."""
        text = Text(no_wrap=True)
        text.append(*self._prefixes[name])
        if self._lost:
            self._put(Text(f"({self._lost} lines were not shown in time)", no_wrap=True))
        text.append(visible(line))
        self._put(text)

    def write(self, text: str) -> None:
        """Write a text of our own."""
        self._put(text)

    def _put(self, text: Text | str) -> None:
        try:
            self._lines.send_nowait(text)
            self._lost = 0
        except anyio.WouldBlock:
            self._lost += 1


@asynccontextmanager
async def open_prefixed(
    names: Sequence[str], on_closed: Callable[[], None], *, colour: bool = True
) -> AsyncGenerator[PrefixedOutput]:
    """The block in which programs' lines are shown; ``on_closed``: their reader has gone."""
    output = Output(colour=colour)
    lines, waiting = anyio.create_memory_object_stream[Text | str](MAX_WAITING)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_write, output, waiting, on_closed)
        try:
            yield PrefixedOutput(names, lines)
        finally:
            lines.close()
            tasks.cancel_scope.deadline = anyio.current_time() + LAST_LINES


async def _write(
    output: Output,
    lines: MemoryObjectReceiveStream[Text | str],
    on_closed: Callable[[], None],
) -> None:
    with lines:
        try:
            async for line in lines:
                await (output.write(line) if isinstance(line, str) else output.show(line))
        except OutputClosed:
            output.abandon()
            on_closed()
            async for _ in lines:
                pass
