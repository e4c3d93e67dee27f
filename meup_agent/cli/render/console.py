"""The two streams that a command writes to, with colours or without."""

from __future__ import annotations

import os
from typing import TextIO

from rich.console import Console


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
