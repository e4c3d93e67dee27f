"""Readings of a pattern (PROTOCOL 7): what lets through is read narrowly, what holds back widely.

A pattern that grants must not take more than its author saw, and one that refuses must not take
less. The wide reading takes whatever a person would say that the pattern names: in it letters have
no case, a wildcard takes any text, and a path is the one that its steps lead to. So the narrow
reading of a pattern takes nothing that its wide one leaves.
"""

from __future__ import annotations

import re
import unicodedata
from enum import Enum
from functools import cache
from itertools import groupby
from typing import Final

from meup_agent.protocol.shown_text import BLANK

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


def fold_letter(letter: str) -> str:
    """The plain form of one letter of a pattern."""
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
