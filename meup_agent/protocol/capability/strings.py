"""Patterns for one string, as RE2 (PROTOCOL 7): exact, glob, ``!pattern``, ``/regex/``.

A regular expression is one of the very text, in both readings: its author says which letters and
which case.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.reading import (
    CALL_WORK,
    NODE_WORK,
    Reading,
    WorkBudget,
    bounded,
    fold_letter,
    fold_path,
    fold_text,
)
from meup_agent.protocol.wire.kinds import KINDS, canonical
from meup_agent.protocol.wire.regex import Program, compile_program

# --- globs as RE2 (PROTOCOL 7) ---
# `*` `**` `?` `[…]` `{a,b}` and `\` before a literal.
#
# In the narrow reading a wildcard meets no dot that begins a segment, and nothing that would make
# of one text several: a comma, a semicolon, a line end, or, in a pattern without a slash, a blank.
# Nor does it meet a backslash, which parts a path on some systems. RE2 cannot look around, so
# these are given other letters before matching: wildcards do not know those, what is written in
# the pattern does. Then one regular expression says it all, and nothing is ever expanded.
# `wcmatch` (12.0.1) writes look-aheads, so its expressions are for `re`, whose time has no bound.
# In the wide reading a wildcard meets everything, and a text is compared in its plain form, too
# (`reading`).
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
    start = path + begun
    from_star = len(start)
    shortest = from_star + (len(tail) or not begun)

    def match(text: str, work: WorkBudget) -> bool:
        if not (
            text.startswith(start)
            and text.endswith(tail)
            and len(text) >= shortest
            and text.find("/", from_star) < 0
            and (begun != "" or text[from_star] != ".")
        ):
            return False
        if barred is None:
            return True
        work.spend(len(text))
        return barred.search(text, from_star, len(text) - len(tail)) is None

    return match


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
        small = _in_pieces(pattern.casefold())
        return _has_pieces(small, _in_pieces("".join(map(fold_letter, plain)))), 1
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


_Pieces = list[list[str]]
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
    return [_STARS.split(way) for way in dict.fromkeys([*whole, *(way + last for way in ways)])]


def _has_pieces(small: _Pieces, plain: _Pieces) -> StringMatch:
    """The test of a text, by a tenth of the time that RE2 takes; in small letters, or plain."""
    differs = small != plain
    searched = sum(len(each) > 2 for each in [*small, *plain])

    def match(text: str, work: WorkBudget) -> bool:
        forms = work.forms(text)
        work.spend(NODE_WORK + len(text) * searched // 2)
        for pieces in small:
            if _is_in_order(forms[0], pieces):
                return True
        if differs or len(forms) > 1:
            for form in work.plain_forms(text):
                for pieces in plain:
                    if _is_in_order(form, pieces):
                        return True
        return False

    return match


def _is_in_order(text: str, pieces: list[str]) -> bool:
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

    def text(self, pattern: str, place: str) -> StringMatch:
        """The test for any text, with or without ``!``."""
        return _negatable(self.compile, pattern, place, Reading.NARROW)

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
    plain = {plain_glob(body), plain_glob(body.replace("\\", "/"))}
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
