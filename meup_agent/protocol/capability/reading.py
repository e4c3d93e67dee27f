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
    return fold_path(_fold_letters(text))


def plain_forms(text: str) -> tuple[str, ...]:
    """The plain form of a text, and the one that it has for systems without drives and URLs.

    There ``x:`` is a name as any other, and ``x:/../a`` leads to ``a``.
    """
    letters = _fold_letters(text)
    plain = fold_path(letters)
    if "/.." not in letters or letters[:1] == "/" or _ROOT.match(letters) is None:
        return (plain,)
    other = _fold_steps(letters, "")
    return (plain,) if other == plain else (plain, other)


def _fold_letters(text: str) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text).replace(_BRAILLE_BLANK, " ")
        text = _UNSEEN.sub("", text)
    text = text.casefold().replace("\\", "/")
    if not text.isprintable() or "  " in text or text[:1] == " " or text[-1:] == " ":
        text = " ".join(text.split())
        if not text.isprintable():
            text = "".join(filter(str.isprintable, text))
    return text


def fold_letter(letter: str) -> str:
    """The plain form of one letter of a pattern."""
    if letter.isascii():
        return "/" if letter == "\\" else letter.lower()
    plain = unicodedata.normalize("NFKD", letter).replace(_BRAILLE_BLANK, " ").casefold()
    return "".join(filter(str.isprintable, _UNSEEN.sub("", plain)))


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
