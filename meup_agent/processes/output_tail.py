"""Standard error of a server: its last lines are kept, and logged at a bounded pace."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

import anyio

from meup_agent.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("meup_agent.mcp")

MAX_LINES: Final = 20
"""Last lines that are kept."""

MAX_LINE_CHARS: Final = 2_000
"""Characters of a line that are kept."""

CHUNK: Final = 65_536
"""Bytes that are read at once."""

MAX_BYTES_PER_SECOND: Final = 4_194_304
"""Bytes that are read in a second; a program that writes more waits."""


class LineLimiter:
    """A bound on the lines that one source logs in a second; what is left out is counted.

    Args:
        write: Logs a line at a level.
        per_second: Lines in a second.
    """

    def __init__(self, write: Callable[[str, int], None], per_second: int = 10) -> None:
        self._write = write
        self._per_second = per_second
        self._second = -1
        self._count = 0
        self._left_out = 0

    def line(self, text: str, level: int = logging.INFO) -> None:
        """Log a line, or count it."""
        second = int(anyio.current_time())
        if second != self._second:
            self.flush()
            self._second, self._count = second, 0
        if self._count < self._per_second:
            self._count += 1
            self._write(text, level)
        else:
            self._left_out += 1

    def flush(self) -> None:
        """Log how many lines were left out."""
        if self._left_out:
            self._write(f"({self._left_out} more lines were left out)", logging.INFO)
            self._left_out = 0


class StderrTail:
    """Reads what a server writes to its standard error, and keeps the end of it.

    Args:
        name: The server's name, for the log.
        limiter: Takes the lines, in place of the log.
    """

    def __init__(self, name: str, limiter: LineLimiter | None = None) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._rest = b""
        self._skips = False
        self._limiter = limiter or LineLimiter(
            lambda line, level: log.log(level, "%s: %s", name, line)
        )

    @property
    def lines(self) -> list[str]:
        """The last lines, each on one line and safe to print."""
        return [*self._lines]

    @contextmanager
    def pipe(self) -> Generator[tuple[int, TextIO]]:
        """A pipe for a server's standard error: the end to read, and the file to give to it."""
        source, target = os.pipe()
        try:
            os.set_blocking(source, False)
            with os.fdopen(target, "w", encoding="utf-8") as file:
                yield source, file
        finally:
            os.close(source)

    async def read(self, source: int) -> None:
        """Read until every process that has the pipe is gone."""
        second, left = 0, MAX_BYTES_PER_SECOND
        while True:
            try:
                chunk = os.read(source, CHUNK)
            except BlockingIOError:
                await anyio.wait_readable(source)
                continue
            if not chunk:
                break
            self.feed(chunk)
            left -= len(chunk)
            now = anyio.current_time()
            if int(now) != second:
                second, left = int(now), MAX_BYTES_PER_SECOND
            # A server that writes as fast as this reads never lets the pipe run dry.
            await anyio.sleep(0 if left > 0 else second + 1 - now)
        self.end()

    def feed(self, chunk: bytes) -> None:
        """Take what came."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if not self._skips:
                self._keep(line)
            self._skips = False
        self._rest = b"" if self._skips else rest
        if len(self._rest) > 4 * MAX_LINE_CHARS:
            # Of a line without an end no more is kept.
            self._keep(self._rest)
            self._rest, self._skips = b"", True

    def end(self) -> None:
        """Take the last line, if it had no end."""
        if self._rest:
            self._keep(self._rest)
        self._rest = b""
        self._limiter.flush()

    def _keep(self, line: bytes) -> None:
        text = line[: 4 * MAX_LINE_CHARS].decode(errors="replace").rstrip()[:MAX_LINE_CHARS]
        if text:
            shown = printable(text)[:MAX_LINE_CHARS]
            self._lines.append(shown)
            self._limiter.line(shown)
