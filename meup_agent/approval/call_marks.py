"""Marks of a call: characters in it that hide or deceive, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meup_agent.protocol import payloads
from meup_agent.protocol.shown_text import remarks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meup_agent.protocol.payloads import Call

MAX_MARKED_CHARS: Final = 20_000
"""Characters of a call that are looked through for look-alikes, a value as one more; a longer one
is called long."""


def marked_in(call: Call) -> Iterator[str]:
    """Characters of a call that hide or deceive, in words."""
    if call.target is not None:
        yield from (f"its target has {each}" for each in remarks(call.target, is_name=True))
    yield from (f"its tool has {each}" for each in remarks(call.name, is_name=True))
    found: dict[str, None] = {}
    left = MAX_MARKED_CHARS
    for name, text in _texts(payloads.without_meta(call.params)):
        for each in remarks(name[: max(left, 0)], is_name=True):
            found.setdefault(f"the name of an argument has {each}")
        left -= len(name)
        for each in remarks(_without_line_ends(text[: max(left, 0)])):
            found.setdefault(f"its arguments have {each}")
        # A value without characters counts, too: a list may have millions of them.
        left -= len(text) + 1
        if left < 0:
            break
    yield from found
    if left < 0:
        yield "it is long"


def _without_line_ends(text: str) -> str:
    # Lines and columns are shown as such.
    return text.replace("\r\n", "\n").replace("\n", " ").replace("\t", " ")


def _texts(value: object) -> Iterator[tuple[str, str]]:
    """Every text in a JSON value, with the name that it has in its object, while it is read."""
    pending: list[Iterator[tuple[str, object]]] = [iter([("", value)])]
    while pending:
        found = next(pending[-1], None)
        if found is None:
            pending.pop()
            continue
        name, each = found
        yield name, each if isinstance(each, str) else ""
        if isinstance(each, dict):
            members: dict[str, object] = each  # pyright: ignore[reportUnknownVariableType]
            pending.append(iter(members.items()))
        elif isinstance(each, list):
            items: list[object] = each  # pyright: ignore[reportUnknownVariableType]
            # Its name was looked at with the list.
            pending.append(("", item) for item in items)
