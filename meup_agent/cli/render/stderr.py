"""What a command says beside its result: short lines on standard error, safe for a terminal."""

from __future__ import annotations

import sys
from typing import Final

from rich.text import Text

from meup_agent.cli.render.console import console
from meup_agent.cli.render.escape import visible

MAX_NOTE: Final = 2_000
"""Characters of a note; it may quote what a stranger sent."""


class Stderr:
    """Standard error.

    Args:
        colour: ``False``: none, also on a terminal.

    Attributes:
        console: For whatever is shown there besides; lines go above what is being redrawn.
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
        """Write a question, after which the answer is typed."""
        self.console.print(Text(question), end="", soft_wrap=True)
