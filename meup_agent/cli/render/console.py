"""Consoles for the two standard streams, with colours or without; and short lines on the second."""

from __future__ import annotations

import os
import sys
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from meup_agent.cli.render.escape import visible

MAX_NOTE: Final = 2_000
"""Characters of a note; it may quote what a stranger sent."""


def wants_colour(*, colour: bool = True) -> bool:
    """Tell whether output may be styled: neither ``--no-color`` nor ``NO_COLOR`` forbids it."""
    return colour and not os.environ.get("NO_COLOR")


def console(file: TextIO, *, colour: bool) -> Console:
    """A console that takes nothing in a text for markup.

    Args:
        file: Standard output or standard error.
        colour: ``False``: no escape sequence for a style, also on a terminal.
    """
    # rich's own no_color leaves bold, dim and italic; without a colour system nothing is styled.
    return Console(
        file=file,
        highlight=False,
        markup=False,
        emoji=False,
        color_system="auto" if wants_colour(colour=colour) else None,
    )


class Stderr:
    """Standard error: what a command says beside its result.

    Args:
        colour: ``False``: none, also on a terminal.

    Attributes:
        console: Its console; lines go above what is being redrawn there.
    """

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
