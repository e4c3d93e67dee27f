"""Bound on the cost of one check, for any pattern and any value (PROTOCOL 7).

Each pattern alone takes time linear in the value, but a stranger may have written a thousand of
them, and the value too. So work is counted while it is done, in units of about 10 ns, and a check
that costs too much ends with *no*: nothing is allowed that was not found to be allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from meup_agent.protocol.capability.reading import (
    count_long_rows,
    decompose,
    plain_forms,
)

V = TypeVar("V")

MAX_WORK: Final = 2_000_000
"""Units of one check, of a value of 100 KB and less: some 20 ms."""

WORK_PER_BYTE: Final = 20
"""Units for each byte of a larger value. A glob or regular expression takes one of each byte in
most cases, and as many as it has steps in the worst."""

NODE_WORK: Final = 20
"""Units for visiting one value inside another, and for holding one part of a pattern against it."""

CALL_WORK: Final = 200
"""Units for handing a text to RE2."""

FOLD_WORK: Final = 10
"""Units for each character outside ASCII of a text whose plain form is made; others take one.

A letter may become 18; those of which it becomes more than three, as a syllable of Hangul does,
take as much again."""

ROW_WORK: Final = 50
"""Units for each letter in a long row of combining marks, which are sorted."""

STEP_WORK: Final = 30
"""Units for each step of a path whose plain form is made."""


class Exhausted(Exception):
    """A check costs more than it may."""


class WorkBudget:
    """The work that one check may still do; the value's size is looked at only if it matters."""

    __slots__ = ("_forms", "_left", "_members", "_value")

    def __init__(self, value: object) -> None:
        self._left = MAX_WORK
        self._value: object | None = value
        self._forms: dict[str, tuple[str, ...]] | None = None
        self._members: dict[int, dict[str, list[object]]] = {}

    def spend(self, units: int) -> None:
        """Take some units; Exhausted if there are not so many left."""
        self._left -= units
        if self._left < 0:
            self._extend()

    def forms(self, text: str) -> tuple[str, ...]:
        """A text in small letters, and in its plain forms where they are others.

        They are made once, however many patterns look at them.
        """
        if self._forms is None:
            self._forms = {}
        forms = self._forms.get(text)
        if forms is None:
            steps = text.count("/") + text.count("\\")
            self.spend(len(text) * (1 if text.isascii() else FOLD_WORK) + STEP_WORK * steps)
            self.spend(ROW_WORK * count_long_rows(text))
            decomposed = decompose(text)
            self.spend(FOLD_WORK * max(0, len(decomposed) - 3 * len(text)))
            small, plain = text.casefold(), plain_forms(decomposed)
            forms = self._forms[text] = (small,) if plain == (small,) else (small, *plain)
        return forms

    def plain_forms(self, text: str) -> tuple[str, ...]:
        """A text in its plain forms."""
        forms = self.forms(text)
        return forms[1:] or forms

    def members(self, value: dict[str, Any]) -> dict[str, list[object]]:
        """The members of an object that is being checked, by the plain form of their names."""
        members = self._members.get(id(value))
        if members is None:
            self.spend(NODE_WORK * len(value))
            members = self._members[id(value)] = {}
            for name, member in value.items():
                members.setdefault(self.plain_forms(name)[0], []).append(member)
        return members

    def _extend(self) -> None:
        """Go on once if the value is so large that it may cost more."""
        value, self._value = self._value, None
        if value is not None:
            self._left += max(0, WORK_PER_BYTE * _size(value) - MAX_WORK)
        if self._left < 0:
            raise Exhausted


def bounded(match: Callable[[V, WorkBudget], bool]) -> Callable[[V], bool]:
    """A match function with a budget for each value; what takes more does not match."""

    def matches(value: V) -> bool:
        try:
            return match(value, WorkBudget(value))
        except Exhausted:
            return False

    return matches


def _size(value: object) -> int:
    """About the bytes that a value takes as JSON; never more."""
    size = 0
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, dict):
            members = cast("dict[str, Any]", each)
            size += sum(map(len, members))
            waiting.extend(members.values())
        elif isinstance(each, list):
            waiting.extend(cast("list[object]", each))
        size += 2
    return size
