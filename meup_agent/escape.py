"""Text of strangers, made safe to print.

A space is full of text that others wrote, and a terminal obeys what is printed to it: control
characters move the cursor, ANSI sequences recolour or retitle it, bidirectional overrides and
invisible characters make a line read as something else, and a line end forges a line of ours. So
everything that a stranger wrote goes through :func:`visible` before it is printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, cast

from meup_agent.protocol.wire.shown_text import printed

ELLIPSIS: Final = "…"

_PLAIN_NAME: Final = re.compile(r"[\w.$/:@-]+")


def visible(text: str, limit: int | None = None) -> str:
    r"""A text on one line, cut to a limit, with what does not print as itself escaped."""
    shown = printed(text if limit is None else text[: limit + 1])
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1] + ELLIPSIS


def visible_name(name: str, limit: int) -> str:
    """A name within a call, as :func:`visible`; in quotation marks where it may end early.

    An argument named ``path="a.txt", x`` reads as two.
    """
    cut = name[: limit + 1]
    plain = _PLAIN_NAME.fullmatch(cut) is not None
    return visible(cut if plain else json.dumps(cut, ensure_ascii=False), limit)


def compact(value: Any, limit: int) -> str:
    """A JSON value on one line, safe to print; no more of it is formatted than is shown."""
    return visible("".join(_up_to(limit, _pieces(value, limit))), limit)


def arguments(values: dict[str, Any], limit: int) -> str:
    """Arguments of a call as they would stand in Python: ``path="a.txt", force=true``."""

    def pieces() -> Iterator[str]:
        for position, (name, value) in enumerate(values.items()):
            yield f"{', ' if position else ''}{visible_name(name, limit)}="
            yield from _pieces(value, limit)

    return visible("".join(_up_to(limit, pieces())), limit)


def as_json_line(value: Any) -> str:
    """A JSON value on one line, in ASCII: safe for a terminal too."""
    return json.dumps(value).replace("\x7f", "\\u007f") + "\n"


def _up_to(limit: int, pieces: Iterator[str]) -> Iterator[str]:
    """Pieces of text until there are more characters than are shown."""
    room = limit
    for piece in pieces:
        yield piece
        room -= len(piece)
        if room < 0:
            return


def _pieces(value: Any, limit: int) -> Iterator[str]:
    match value:
        case str():
            # A text may have megabytes; one that is cut here is longer than the limit.
            yield json.dumps(value[: limit + 1], ensure_ascii=False)
        case dict():
            yield "{"
            members = cast("dict[str, object]", value)
            for position, (name, item) in enumerate(members.items()):
                yield f"{', ' if position else ''}{visible_name(name, limit)}: "
                yield from _pieces(item, limit)
            yield "}"
        case list():
            yield "["
            items = cast("list[object]", value)
            for position, item in enumerate(items):
                yield ", " if position else ""
                yield from _pieces(item, limit)
            yield "]"
        case _:
            yield json.dumps(value)
