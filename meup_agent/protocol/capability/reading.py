"""Readings of a pattern (PROTOCOL 7), narrow or wide, and the bound on a check's cost.

A pattern that grants must not take more than its author saw, and one that refuses must not take
less. The wide reading takes whatever a person would say that the pattern names: in it letters have
no case, a wildcard takes any text, and a path is the one that its steps lead to. So the narrow
reading of a pattern takes nothing that its wide one leaves.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from enum import Enum
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, Final, TypeVar, cast

from meup_agent.protocol.wire.shown_text import BLANK

# --- readings of a pattern (PROTOCOL 7) ---

# A step of a pattern that may be several: `..` behind it leads nobody knows where.
_SEVERAL: Final = re.compile(r"[*?[\]{}\\]")

# Where a path begins. `..` leads nowhere from there: resolvers keep a drive, and the host of a URL,
# which browsers find behind any number of slashes.
_ROOT: Final = re.compile(
    r"/|[a-z]:/|file:(?://[^/]*)?/(?:[a-z]:/)?|(?:https?|wss?|ftp):/+[^/]+"
    r"|[a-z][a-z0-9+.-]+:(?://[^/]*|/)",
    re.IGNORECASE,
)

# Of what a reader does not see one letter is a space, and the others are nothing.
_BRAILLE_BLANK: Final = "\u2800"
_UNSEEN: Final = re.compile(f"[{''.join(sorted(BLANK - {_BRAILLE_BLANK}))}]")

# In a host, clients take it for a dot.
_FULL_STOP: Final = "\u3002"


_LONG_ROW: Final = 64
"""Combining marks in a row that are sorted here: unicodedata takes the square of their number."""


class Reading(Enum):
    """A reading of a pattern."""

    NARROW = "narrow"
    WIDE = "wide"

    @property
    def opposite(self) -> Reading:
        """The reading of what stands behind a ``!``."""
        return Reading.WIDE if self is Reading.NARROW else Reading.NARROW


def fold_text(text: str) -> str:
    """The plain form of a text: two spellings that a reader takes for the same have the same.

    Cases, widths and compositions of letters become one, as do blanks of any number and kind;
    invisible characters go; a backslash is a slash; a path has no ``.``, no empty step, and no
    ``..`` behind a name or at its root.
    """
    return fold_path(_fold_letters(decompose(text)))


def plain_forms(decomposed: str) -> tuple[str, ...]:
    """The plain form of a decomposed text, and the one for systems without drives and URLs.

    There ``x:`` is a name as any other, and ``x:/../a`` leads to ``a``.
    """
    letters = _fold_letters(decomposed)
    plain = fold_path(letters)
    if "/.." not in letters or letters[:1] == "/" or _ROOT.match(letters) is None:
        return (plain,)
    other = _fold_steps(letters, "")
    return (plain,) if other == plain else (plain, other)


def _fold_letters(text: str) -> str:
    text = _fold_each(text)
    if not text.isprintable() or "  " in text or text[:1] == " " or text[-1:] == " ":
        text = " ".join(text.split())
        if not text.isprintable():
            text = "".join(filter(str.isprintable, text))
    return text


def _fold_each(text: str) -> str:
    """A decomposed text in small letters, of which each is folded whatever stands beside it."""
    if not text.isascii():
        text = text.replace(_BRAILLE_BLANK, " ").replace(_FULL_STOP, ".")
        text = _UNSEEN.sub("", text)
    return text.casefold().replace("\\", "/")


def count_long_rows(text: str) -> int:
    """Count the letters in long rows of combining marks, which take more time than others."""
    return 0 if text.isascii() else sum(map(len, _long_rows().findall(text)))


def decompose(text: str) -> str:
    """The NFKD of a text, in time that is nearly linear, also of marks alone."""
    if text.isascii():
        return text
    parts: list[str] = []
    for number, piece in enumerate(_long_rows().split(text)):
        if number % 2 == 0:
            parts.append(unicodedata.normalize("NFKD", piece))
            continue
        letters = "".join([unicodedata.normalize("NFKD", letter) for letter in piece])
        for are_marks, row in groupby(letters, key=_is_mark):
            some = list(row)
            parts += sorted(some, key=unicodedata.combining) if are_marks else some
    return "".join(parts)


@cache
def _long_rows() -> re.Pattern[str]:
    """Long rows of marks, each with the letter before it, whose own marks are sorted with them."""
    letters = map(chr, range(0x300, 0x10000))
    marks = [each for each in letters if _is_mark(unicodedata.normalize("NFKD", each)[0])]
    # Of the letters behind them none is told apart, by which a search takes a tenth of the time.
    return re.compile(f"(.[{''.join(marks)}\U00010000-\U0001ffff]{{{_LONG_ROW},}})", re.DOTALL)


def _is_mark(letter: str) -> bool:
    return unicodedata.combining(letter) != 0


@lru_cache(maxsize=4_096)
def fold_letter(letter: str) -> str:
    plain = _fold_each(unicodedata.normalize("NFKD", letter))
    return "".join(filter(str.isprintable, plain))


def fold_path(path: str, *, pattern: bool = False) -> str:
    """A path without ``.``, empty steps, and ``..`` behind a name or at its root.

    Args:
        path: The path.
        pattern: The path is a pattern, in which a step with a wildcard may be several.
    """
    if not (path[:1] == "." or path[-1:] == "/" or "//" in path or "/." in path):
        return path
    root = _ROOT.match(path)
    return _fold_steps(path, "" if root is None else root[0], pattern=pattern)


def _fold_steps(path: str, root: str, *, pattern: bool = False) -> str:
    kept = [step for step in root.split("/") if step]
    steps: list[str] = []
    for step in path[len(root) :].split("/"):
        if step in ("", "."):
            continue
        if step != "..":
            steps.append(step)
        elif steps and steps[-1] != ".." and not (pattern and _SEVERAL.search(steps[-1])):
            steps.pop()
        elif not root or steps:
            steps.append(step)
    return ("/" if root == "/" else "") + "/".join(kept + steps)


# --- work ---
# Bound on the cost of one check, for any pattern and any value (PROTOCOL 7).
#
# Each pattern alone takes time linear in the value, but a stranger may have written a thousand of
# them, and the value too. So work is counted while it is done, in units of about 10 ns, and a
# check that costs too much ends with *no*: nothing is allowed that was not found to be allowed.

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
