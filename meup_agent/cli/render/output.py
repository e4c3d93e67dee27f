"""The two standard streams: a terminal, a pipe or a file; none may block the loop.

Of several programs at once, each line stands behind its program's name in a colour.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TextIO

import anyio
from anyio.lowlevel import checkpoint
from rich.console import Console, RenderableType
from rich.text import Text

from meup_agent.cli.failures import OutputClosed
from meup_agent.cli.options import wants_colour
from meup_agent.cli.render.formatting import Glyphs
from meup_agent.cli.render.logs import PARTICIPANT, log, logs_json
from meup_agent.escape import visible
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from meup_agent.cli.render.timeline import Timeline
    from meup_agent.client.messages import Progress


# --- console ---
# Consoles for the two standard streams; notes on standard error.

MAX_NOTE: Final = 2_000  # characters of a note; it may quote what a stranger sent


def console(file: TextIO, *, colour: bool) -> Console:
    """A console that takes nothing in a text for markup."""
    # rich's own no_color leaves bold, dim and italic; without a colour system nothing is styled.
    return Console(
        file=file,
        highlight=False,
        markup=False,
        emoji=False,
        color_system="auto" if wants_colour(colour=colour) else None,
    )


class Stderr:
    """Standard error: what a command says beside its result."""

    def __init__(self, *, colour: bool = True) -> None:
        self.console = console(sys.stderr, colour=colour)

    def note(self, text: str) -> None:
        """Write a line; everything in it that does not print as itself is escaped."""
        line = Text(f"meup: {visible(text, MAX_NOTE)}", style="dim")
        self.console.print(line, soft_wrap=True)

    def write_lines(self, lines: str) -> None:
        """Write lines whose parts were escaped by the caller, however long they are."""
        self.console.print(Text(lines), soft_wrap=True)

    def prompt(self, question: str) -> None:
        """Write a question, behind which the answer is typed."""
        self.console.print(Text(question), end="", soft_wrap=True)


def warn(sentence: str) -> None:
    if logs_json():
        log.warning("%s", sentence)
    else:
        sys.stderr.write(f"meup: warning: {visible(sentence, 1000)}\n")


def write_note(text: str) -> None:
    """Write to standard output what a person should know, or into a log that is JSON."""
    if logs_json():
        log.info("%s", text.strip())
    else:
        sys.stdout.write(text)
        sys.stdout.flush()


# --- standard output ---

CHUNK: Final = 4096
"""Bytes that a pipe takes without making the writer wait once it can be written to (PIPE_BUF)."""


class Output:
    """Standard output; what writes raises :class:`OutputClosed` once its reader has gone."""

    def __init__(self, *, colour: bool = True) -> None:
        self.console = console(sys.stdout, colour=colour)
        self.glyphs = Glyphs(self.console.encoding)
        self._fd = sys.stdout.fileno()

    @property
    def is_terminal(self) -> bool:
        """True if a person may be looking at it right now."""
        return self.console.is_terminal

    @property
    def width(self) -> int | None:
        """The terminal's width in columns now; ``None`` where there is no terminal."""
        return self.console.width if self.is_terminal else None

    def timeline(self) -> Timeline:
        from meup_agent.cli.render.timeline import Timeline  # loads the exchange table

        return Timeline(lambda: self.width, self.glyphs)

    async def show(self, *lines: RenderableType) -> None:
        """Print; cancelled, a line may be left half."""
        await self.write("".join(map(self._rendered, lines)))

    async def show_all(self, lines: Iterable[str | Text]) -> None:
        """Print many lines, a text that is not rich's as it is."""
        rendered = (line if isinstance(line, str) else self._rendered(line) for line in lines)
        await self.write("".join(rendered))

    def _rendered(self, line: RenderableType) -> str:
        if isinstance(line, Text) and line.no_wrap:
            # What rich's printing would do to it as well, in a tenth of the time.
            return _styled(line, self.console) + "\n"
        with self.console.capture() as capture:
            self.console.print(line)
        return capture.get()

    async def write(self, text: str) -> None:
        """Write a text as it is, without stopping others where the reader is slow."""
        rest = memoryview(text.encode(self.console.encoding, "backslashreplace"))
        try:
            while rest:
                await self._until_writable()
                rest = rest[os.write(self._fd, rest[:CHUNK]) :]
        except BrokenPipeError:
            raise OutputClosed from None

    async def until_closed(self) -> None:
        """Return when the reader of a pipe has gone; never for anything else.

        Without it a program with nothing to print would not notice.
        """
        if sys.platform != "linux" or not stat.S_ISFIFO(os.fstat(self._fd).st_mode):
            await anyio.sleep_forever()
        # The writing end of a pipe becomes readable only by the error that its reader is gone.
        await anyio.wait_readable(self._fd)

    def abandon(self) -> None:
        """Let nothing more be written, not even what the interpreter flushes at its end."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._fd)
        os.close(nothing)

    async def _until_writable(self) -> None:
        if sys.platform == "win32":
            return  # select has no poll there
        # As nearly always, at a tenth of what watching it by the loop costs.
        await checkpoint()
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        if not poll.poll(0):
            await anyio.wait_writable(self._fd)


def _styled(line: Text, on: Console) -> str:
    if on.color_system is None:
        return line.plain
    # A style ends with its line, and a text's own style is one more span over all of it.
    parts = Text().append_text(line).split("\n", allow_blank=True)
    # The styles have ANSI's 16 colours only, which are the same in every colour system.
    return "\n".join(
        "".join(text if style is None else style.render(text) for text, style, _ in part.render(on))
        for part in parts
    )


# --- several programs at once ---


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
        if logs_json():
            log.info("%s", line, extra={PARTICIPANT: name})
            return
        text = Text(no_wrap=True)
        text.append(*self._prefixes[name])
        if self._lost:
            self.write(Text(f"({self._lost} lines were not shown in time)", no_wrap=True))
        text.append(visible(line))
        self.write(text)

    def write(self, text: Text | str) -> None:
        """Show a text, or lose it where too many wait; in a log that is JSON it is a record."""
        if logs_json():
            log.info("%s", str(text).strip())
            return
        try:
            self._lines.send_nowait(text)
            self._lost = 0
        except anyio.WouldBlock:
            self._lost += 1


@asynccontextmanager
async def open_prefixed(
    names: Sequence[str], on_closed: Callable[[], None]
) -> AsyncGenerator[PrefixedOutput]:
    """The block in which programs' lines are shown; ``on_closed``: their reader has gone."""
    output = Output()
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


# --- progress ---
# Shows on a terminal that something takes its time, and how far it is.

PATIENCE: Final = 2.0  # seconds before anything is shown; a progress shows it at once
REDRAWN_SECONDS: Final = 0.1
BAR: Final = 20  # columns of the bar
WITH_BAR: Final = 80  # columns of a terminal; in a narrower one the words need the room
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
            *([rich.BarColumn(BAR)] if self._console.width >= WITH_BAR else []),
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
