r"""Globs as RE2 (PROTOCOL 7): ``*`` ``**`` ``?`` ``[…]`` ``{a,b}`` and ``\`` before a literal.

A dot that begins a segment must not be met by a wildcard. RE2 cannot look around, so the dot is
given another letter before matching: wildcards do not know that letter, a dot that is written in
the pattern does. Then one regular expression says it all, and nothing is ever expanded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from meup_agent.protocol.regex import compile_fullmatch

MAX_BRACES: Final = 8
"""Levels of ``{…}`` in one another: more than anybody reads, and the parser recurses."""

# Noncharacters: Unicode promises that they never stand for anything in a text.
_HIDDEN: Final = "\ufdd0"  # the dot that begins a segment such as `.git`
_RELATIVE: Final = "\ufdd1"  # each dot of the segments `.` and `..`
_FOREIGN: Final = "\ufdd2"  # either of the two where a value holds it already
_RESERVED: Final = _HIDDEN + _RELATIVE + _FOREIGN

_LEADING_DOTS: Final = re.compile(r"(?:\A|(?<=/))(?:(\.\.?)(?=/|\Z)|\.)")
_WILDCARD: Final = re.compile(r"[*?]|\[.+\]", re.DOTALL)

_IN_SEGMENT: Final = rf"[^/{_HIDDEN}{_RELATIVE}]"
_ANYWHERE: Final = rf"[^{_HIDDEN}{_RELATIVE}]"
_DOT: Final = rf"[.{_HIDDEN}{_RELATIVE}]"


def is_glob(pattern: str) -> bool:
    """Whether a pattern has a wildcard; braces alone make none (PROTOCOL 7)."""
    return _WILDCARD.search(pattern) is not None


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether a whole text matches the glob.

    Raises:
        ValueError: A bracket or brace is not closed, or the glob is too large.
    """
    if any(letter in pattern for letter in _RESERVED):
        raise ValueError("it holds one of the characters U+FDD0 to U+FDD2, which are no text")
    match = compile_fullmatch(_Parser(pattern).whole())
    return lambda text: match(_mark(text))


def _mark(text: str) -> str:
    if not text.isascii():
        text = text.replace(_HIDDEN, _FOREIGN).replace(_RELATIVE, _FOREIGN)
    if text.startswith(".") or "/." in text:
        text = _LEADING_DOTS.sub(lambda dots: _RELATIVE * len(dots[1] or "") or _HIDDEN, text)
    return text


class _Parser:
    """Recursive descent from a glob to the text of a regular expression."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        # Whether a star, which may stand for nothing, came before in this segment: then a dot
        # that is written does not begin the segment, and `*.txt` does not match `.txt`. After
        # braces: in any of their alternatives, since too little is safer than too much.
        self._after_star = False

    def whole(self) -> str:
        return self._sequence()

    def _sequence(self) -> str:
        """Up to the end, or, in braces, up to the comma or brace that ends the alternative."""
        start = self._at
        parts: list[str] = []
        while not self._ends(self._at):
            first = self._at == start or self._pattern[self._at - 1] == "/"
            match self._pattern[self._at]:
                case "*":
                    parts.append(self._stars(first))
                case "/" if not self._depth and self._at > start and self._tail_of_any():
                    parts.append(f"(?:/{_ANYWHERE}*)?")
                case "?":
                    self._at += 1
                    parts.append(_IN_SEGMENT)
                case "[":
                    parts.append(self._class())
                case "{":
                    parts.append(self._braces())
                case _:
                    parts.append(self._literal())
        return "".join(parts)

    def _ends(self, at: int) -> bool:
        return at >= len(self._pattern) or (self._depth > 0 and self._pattern[at] in ",}")

    def _segment_ends(self, at: int) -> bool:
        return self._ends(at) or self._pattern[at] == "/"

    def _stars(self, first: bool) -> str:
        """A run of stars; only ``**`` that is a whole segment crosses slashes."""
        start = self._at
        while self._pattern.startswith("*", self._at):
            self._at += 1
        whole = first and self._segment_ends(self._at)
        if not (whole and self._at - start == 2):
            self._after_star = True
            return f"{_IN_SEGMENT}+" if whole else f"{_IN_SEGMENT}*"
        while self._pattern.startswith("/**", self._at) and self._segment_ends(self._at + 3):
            self._at += 3
        if self._ends(self._at):
            self._after_star = True
            return f"{_ANYWHERE}+" if start == 0 or self._depth else f"{_ANYWHERE}*"
        self._at += 1
        return f"(?:{_ANYWHERE}*/)?"

    def _tail_of_any(self) -> bool:
        """Consumes ``/**`` (and ``/**/**``) at the end, where the slash may be missing too."""
        at = self._at
        while self._pattern.startswith("/**", at):
            at += 3
        if at == self._at or not self._ends(at):
            return False
        self._at = at
        return True

    def _literal(self) -> str:
        at = self._at
        if self._pattern[at] == "\\":
            at += 1
            if at == len(self._pattern):
                raise ValueError("a backslash at the end takes nothing literally")
        self._at = at + 1
        letter = self._pattern[at]
        if letter == "." and not self._after_star:
            return _DOT
        self._after_star = self._after_star and letter != "/"
        return _quoted(ord(letter))

    def _braces(self) -> str:
        opened = self._at
        if self._depth == MAX_BRACES:
            raise ValueError(f"more than {MAX_BRACES} braces stand in one another")
        self._depth += 1
        before, after = self._after_star, False
        alternatives: list[str] = []
        while self._at == opened or self._pattern[self._at] == ",":
            self._at += 1
            self._after_star = before
            alternatives.append(self._sequence())
            after = after or self._after_star
            if self._at == len(self._pattern):
                raise ValueError(
                    f"the brace at position {opened} is not closed; write \\{{ for one"
                )
        self._at += 1
        self._depth -= 1
        self._after_star = after
        # Braces around a single alternative are meant as they stand, as in every shell.
        left, right = ("(?:", ")") if len(alternatives) > 1 else (r"\{", r"\}")
        return left + "|".join(alternatives) + right

    def _class(self) -> str:
        opened = self._at
        self._at += 1
        negated = self._pattern.startswith(("!", "^"), self._at)
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while not (self._pattern.startswith("]", self._at) and ranges):
            low = high = self._member(opened)
            if self._pattern.startswith("-", self._at) and self._pattern[self._at + 1 :][:1] != "]":
                self._at += 1
                high = self._member(opened)
            if low > high:
                raise ValueError(f"the range from {chr(low)!r} to {chr(high)!r} is empty")
            ranges.append((low, high))
        self._at += 1
        never = sorted(map(ord, ("/", _HIDDEN, _RELATIVE)))
        if negated:
            return f"[^{_joined([*ranges, *((code, code) for code in never)])}]"
        for code in never:
            ranges = [part for low, high in ranges for part in _without(low, high, code)]
        if not ranges:
            raise ValueError(f"the class at position {opened} can never match")
        return f"[{_joined(ranges)}]"

    def _member(self, opened: int) -> int:
        if self._pattern.startswith("\\", self._at):
            self._at += 1
        if self._at >= len(self._pattern):
            raise ValueError(f"the bracket at position {opened} is not closed; write \\[ for one")
        self._at += 1
        return ord(self._pattern[self._at - 1])


def _quoted(code: int) -> str:
    return rf"\x{{{code:X}}}"


def _joined(ranges: list[tuple[int, int]]) -> str:
    return "".join(f"{_quoted(low)}-{_quoted(high)}" for low, high in ranges)


def _without(low: int, high: int, code: int) -> list[tuple[int, int]]:
    if not low <= code <= high:
        return [(low, high)]
    return [(first, last) for first, last in ((low, code - 1), (code + 1, high)) if first <= last]
