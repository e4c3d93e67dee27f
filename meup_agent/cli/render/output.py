"""Standard output: a terminal, a pipe or a file, none of which may block the event loop."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import anyio
from rich.console import Console, RenderableType
from rich.text import Text

from meup_agent.cli.render.console import console
from meup_agent.cli.render.layout import Glyphs
from meup_agent.cli.render.timeline import Timeline

CHUNK: Final = 4096
"""Bytes that a pipe takes without making the writer wait once it can be written to (PIPE_BUF)."""


class OutputClosed(Exception):
    """The reader of our output has gone, for example ``head`` after its last line."""


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
        """A timeline that fits."""
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
            return
        # A plain file is always writable, and the selector says so by refusing to watch it.
        with suppress(PermissionError):
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
