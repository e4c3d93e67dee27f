"""Consoles for the two standard streams; notes and the log on standard error."""

from __future__ import annotations

import logging
import os
import sys
from types import TracebackType
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from meup_agent.escape import visible
from meup_agent.uncaught import wants_tracebacks

MAX_NOTE: Final = 2_000  # characters of a note; it may quote what a stranger sent
FORMAT: Final = "%(asctime)s %(levelname)-7s %(message)s"
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def wants_colour(*, colour: bool = True) -> bool:
    """True if output may be styled: neither ``--no-color`` nor ``NO_COLOR`` forbids it."""
    return colour and not os.environ.get("NO_COLOR")


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
    """Write a warning, escaped."""
    sys.stderr.write(f"meup: warning: {visible(sentence, 1000)}\n")


# --- the log: one line a record ---


class SafeFormatter(logging.Formatter):
    """Escapes text of strangers; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The record's line, without its traceback."""
        return visible(super().formatMessage(record))

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802
        """The traceback, each of its lines made safe."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(visible(line) for line in lines)


def log_to_stderr(level: str) -> None:
    """Log from some level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter(FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def log_nothing() -> None:
    """Log nothing but warnings about the way to the gateway: the timeline says the rest better.

    A user that wants to see everything does.
    """
    if wants_tracebacks():
        log_to_stderr("debug")
        return
    logging.getLogger("meup_agent").addHandler(logging.NullHandler())
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("meup: warning: %(message)s"))
    handler.setLevel(logging.WARNING)
    logging.getLogger("meup_agent.transport").handlers = [handler]
