"""Patterns for any JSON value, for its strings, and paths into one (PROTOCOL 7).

A reading is how a value is taken, with a share of work; one pattern covers another where it takes
all that the other takes.

In the wide reading a wildcard alone takes all that is not empty, a pattern takes an array, too,
where it takes one of its elements, or its texts with blanks between, a negated one takes whatever
is not text, and a key takes each member whose name has its plain form. The patterns of arguments
differ in two ways (:class:`ArgumentCompiler`).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache, lru_cache, partial
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar, cast

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.wire.envelope import (
    FrozenStruct,
    Program,
    compile_program,
    is_list,
    is_object,
)
from meup_agent.protocol.wire.kinds import KINDS, canonical
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

    __hash__ = object.__hash__  # that of an enum is a call in Python

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
        elif is_object(each):
            size += sum(map(len, each))
            waiting += each.values()
        elif is_list(each):
            waiting += each
        size += 2
    return size


# --- globs as RE2 (PROTOCOL 7) ---
# `*` `**` `?` `[…]` `{a,b}` and `\` before a literal.
#
# In the narrow reading a wildcard meets no dot that begins a segment, and nothing that would make
# of one text several: a comma, a semicolon, a line end, or, in a pattern without a slash, a blank.
# Nor does it meet a backslash, which parts a path on some systems. RE2 cannot look around, so
# these are given other letters before matching: wildcards do not know those, what is written in
# the pattern does. Then one regular expression says it all, and nothing is ever expanded.
# `wcmatch` (12.0.1) writes look-aheads, so its expressions are for `re`, whose time has no bound.
# In the wide reading a wildcard meets everything, and a text is compared in its plain form, too.
#
# What a match may cost is known from the glob. RE2 builds states as it meets them and then walks
# through them, byte by byte; only where many sets of places in the pattern are possible at once
# does it go through all its steps at every byte.

StringMatch = Callable[[str, WorkBudget], bool]
"""Match function of a glob, which spends work from the budget."""

MAX_BRACES: Final = 8
"""Levels of ``{…}`` in one another: more than a person reads, and the parser recurses."""

MAX_TREES: Final = 3
"""Times that ``**`` stands in a glob whose ways are tried one by one; each doubles them."""

ANY: Final = frozenset({"*", "**"})
"""Globs that are a wildcard and nothing else."""

# Noncharacters: Unicode promises that they never stand for anything in a text.
_HIDDEN: Final = "\ufdd0"  # the dot that begins a segment such as `.git`
_RELATIVE: Final = "\ufdd1"  # each dot of the segments `.` and `..`
_BARRED: Final = "\ufdd2"  # what no wildcard meets, and the pattern does not write
_WRITTEN: Final = range(0xFDD3, 0xFDEF)  # what no wildcard meets, and the pattern writes
_FOREIGN: Final = "\ufdef"  # any of these where a value holds it already
_RESERVED: Final = re.compile(f"[{_HIDDEN}-{_FOREIGN}]")
_MARKS: Final = rf"{_HIDDEN}-\x{{{_WRITTEN.stop - 1:X}}}"

# Controls, line ends, marks of direction, what parts a path elsewhere, and what parts a list; the
# last seven read as , or ;.
_PARTING: Final = (
    r"\\\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069,;"
    "\uff0c\ufe10\ufe50\uff1b\ufe14\ufe54\u037e"
)
_BLANKS: Final = r" \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_PARTS: Final = re.compile(f"[{_PARTING}]")
_PARTS_AND_BLANKS: Final = re.compile(f"[{_PARTING}{_BLANKS}]")

_LEADING_DOTS: Final = re.compile(r"(?:\A|(?<=[/\\]))(?:(\.\.?)(?=[/\\]|\Z)|\.)")
_ONE_STAR: Final = re.compile(r"((?:[^*?[{}\\]*/)?)((?:[^*?[{}\\/.][^*?[{}\\/]*)?)\*([^*?[{}\\/]*)")
_TREE: Final = re.compile(r"([^*?[{}\\]+)/\*\*")
_CHOICES: Final = frozenset("?[{}")
_SPECIAL: Final = _CHOICES | {"\\"}
_STARS: Final = re.compile(r"\*+")
_OPENING: Final = re.compile(r"[*?[{}\\]")
_WILDCARD: Final = re.compile(r"[*?]|\[.+\]", re.DOTALL)
_WHITESPACE: Final = re.compile(r"\s+")


def is_glob(pattern: str) -> bool:
    """True if a pattern has a wildcard; braces alone make none (PROTOCOL 7)."""
    return _WILDCARD.search(pattern) is not None


def compile_glob(pattern: str, reading: Reading = Reading.NARROW) -> tuple[StringMatch, int]:
    """The test for a whole text, and the steps of its program; ValueError if there is none."""
    if _RESERVED.search(pattern) is not None:
        raise ValueError("it holds one of the characters U+FDD0 to U+FDEF, which are not text")
    return _compile_wide(pattern) if reading is Reading.WIDE else _compile_narrow(pattern)


# --- the narrow reading ---


def _compile_narrow(pattern: str) -> tuple[StringMatch, int]:
    barred = None
    if pattern not in ANY:
        barred = _PARTS if "/" in pattern else _PARTS_AND_BLANKS
    if (one := _ONE_STAR.fullmatch(pattern)) is not None:
        return _one_star(one, barred), 1
    if (tree := _TREE.fullmatch(pattern)) is not None:
        return _tree(tree[1]), 1
    parser = _NarrowParser(pattern, barred)
    program = compile_program(parser.sequence())
    runs = run_program(program, _most_states(pattern))
    return _marked(runs, barred, parser.written), program.steps


# Two forms that most globs have, for a tenth of the time that RE2 takes.


def _one_star(form: re.Match[str], barred: re.Pattern[str] | None) -> StringMatch:
    """One star with letters around it: ``read_*``, ``*.txt``, ``/public/*``."""
    path, begun, tail = form.groups()
    # A closure would be eight objects to the garbage collector, and a policy has thousands of them.
    return partial(_takes_star, path + begun, tail, begun == "", barred)


def _takes_star(
    start: str,
    tail: str,
    begins_segment: bool,
    barred: re.Pattern[str] | None,
    text: str,
    work: WorkBudget,
) -> bool:
    from_star = len(start)
    if not (
        text.startswith(start)
        and text.endswith(tail)
        and len(text) >= from_star + (len(tail) or begins_segment)
        and text.find("/", from_star) < 0
        and not (begins_segment and text[from_star] == ".")
    ):
        return False
    if barred is None:
        return True
    work.spend(len(text))
    return barred.search(text, from_star, len(text) - len(tail)) is None


def _tree(root: str) -> StringMatch:
    """``/public/**``, everything below and the directory itself."""
    start, from_slash = f"{root}/", len(root)

    def match(text: str, work: WorkBudget) -> bool:
        if not text.startswith(start):
            return text == root
        work.spend(len(text))
        return text.find("/.", from_slash) < 0 and _PARTS.search(text, from_slash) is None

    return match


def run_program(program: Program, states: int | None) -> StringMatch:
    """The test of a text by a program, which costs its steps for each state that it may build."""
    matches, steps = program

    def match(text: str, work: WorkBudget) -> bool:
        encoded = text.encode()
        size = len(encoded)
        built = size if states is None else min(size, states)
        work.spend(CALL_WORK + size + steps * built)
        return matches(encoded)

    return match


def _marked(
    runs: StringMatch, barred: re.Pattern[str] | None, written: dict[str, str]
) -> StringMatch:
    def match(text: str, work: WorkBudget) -> bool:
        marked = _mark(text)
        if barred is not None:
            work.spend(len(text))
            if barred.search(marked) is not None:
                # Each one takes a call of ours.
                work.spend(NODE_WORK * len(text))
                marked = barred.sub(lambda letter: written.get(letter[0], _BARRED), marked)
        # Marking a dot takes a call, too.
        work.spend(NODE_WORK * (text.count("/.") + text.count("\\.")))
        return runs(marked, work)

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
        text = _RESERVED.sub(_FOREIGN, text)
    if text.startswith(".") or "/." in text or "\\." in text:
        text = _LEADING_DOTS.sub(lambda dots: _RELATIVE * len(dots[1] or "") or _HIDDEN, text)
    return text


# --- the wide reading ---


def plain_glob(pattern: str) -> str:
    """The glob of texts in their plain form, but for its letters, which are still their own."""
    return fold_path(_WHITESPACE.sub(" ", pattern), pattern=True)


def _compile_wide(pattern: str) -> tuple[StringMatch, int]:
    if pattern in ANY:
        return lambda text, work: True, 1
    plain = plain_glob(pattern)
    if _SPECIAL.isdisjoint(pattern) and pattern.count("**") <= MAX_TREES:
        small, folded = pattern.casefold(), "".join(map(fold_letter, plain))
        pieces = _in_pieces(small)
        plainly = pieces if folded == small else _in_pieces(folded)
        searched = sum([len(each) > 2 for each in pieces + plainly])
        return partial(_has_pieces, pieces, plainly, searched), 1
    forms = {_WideParser(pattern).sequence(): None}
    # A backslash may be meant as what parts a path, too.
    for glob in (plain, plain_glob(pattern.replace("\\", "/"))):
        with suppress(ValueError):  # the last slash was a literal one, behind a backslash
            forms[_WideParser(glob, folds=True).sequence()] = None
    program = compile_program(f"(?i)(?:{'|'.join(forms)})")
    states = _most_states(pattern)
    # A set of places in each of the forms.
    runs = run_program(program, None if states is None else states ** len(forms))

    def match(text: str, work: WorkBudget) -> bool:
        return any(runs(each, work) for each in (text, *work.forms(text)[1:]))

    return match, program.steps


_Pieces = tuple[tuple[str, ...], ...]
"""Texts between the stars of a glob, for each way in which it may be meant."""


def _in_pieces(glob: str) -> _Pieces:
    """The pieces of a glob that has no other wildcards than stars, each of which takes anything."""
    ways = [""]
    *steps, last = glob.split("/")
    for step in steps:
        # `**` stands for any number of steps, and for none.
        ways = (
            [*ways, *(f"{way}*/" for way in ways)]
            if step == "**"
            else [f"{way}{step}/" for way in ways]
        )
    whole = [way[:-1] for way in ways if len(way) > 1] if last == "**" else []
    every = dict.fromkeys([*whole, *(way + last for way in ways)])
    return tuple([tuple(_STARS.split(way)) for way in every])


def _has_pieces(small: _Pieces, plain: _Pieces, searched: int, text: str, work: WorkBudget) -> bool:
    """Test a text in small letters, or plain, by a tenth of the time that RE2 takes."""
    forms = work.forms(text)
    work.spend(NODE_WORK + len(text) * searched // 2)
    for pieces in small:
        if _is_in_order(forms[0], pieces):
            return True
    if small is not plain or len(forms) > 1:
        for form in work.plain_forms(text):
            for pieces in plain:
                if _is_in_order(form, pieces):
                    return True
    return False


def _is_in_order(text: str, pieces: tuple[str, ...]) -> bool:
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return text == first
    if not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in pieces[1:-1]:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return at <= end


class _WideParser:
    """Recursive descent from a glob to the text of a regular expression, as it is widely read.

    Args:
        pattern: The glob.
        folds: The expression is one for texts in their plain form.

    Attributes:
        in_segment: A letter that a wildcard within a segment meets.
        anywhere: One that a wildcard across segments meets.
    """

    in_segment = anywhere = "."

    def __init__(self, pattern: str, *, folds: bool = False) -> None:
        self._folds = folds
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        # Whether a star, which may stand for nothing, came before in this segment: then a dot
        # that is written does not begin the segment, and `*.txt` does not match `.txt`. After
        # braces: in any of their alternatives, since too little is safer than too much.
        self._after_star = False

    def _letter(self, letter: str) -> str:
        plain = fold_letter(letter) if self._folds else letter
        # The program ignores case; so most patterns are the same in both forms.
        return "".join(_quoted(ord(each.lower() if each.isascii() else each)) for each in plain)

    def _letters(self, ranges: list[tuple[int, int]], negated: bool, opened: int) -> str:
        # A letter that is not meant may be so in its other case.
        return "." if negated else f"[{_joined(ranges)}]"

    def sequence(self) -> str:
        """Up to the end, or, in braces, up to the comma or brace that ends the alternative."""
        start = self._at
        parts: list[str] = []
        while not self._ends(self._at):
            first = self._at == start or self._pattern[self._at - 1] == "/"
            match self._pattern[self._at]:
                case "*":
                    parts.append(self._stars(first))
                case "/" if not self._depth and self._at > start and self._tail_of_any():
                    parts.append(f"(?:/{self.anywhere}*)?")
                case "?":
                    self._at += 1
                    parts.append(self.in_segment)
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
            return f"{self.in_segment}+" if whole else f"{self.in_segment}*"
        while self._pattern.startswith("/**", self._at) and self._segment_ends(self._at + 3):
            self._at += 3
        if self._ends(self._at):
            self._after_star = True
            return f"{self.anywhere}+" if start == 0 or self._depth else f"{self.anywhere}*"
        self._at += 1
        return f"(?:{self.anywhere}*/)?"

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
        found = self._letter(letter)
        self._after_star = self._after_star and letter != "/"
        return found

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
            alternatives.append(self.sequence())
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
        return self._letters(ranges, negated, opened)

    def _member(self, opened: int) -> int:
        if self._pattern.startswith("\\", self._at):
            self._at += 1
        if self._at >= len(self._pattern):
            raise ValueError(f"the bracket at position {opened} is not closed; write \\[ for one")
        self._at += 1
        return ord(self._pattern[self._at - 1])


class _NarrowParser(_WideParser):
    """The narrow reading, of texts in which dots and what parts a text are marked.

    Attributes:
        written: The marks of what parts a text, where the pattern has it itself.
    """

    in_segment = rf"[^/{_MARKS}]"
    anywhere = rf"[^{_MARKS}]"

    def __init__(self, pattern: str, barred: re.Pattern[str] | None) -> None:
        super().__init__(pattern)
        self._barred = barred
        self.written: dict[str, str] = {}

    def _letter(self, letter: str) -> str:
        if letter == "." and not self._after_star:
            return rf"[.{_HIDDEN}{_RELATIVE}]"
        return _quoted(ord(self._marked(letter)))

    def _letters(self, ranges: list[tuple[int, int]], negated: bool, opened: int) -> str:
        first, last = ord(_HIDDEN), ord(_FOREIGN) - 1
        if negated:
            return f"[^{_joined([*ranges, (ord('/'), ord('/')), (first, last)])}]"
        # A range says no single letter, so nothing in it is taken for written.
        marks = [ord(self._marked(chr(low))) for low, high in ranges if low == high]
        for low, high in ((ord("/"), ord("/")), (first, last)):
            ranges = [part for each in ranges for part in _without(*each, low, high)]
        ranges += [(code, code) for code in marks if first <= code <= last]
        if not ranges:
            raise ValueError(f"the class at position {opened} can never match")
        return f"[{_joined(ranges)}]"

    def _marked(self, letter: str) -> str:
        """The letter, or the mark that stands for it in a text."""
        if self._barred is None or self._barred.fullmatch(letter) is None:
            return letter
        if letter not in self.written:
            if len(self.written) == len(_WRITTEN):
                raise ValueError(
                    f"it has more than {len(_WRITTEN)} different blanks, commas and control"
                    " characters"
                )
            self.written[letter] = chr(_WRITTEN[len(self.written)])
        return self.written[letter]


def _quoted(code: int) -> str:
    return rf"\x{{{code:X}}}"


def _joined(ranges: list[tuple[int, int]]) -> str:
    return "".join(f"{_quoted(low)}-{_quoted(high)}" for low, high in ranges)


def _without(low: int, high: int, first: int, last: int) -> list[tuple[int, int]]:
    """A range without another one."""
    parts = ((low, min(high, first - 1)), (max(low, last + 1), high))
    return [(begin, end) for begin, end in parts if begin <= end]


# --- patterns for one string ---

MAX_PATTERN_CHARS: Final = 1024
"""Characters of one pattern or key: room for a long path; a stranger may have written it."""

MAX_STEPS: Final = 20_000
"""Instructions of all the programs of one participant: compiling takes up to 1 µs for each."""

_SHOWN_CHARS: Final = 60  # of a pattern, in an error message

# A regular expression that only looks for letters, small or large, whatever stands around them.
_WORDS: Final = re.compile(r"(?:\(\?i\))?\^?(?:[^\\^$.|?*+()[\]{}]|\\[^\w]|\|)*\$?")


class Strings:
    """Compiles string patterns, and counts what their programs take together."""

    def __init__(self) -> None:
        self._steps = 0
        self._compiled: dict[tuple[str, str, Reading], StringMatch] = {}

    def compile(self, body: str, place: str, reading: Reading) -> StringMatch:
        """The test for a pattern without its ``!``; InvalidPattern if it does not compile."""
        if is_regex(body):
            return self._program("regular expression", body, place, reading)
        return self.glob(body, place, reading) if is_glob(body) else exact(body, reading)

    def glob(self, pattern: str, place: str, reading: Reading) -> StringMatch:
        """The test for a glob; InvalidPattern if it does not compile, or is one too many."""
        return self._program("glob", pattern, place, reading)

    def kind(self, pattern: str, place: str, reading: Reading = Reading.NARROW) -> StringMatch:
        """The test for a kind, as :func:`compile_kind` describes it."""
        return _negatable(self._kind, pattern, place, reading)

    def text(self, pattern: str, place: str, reading: Reading = Reading.NARROW) -> StringMatch:
        """The test for any text, with or without ``!``."""
        return _negatable(self.compile, pattern, place, reading)

    def _kind(self, body: str, place: str, reading: Reading) -> StringMatch:
        if body == "*":
            return lambda kind, work: True
        match = self.compile(canonical(body), place, reading)
        if not is_glob(body) or is_regex(body) or "." not in body or "/" in body:
            return match
        slashed = self.glob(body.replace(".", "/"), place, reading)
        return lambda kind, work: match(kind, work) or (kind in KINDS and slashed(kind, work))

    def _program(self, what: str, pattern: str, place: str, reading: Reading) -> StringMatch:
        # As a key, `/a*/` is a glob.
        key = (what, pattern, reading)
        known = self._compiled.get(key)
        if known is not None:
            return known
        try:
            match, steps = (
                compile_glob(pattern, reading) if what == "glob" else _search(pattern[1:-1])
            )
        except ValueError as error:
            raise InvalidPattern(
                f"the {what} {shown(pattern)} does not compile: {error}", place=place
            ) from None
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise InvalidPattern(
                f"the patterns take more than {MAX_STEPS} steps together; make them fewer or "
                "shorter",
                place=place,
            )
        self._compiled[key] = match
        return match


def _negatable(
    compile: Callable[[str, str, Reading], StringMatch], pattern: str, place: str, reading: Reading
) -> StringMatch:
    """The test for a pattern with or without ``!``, behind which the other reading holds."""
    body, negated = split_negation(pattern, place)
    match = compile(body, place, reading.opposite if negated else reading)
    return (lambda text, work: not match(text, work)) if negated else match


def exact(body: str, reading: Reading) -> StringMatch:
    """The test for a text that means itself."""
    if reading is Reading.NARROW:
        return lambda text, work: text == body
    folded = fold_text(body)
    return lambda text, work: text == body or folded in work.plain_forms(text)


def compile_kind(
    pattern: str, *, place: str = "kind", reading: Reading = Reading.NARROW
) -> Callable[[str], bool]:
    """A function that tells whether a kind (with slashes) matches; InvalidPattern if there is none.

    Kinds that this package knows may stand in the pattern with dots too, wildcards included:
    ``mcp.*`` means ``mcp/*``. ``*`` alone matches every kind.
    """
    return bounded(Strings().kind(pattern, place, reading))


def split_negation(pattern: str, place: str) -> tuple[str, bool]:
    """A pattern without its ``!``, and whether the outcome is to be negated."""
    check_length(pattern, place)
    body = pattern.lstrip("!")
    # A bare `!` would allow nearly everything, and `//` everything: both are slips of the pen.
    if pattern and body in ("", "//"):
        raise InvalidPattern(
            f"{shown(pattern)} names nothing; write the pattern that is meant", place=place
        )
    return body, (len(pattern) - len(body)) % 2 == 1


def check_length(pattern: str, place: str) -> None:
    """Raise InvalidPattern for a pattern or key that is too long or no valid text."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise InvalidPattern(
            f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are taken",
            place=place,
        )
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise InvalidPattern("the pattern holds a lone surrogate", place=place) from None


def is_exact(body: str) -> bool:
    """True if a pattern without its ``!`` matches only itself."""
    return not is_regex(body) and not is_glob(body)


def literal_head(body: str) -> str:
    """Return the letters before the first wildcard of a pattern; empty for a regular expression."""
    return "" if is_regex(body) else _OPENING.split(body, maxsplit=1)[0]


def begins(body: str) -> str:
    """Return the text with which every match of a pattern without ``!`` begins, where known."""
    return literal_head(body).rstrip("/")


def plain_beginnings(body: str) -> tuple[str, ...]:
    """Beginnings, of which each text that a pattern takes in either reading has one.

    It has it in small letters, or in its plain form. Empty where no beginning is known.
    """
    if is_exact(body):
        return body.casefold(), fold_text(body)
    # The forms in which a glob is read widely.
    plain = {plain_glob(each) for each in {body, body.replace("\\", "/")}}
    folded = ("".join(map(fold_letter, begins(each))) for each in plain)
    heads = tuple(dict.fromkeys([begins(body).casefold(), *folded]))
    return heads if all(heads) else ()


def shown(pattern: str) -> str:
    """A pattern for an error message."""
    return repr(pattern if len(pattern) <= _SHOWN_CHARS else pattern[:_SHOWN_CHARS] + "…")


def _search(expression: str) -> tuple[StringMatch, int]:
    program = compile_program(expression, anywhere=True)
    # For letters alone few states are ever built; for anything else all steps may count each byte.
    states = 4 * len(expression) if _WORDS.fullmatch(expression) else None
    return run_program(program, states), program.steps


def is_regex(body: str) -> bool:
    """True if a pattern without its ``!`` is a regular expression."""
    return len(body) > 2 and body.startswith("/") and body.endswith("/")


# --- paths into a JSON value (PROTOCOL 7) ---
# `$.a`, `$['a']`, `$[0]`, `$.*`, `$..a`, `**`.
#
# Children and descendants, no filters. Each step turns the nodes found so far into the next ones
# and visits no node twice, so each costs time linear in the value; a path may have hundreds of
# steps, so every visit counts.

MAX_PATH_STEPS: Final = 100
"""Steps of one path: each leads one level down, and no frame has more levels."""

_Step = Callable[[Iterator[object], WorkBudget], Iterator[object]]

_STEP: Final = re.compile(
    r"""(?P<deep>\.\.(?=[^.])|(?:\.(?=[^.\[])|(?=\[)))"""
    r"""(?:(?P<every>\*(?=[.\[]|\Z)|\[\*\])|\[(?P<index>0|[1-9][0-9]{0,8})\]"""
    r"""|\[(?:'(?P<single>[^'\\]*)'|"(?P<double>[^"\\]*)")\]|(?P<name>[^.\[\]'"*?()@]+))"""
)


class Path(FrozenStruct):
    """A compiled path."""

    deep: bool  # it looks at everything below some node
    select: Callable[[object, WorkBudget], Iterable[object]]


def is_path(key: str) -> bool:
    """True if a key is a path; ``$ref`` and the like are names."""
    return key in ("$", "**") or key.startswith(("$.", "$["))


def compile_path(key: str, place: str, reading: Reading = Reading.NARROW) -> Path:
    """Compile a path of children and descendants; InvalidPattern for anything else."""
    if key == "**":
        return Path(True, lambda value, work: descendants(value))
    steps: list[_Step] = []
    deep = False
    at = 1
    levels = 0
    while at < len(key):
        levels += 1
        if levels > MAX_PATH_STEPS:
            raise InvalidPattern(f"the path has more than {MAX_PATH_STEPS} steps", place=place)
        step = _STEP.match(key, at)
        if step is None:
            raise InvalidPattern(
                f"the path is not understood at position {at}; it takes .name, ..name, ['name'], "
                "[0] and *",
                place=place,
            )
        at = step.end()
        if step["deep"] == "..":
            deep = True
            steps.append(_with_descendants)
        steps.append(_child_step(step, reading))

    def select(value: object, work: WorkBudget) -> Iterator[object]:
        nodes: Iterator[object] = iter((value,))
        for take in steps:
            nodes = take(nodes, work)
        return nodes

    return Path(deep, select)


def _children(value: object) -> Collection[object]:
    """The values that stand directly in an object or array."""
    if is_object(value):
        return value.values()
    return value if is_list(value) else ()


def descendants(value: object) -> Iterator[object]:
    """Everything below a value, without the value."""
    waiting = [iter(_children(value))]
    while waiting:
        for child in waiting[-1]:
            yield child
            if below := _children(child):
                waiting.append(iter(below))
                break
        else:
            waiting.pop()


def _with_descendants(nodes: Iterator[object], work: WorkBudget) -> Iterator[object]:
    """The objects and arrays among the nodes and below them, each once."""
    # A node may stand below another one: without this, depth would multiply the cost.
    seen: set[int] = set()
    waiting = [nodes]
    while waiting:
        for node in waiting[-1]:
            below = _children(node)
            if below and id(node) not in seen:
                work.spend(NODE_WORK * len(below))
                seen.add(id(node))
                yield node
                waiting.append(iter(below))
                break
        else:
            waiting.pop()


def _child_step(step: re.Match[str], reading: Reading) -> _Step:
    if step["every"]:
        return lambda nodes, work: (
            child for node in nodes for child in _counted(_children(node), work)
        )
    if step["index"]:
        index = int(step["index"])
        return lambda nodes, work: (
            node[index] for node in _counted(nodes, work) if is_list(node) and index < len(node)
        )
    name = next(found for found in step.group("name", "single", "double") if found is not None)
    if reading is Reading.WIDE:
        plain = fold_text(name)
        return lambda nodes, work: (
            member
            for node in _counted(nodes, work)
            if is_object(node)
            for member in work.members(node).get(plain, ())
        )
    return lambda nodes, work: (
        node[name] for node in _counted(nodes, work) if is_object(node) and name in node
    )


def _counted(nodes: Iterable[object], work: WorkBudget) -> Iterator[object]:
    for node in nodes:
        work.spend(NODE_WORK)
        yield node


# --- patterns for any JSON value (PROTOCOL 7) ---

Match = Callable[[object, WorkBudget], bool]
"""Match function of a pattern, which spends work from the budget."""

MAX_NESTING: Final = 32
"""Levels of lists and objects in one pattern: MCP messages have about five, and we recurse."""

MAX_PARTS: Final = 1000
"""Strings, numbers, keys and alternatives in everything that one participant may do: each may be
held against every node of a payload, and compiles to a program of its own."""

_SHOWN_KEY_CHARS: Final = 40  # of a key, in a place
_MISSING: Final = object()
_EMPTY: Final[tuple[object, ...]] = (None, [], {})  # in which no reader would say that there is any


class Pattern(FrozenStruct):
    """A compiled pattern."""

    source: object
    # A check that takes more than it may (:mod:`.work`) says no.
    matches: Callable[[object], bool]


class _Spot(NamedTuple):
    """The place of a node in a pattern.

    Attributes:
        place: Its name, for an error.
        depth: The nodes above it.
        below: It is matched with all below some value.
    """

    place: str
    depth: int = 0
    below: bool = False

    def inner(self, place: str) -> _Spot:
        """The place of a node within it."""
        return _Spot(place, self.depth + 1, self.below)


class DefaultedObject(dict[str, Any]):
    """An object with members that its sender left out, and a schema's defaults gave.

    Attributes:
        filled: The names of those members.
    """

    __slots__ = ("filled",)

    def __init__(self, members: dict[str, Any], filled: Collection[str]) -> None:
        super().__init__(members)
        self.filled = frozenset(filled)


def compile_pattern(pattern: object, *, reading: Reading = Reading.NARROW) -> Pattern:
    """Compile a pattern for a JSON value; InvalidPattern if anything in it does not compile."""
    return Pattern(pattern, bounded(PatternCompiler(reading).compile(pattern, "")))


class PatternCompiler:
    """Compiles patterns and counts their parts; one for everything that shares the limit."""

    def __init__(self, reading: Reading = Reading.NARROW) -> None:
        self.strings = Strings()
        self.reading = reading
        self._parts = 0

    def count(self, place: str) -> None:
        """Take one part more; InvalidPattern if that is one too many."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidPattern(f"there are more than {MAX_PARTS} parts", place=place)

    def compile(self, pattern: object, place: str) -> Match:
        """Compile a pattern; InvalidPattern names what of it does not compile."""
        return self._value(pattern, _Spot(place))

    def compile_text(self, pattern: object, place: str) -> StringMatch:
        """Compile a pattern of what is always a text: no array is tried."""
        if not isinstance(pattern, str):
            return self._node(pattern, _Spot(place))
        self.count(place)
        return self.strings.text(pattern, place, self.reading)

    def _value(self, pattern: object, at: _Spot) -> Match:
        compiled = self._node(pattern, at)
        return compiled if self.reading is Reading.NARROW else _or_element(compiled)

    def again(self, pattern: object) -> Match:
        """Compile, in another arrangement and without limits, what has been compiled before."""
        parts, self._parts = self._parts, 0
        try:
            return self._value(pattern, _Spot("", depth=-MAX_NESTING))
        finally:
            self._parts = parts

    def _node(self, pattern: object, at: _Spot) -> Match:
        self.count(at.place)
        if at.depth > MAX_NESTING:
            raise InvalidPattern(
                f"the pattern nests deeper than {MAX_NESTING} levels", place=at.place
            )
        if isinstance(pattern, str):
            return self._string(pattern, at.place)
        if is_object(pattern):
            return self._object(pattern, at)
        if is_list(pattern):
            return self._list(pattern, at)
        if pattern is None or isinstance(pattern, bool):
            return lambda value, work: value is pattern
        if isinstance(pattern, int) or (isinstance(pattern, float) and math.isfinite(pattern)):
            return lambda value, work: (
                isinstance(value, int | float) and not isinstance(value, bool) and value == pattern
            )
        raise InvalidPattern(f"{type(pattern).__name__} is not a JSON value", place=at.place)

    def _string(self, pattern: str, place: str) -> Match:
        body, negated = split_negation(pattern, place)
        reading = self.reading.opposite if negated else self.reading
        if is_exact(body) and reading is Reading.NARROW and not negated:
            return lambda value, work: value == body
        if body in ANY and reading is Reading.WIDE and not negated:
            return lambda value, work: value not in _EMPTY
        matches = self._text(body, place, reading)
        if not negated:
            return lambda value, work: isinstance(value, str) and matches(value, work)
        if self.reading is Reading.NARROW:
            # Texts only: "!6" must not let the number 6 through.
            return lambda value, work: isinstance(value, str) and not matches(value, work)
        return lambda value, work: not isinstance(value, str) or not matches(value, work)

    def _text(self, body: str, place: str, reading: Reading) -> StringMatch:
        """The test of a text for a pattern without its ``!``."""
        return self.strings.compile(body, place, reading)

    def _list(self, pattern: list[object], at: _Spot) -> Match:
        is_narrow = self.reading is Reading.NARROW
        exact: set[str] = set()
        starred: list[tuple[str, StringMatch]] = []
        others: list[Match] = []
        for index, item in enumerate(pattern):
            compiled = self._node(item, at.inner(f"{at.place}[{index}]"))
            if not isinstance(item, str) or item.startswith("!"):
                others.append(compiled)
            elif is_exact(item):
                exact.add(item if is_narrow else fold_text(item))
            elif is_narrow and (begun := begins(item)):
                starred.append((begun, self._text(item, at.place, self.reading)))
            else:
                others.append(compiled)
        if exact or starred:
            some = frozenset(exact)
            others.insert(0, _any_string(some, starred) if is_narrow else _any_folded(some))
        return _either(others)

    def _object(self, pattern: dict[Any, Any], at: _Spot) -> Match:
        named: list[tuple[str, Match]] = []
        keyed: list[tuple[StringMatch, Match]] = []
        searched: list[Match] = []
        for key, wanted in pattern.items():
            if not isinstance(key, str):
                raise InvalidPattern(
                    f"the key {key!r} is not a string; put quotes around it", place=at.place
                )
            shown = key if len(key) <= _SHOWN_KEY_CHARS else key[:_SHOWN_KEY_CHARS] + "…"
            inner = at.inner(f"{at.place}.{shown}" if at.place else shown)
            check_length(key, inner.place)
            if is_path(key):
                searched.append(self._search(key, wanted, inner))
            elif is_glob(key):
                fits, matches, search = self._members(key, wanted, inner)
                keyed.append((fits, matches))
                searched.append(search)
            else:
                named.append((key, self._value(wanted, inner)))

        is_narrow = self.reading is Reading.NARROW
        if not is_narrow:
            named = [(fold_text(key), matches) for key, matches in named]

        def match(value: object, work: WorkBudget) -> bool:
            if not is_object(value):
                return False
            for key, matches in named:
                if is_narrow:
                    member = value.get(key, _MISSING)
                    if member is _MISSING or not matches(member, work):
                        return False
                elif not _any(matches, work.members(value).get(key, ()), work, NODE_WORK):
                    return False
            for matches in searched:  # noqa: SIM110 - half the time of all() with a generator
                if not matches(value, work):
                    return False
            return True

        names = frozenset(key for key, _ in named)
        return self._closed(match, names, keyed) if pattern else match

    def _closed(
        self, match: Match, names: frozenset[str], keyed: list[tuple[StringMatch, Match]]
    ) -> Match:
        """The match of an object, as far as its other members are free."""
        return match

    def _members(self, key: str, wanted: object, at: _Spot) -> tuple[StringMatch, Match, Match]:
        """The tests of a name and of a value, and that of an object for a member with both."""
        matches, cost = self._costed(self._value, wanted, at)
        fits = self.strings.glob(key, at.place, self.reading)

        def search(value: object, work: WorkBudget) -> bool:
            for name, member in cast("dict[str, object]", value).items():
                work.spend(cost)
                if fits(name, work) and matches(member, work):
                    return True
            return False

        return fits, matches, search

    def _search(self, key: str, wanted: object, at: _Spot) -> Match:
        """The test of an object for a value anywhere below it, or on a path."""
        path = compile_path(key, at.place, self.reading)
        compile = self._deep if path.deep else self._value
        matches, cost = self._costed(compile, wanted, at)
        return lambda value, work: _any(matches, path.select(value, work), work, cost)

    def _costed(
        self, compile: Callable[[object, _Spot], Match], wanted: object, at: _Spot
    ) -> tuple[Match, int]:
        """A pattern of many values, and the work of holding one against its parts."""
        before = self._parts
        matches = compile(wanted, at)
        return matches, NODE_WORK * (1 + self._parts - before)

    def _deep(self, wanted: object, at: _Spot) -> Match:
        # Each node below each node, and so on: nesting would multiply the cost by the depth.
        if at.below:
            raise InvalidPattern(
                "** and .. cannot stand below one another; name the keys between", place=at.place
            )
        compiled = self._node(wanted, at._replace(below=True))
        # The elements of an array are below it themselves.
        return compiled if self.reading is Reading.NARROW else _or_row(compiled)


class ArgumentCompiler(PatternCompiler):
    """Compiles the pattern of a tool's arguments, in which a wildcard alone takes every text.

    Args:
        reading: Its reading.
        others: Members that an object may have besides those that its pattern names, where that
            has any; ``None``: all. A member is named by its key, or by a key with wildcards whose
            pattern takes it; one that a default gave is no other one.
    """

    def __init__(self, reading: Reading, others: Collection[str] | None = None) -> None:
        super().__init__(reading)
        self._others = None if others is None else frozenset(others)

    def _text(self, body: str, place: str, reading: Reading) -> StringMatch:
        if body in ANY:
            return lambda text, work: True
        return super()._text(body, place, reading)

    def _closed(
        self, match: Match, names: frozenset[str], keyed: list[tuple[StringMatch, Match]]
    ) -> Match:
        if self._others is None:
            return match
        free = names | self._others

        def match_all(value: object, work: WorkBudget) -> bool:
            if not match(value, work):
                return False
            members = cast("dict[str, object]", value)
            filled = value.filled if isinstance(value, DefaultedObject) else ()
            for name, member in members.items():
                if name in free or name in filled:
                    continue
                work.spend(NODE_WORK)
                if not any(fits(name, work) and takes(member, work) for fits, takes in keyed):
                    return False
            return True

        return match_all


def _any_string(exact: frozenset[str], starred: list[tuple[str, StringMatch]]) -> Match:
    """Match a string against exact texts and globs; only globs with its beginning are tried."""
    beginnings = tuple(begun for begun, _ in starred)

    def match(value: object, work: WorkBudget) -> bool:
        if not isinstance(value, str):
            return False
        if value in exact:
            return True
        if value.startswith(beginnings):
            for begun, matches in starred:
                if value.startswith(begun) and matches(value, work):
                    return True
        return False

    return match


def _any_folded(folded: frozenset[str]) -> Match:
    return lambda value, work: (
        isinstance(value, str) and not folded.isdisjoint(work.plain_forms(value))
    )


def _or_element(matches: Match) -> Match:
    """Match a value, or an array by one of its elements, however deep, or by its texts in a row."""
    matches_one = _or_row(matches)

    def match(value: object, work: WorkBudget) -> bool:
        if not isinstance(value, list):
            return matches(value, work)
        pending: list[object] = [value]
        while pending:
            each = pending.pop()
            if matches_one(each, work):
                return True
            if is_list(each):
                work.spend(NODE_WORK * len(each))
                pending += each
        return False

    return match


def _or_row(matches: Match) -> Match:
    """Match a value, or an array by its texts in a row, with blanks between, as a command has.

    With the numbers among them, and without.
    """

    def match(value: object, work: WorkBudget) -> bool:
        if matches(value, work):
            return True
        if not is_list(value):
            return False
        work.spend(NODE_WORK * len(value))
        texts = [each for each in value if isinstance(each, str)]
        rows = [" ".join(texts)] if len(texts) > 1 else []
        if 0 < len(texts) < len(value):
            scalars = [each for each in value if isinstance(each, str | int | float)]
            work.spend(2 * NODE_WORK * len(scalars))
            if len(scalars) > len(texts):
                rows.append(" ".join(map(written, scalars)))
        for row in rows:
            work.spend(len(row))
            if matches(row, work):
                return True
        return False

    return match


def written(value: str | float) -> str:
    """A text, or a number, or true or false as a text has it."""
    return value if isinstance(value, str) else str(value).casefold().removesuffix(".0")


def _either(alternatives: list[Match]) -> Match:
    if len(alternatives) == 1:
        return alternatives[0]

    def match(value: object, work: WorkBudget) -> bool:
        for matches in alternatives:  # noqa: SIM110 - half the time of any() with a generator
            if matches(value, work):
                return True
        return False

    return match


def _any(matches: Match, values: Iterable[object], work: WorkBudget, cost: int) -> bool:
    for value in values:
        work.spend(cost)
        if matches(value, work):
            return True
    return False


MAX_COMPARISONS: Final = 20_000
"""Pairs of parts that are compared to find one capability covered: more than people write, and some
milliseconds. What takes more is taken for not covered."""

_LIMITS: Final = ("payload", "to")
"""Fields of a capability that narrow it."""

_REMEMBERED: Final = 1_024
_REMEMBERED_PAIRS: Final = 16_384
_pattern: Final = lru_cache(maxsize=_REMEMBERED)(compile_pattern)
_kind: Final = lru_cache(maxsize=_REMEMBERED)(compile_kind)
_GLOB_SYNTAX: Final = re.compile(r"\A!|[*?[{}\\]")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_:/-]*")
_PLAIN_GLOB: Final = re.compile(r"(?!.*\*\*)[A-Za-z0-9_:/*-]+")


def kinds_of(capability: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A capability taken apart by its kinds: they may be covered by different ones."""
    kind: str | list[str] = capability["kind"]
    each = [kind] if isinstance(kind, str) else kind
    rest = {name: capability[name] for name in _LIMITS if name in capability}
    return [{"kind": one, **rest} for one in each]


def covers(
    held: Mapping[str, Any], wanted: Mapping[str, Any], reading: Reading = Reading.NARROW
) -> bool:
    """True if a capability, in a reading, allows all that another, of one kind pattern, does."""
    if not any(_covers_kind(each["kind"], wanted["kind"], reading) for each in kinds_of(held)):
        return False
    limits = [name for name in _LIMITS if name in held]
    try:
        compared = _Comparison(reading)
        return all(name in wanted and compared.covers(held[name], wanted[name]) for name in limits)
    except Exhausted:
        return False


def covers_pattern(
    held: object, wanted: object, reading: Reading = Reading.NARROW, *, of_arguments: bool = False
) -> bool:
    """True if a pattern, in a reading, takes all that another one takes, where decidable.

    Args:
        held: The pattern that may cover.
        wanted: The other pattern, read narrowly.
        reading: The reading of the first.
        of_arguments: They are patterns of arguments, in which ``*`` takes every text.
    """
    try:
        return _Comparison(reading, any_text=of_arguments).covers(held, wanted)
    except Exhausted:
        return False


def first_covering(
    held: Iterable[Mapping[str, Any]],
    wanted: Mapping[str, Any],
    reading: Reading = Reading.NARROW,
) -> Mapping[str, Any] | None:
    """The first of some capabilities that covers one of one kind pattern."""
    return next((each for each in held if covers(each, wanted, reading)), None)


class _Comparison:
    def __init__(self, reading: Reading, *, any_text: bool = False) -> None:
        self._left = MAX_COMPARISONS
        self._reading = reading
        self._any_text = any_text or reading is Reading.WIDE

    def covers(self, held: object, wanted: object) -> bool:
        self._left -= 1
        if self._left < 0:
            raise Exhausted
        if is_list(wanted):
            return all(self.covers(held, each) for each in wanted)
        if is_list(held):
            return any(self.covers(each, wanted) for each in held)
        if is_object(held) and is_object(wanted):
            # Each key, a glob or a path too, narrows what matches: one that stands in both with a
            # narrower pattern narrows at least as much.
            return all(
                key in wanted and self.covers(each, wanted[key]) for key, each in held.items()
            )
        if is_object(held) or is_object(wanted):
            return False
        if isinstance(wanted, str) and self._any_text and isinstance(held, str) and held in ANY:
            return True
        if isinstance(wanted, str) and (wanted.startswith("!") or not is_exact(wanted)):
            return isinstance(held, str) and _covers_glob(held, wanted, self._reading)
        # A value that stands for itself alone.
        if isinstance(held, str):
            return _pattern(held, reading=self._reading).matches(wanted)
        return isinstance(held, bool) == isinstance(wanted, bool) and held == wanted


@lru_cache(maxsize=_REMEMBERED_PAIRS)
def _covers_kind(held: str, wanted: str, reading: Reading) -> bool:
    if held in (wanted, "*"):
        return True
    if wanted == "*":
        return False  # alone it means every kind, which no other glob does
    if is_exact(wanted) and not wanted.startswith("!"):
        return _kind(held, reading=reading)(canonical(wanted))
    return _covers_glob(held, wanted, reading)


def _covers_glob(held: str, wanted: str, reading: Reading) -> bool:
    """True if a string pattern covers another one that matches more than itself."""
    if held == wanted:
        return True
    if reading is Reading.WIDE:
        return _begins_widely(held, wanted)
    if not _PLAIN_GLOB.fullmatch(wanted) or wanted.endswith("/"):
        return False
    begun = held.removesuffix("**" if held.endswith("**") else "*")
    if begun == held or not _PLAIN.fullmatch(begun) or not wanted.startswith(begun):
        return False
    if held.endswith("**"):
        return (not begun or begun.endswith("/")) and "//" not in wanted
    return "/" not in wanted[len(begun) :]


def _begins_widely(held: str, wanted: str) -> bool:
    """True if a glob that ends with a star, which takes whatever follows, covers another pattern.

    A regular expression or a negation has no beginning.
    """
    begun = held.rstrip("*")
    if begun == held or _GLOB_SYNTAX.search(begun) is not None or wanted.startswith("!"):
        return False
    head, small = literal_head(wanted), begun.casefold()
    if head.casefold() == small and wanted.startswith("**", len(head)):
        return held.endswith("/**")  # the folder itself is one of them
    return head.casefold().startswith(small)


def stripped(capabilities: Sequence[object]) -> list[dict[str, Any]]:
    """Capabilities without the ``id`` that others put beside them; any other field limits them."""
    return [
        {name: value for name, value in each.items() if name != "id"}
        for each in cast("Sequence[dict[str, Any]]", capabilities)
    ]
