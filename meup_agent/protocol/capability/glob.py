r"""Globs as RE2 (PROTOCOL 7): ``*`` ``**`` ``?`` ``[…]`` ``{a,b}`` and ``\`` before a literal.

A dot that begins a segment must not be met by a wildcard. RE2 cannot look around, so the dot is
given another letter before matching: wildcards do not know that letter, a dot that is written in
the pattern does. Then one regular expression says it all, and nothing is ever expanded.
``wcmatch`` (12.0.1) writes look-aheads, so its expressions are for ``re``, whose time has no bound.

What a match may cost is known from the glob. RE2 builds states as it meets them and then walks
through them, byte by byte; only where many sets of places in the pattern are possible at once does
it go through all its steps at every byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from meup_agent.protocol.capability.work import CALL_WORK, NODE_WORK, WorkBudget
from meup_agent.protocol.regex import Program, compile_fullmatch

StringMatch = Callable[[str, WorkBudget], bool]
"""Match function of a glob, which spends work from the budget."""

MAX_BRACES: Final = 8
"""Levels of ``{…}`` in one another: more than a person reads, and the parser recurses."""

# Noncharacters: Unicode promises that they never stand for anything in a text.
_HIDDEN: Final = "\ufdd0"  # the dot that begins a segment such as `.git`
_RELATIVE: Final = "\ufdd1"  # each dot of the segments `.` and `..`
_FOREIGN: Final = "\ufdd2"  # either of the two where a value holds it already
_RESERVED: Final = _HIDDEN + _RELATIVE + _FOREIGN

_LEADING_DOTS: Final = re.compile(r"(?:\A|(?<=/))(?:(\.\.?)(?=/|\Z)|\.)")
_HEAD: Final = re.compile(r"[^*?[{}\\]*")
_ONE_STAR: Final = re.compile(r"((?:[^*?[{}\\]*/)?)((?:[^*?[{}\\/.][^*?[{}\\/]*)?)\*([^*?[{}\\/]*)")
_TREE: Final = re.compile(r"([^*?[{}\\]+)/\*\*")
_CHOICES: Final = frozenset("?[{}")
_WILDCARD: Final = re.compile(r"[*?]|\[.+\]", re.DOTALL)

_IN_SEGMENT: Final = rf"[^/{_HIDDEN}{_RELATIVE}]"
_ANYWHERE: Final = rf"[^{_HIDDEN}{_RELATIVE}]"
_DOT: Final = rf"[.{_HIDDEN}{_RELATIVE}]"


def is_glob(pattern: str) -> bool:
    """True if a pattern has a wildcard; braces alone make none (PROTOCOL 7)."""
    return _WILDCARD.search(pattern) is not None


def compile_glob(pattern: str) -> tuple[StringMatch, int]:
    """The test for a whole text, and the steps of its program; ValueError if there is none."""
    if any(letter in pattern for letter in _RESERVED):
        raise ValueError("it holds one of the characters U+FDD0 to U+FDD2, which are no text")
    if (one := _ONE_STAR.fullmatch(pattern)) is not None:
        return _one_star(one), 1
    if (tree := _TREE.fullmatch(pattern)) is not None:
        return _tree(tree[1]), 1
    program = compile_fullmatch(_Parser(pattern).whole())
    return _runs(program, _most_states(pattern)), program.steps


def head(pattern: str) -> str:
    """Return the text with which every match of a glob begins."""
    found = _HEAD.match(pattern)
    return "" if found is None else found[0].rstrip("/")


# Two forms that most globs have, for a tenth of the time that RE2 takes.


def _one_star(form: re.Match[str]) -> StringMatch:
    """One star with letters around it: ``read_*``, ``*.txt``, ``/public/*``."""
    path, begun, tail = form.groups()
    start = path + begun
    from_star = len(start)
    shortest = from_star + (len(tail) or not begun)

    def match(text: str, work: WorkBudget) -> bool:
        return (
            text.startswith(start)
            and text.endswith(tail)
            and len(text) >= shortest
            and text.find("/", from_star) < 0
            and (begun != "" or text[from_star] != ".")
        )

    return match


def _tree(root: str) -> StringMatch:
    """``/public/**``, everything below and the directory itself."""
    start, from_slash = f"{root}/", len(root)

    def match(text: str, work: WorkBudget) -> bool:
        if not text.startswith(start):
            return text == root
        work.spend(len(text))
        return text.find("/.", from_slash) < 0

    return match


def _runs(program: Program, states: int | None) -> StringMatch:
    matches, steps = program

    def match(text: str, work: WorkBudget) -> bool:
        marked = _mark(text).encode()
        size = len(marked)
        built = size if states is None else min(size, states)
        # Marking a dot takes a call of ours.
        work.spend(CALL_WORK + NODE_WORK * text.count("/.") + size + steps * built)
        return matches(marked)

    return match


def _most_states(pattern: str) -> int | None:
    """Count the states that a glob can need; ``None`` if they may be too many to be kept.

    Before the first star a text has one place for each letter. After it, where only letters follow,
    a set of places is told by the last star that was reached and the letters since; where a choice
    follows, or ``**`` begins several segments with stars anew, any set of places may occur.
    """
    tail = pattern.partition("*")[2]
    starred = [segment for segment in pattern.split("/") if "*" in segment]
    in_segment = len([segment for segment in starred if segment != "**"])
    if not _CHOICES.isdisjoint(tail) or (in_segment > 1 and in_segment < len(starred)):
        return None
    return 4 * len(pattern) * (1 + tail.count("*"))


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
        """Consume ``/**`` (and ``/**/**``) at the end, where the slash may be missing too."""
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
