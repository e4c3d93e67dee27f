"""Names of participants that people would take for each other (PROTOCOL 3).

A part of Unicode's UTS 39, by the look-alikes that :mod:`~meup_agent.protocol.shown_text` marks:
that module says why no library has the rest. What that table lacks cannot stand among other
letters, since the letters of a name are of one script.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

from meup_agent.protocol.kinds import GATEWAY_NAMES
from meup_agent.protocol.shown_text import look_alike_of, marks_of

_ONE_LOOK: Final = str.maketrans({"I": "l", "1": "l", "|": "l", "0": "o"})

_EAST_ASIAN: Final = frozenset(
    {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "BOPOMOFO"}
)
"""Scripts that are written together, and with Latin letters."""


class NameSet:
    """The names of a space, the gateway's among them."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._by_look: dict[tuple[str, ...], str] = {}
        for name in (*GATEWAY_NAMES, *names):
            self.add(name)

    def add(self, name: str) -> None:
        """Add a name, whatever it looks like."""
        for look in _looks(name):
            self._by_look.setdefault(look, name)

    def problem(self, name: str) -> str:
        """The reason why a new name would deceive; empty: it does not."""
        if _mixes_scripts(name):
            return f"{name!r} has letters of several scripts, which look alike; use those of one"
        found = (self._by_look.get(look) for look in _looks(name))
        other = next((each for each in found if each not in (None, name)), None)
        return "" if other is None else f"{name!r} looks like {other!r}; use another name"


def _looks(name: str) -> tuple[tuple[str, ...], ...]:
    """A name as it is read: with any case, and as it is seen."""
    shown = name
    if not name.isascii():
        marks = zip(name, marks_of(name), strict=True)
        shown = "".join(each for each, mark in marks if mark is None)
        # Before and after: some of the table have a compatible form that looks otherwise.
        shown = _plain(unicodedata.normalize("NFKC", _plain(shown)))
    return ("read", shown.casefold()), ("seen", shown.translate(_ONE_LOOK).casefold())


def _plain(text: str) -> str:
    return "".join(look_alike_of(each) or each for each in text)


def _mixes_scripts(name: str) -> bool:
    if name.isascii():
        return False
    letters = filter(str.isalpha, unicodedata.normalize("NFKC", name))
    scripts = {unicodedata.name(each, "").partition(" ")[0] for each in letters}
    return len(scripts) > 1 and not scripts <= {"LATIN", *_EAST_ASIAN}
