"""Patterns for one string: exact, glob, ``!pattern`` and ``/regex/`` (PROTOCOL 7).

A regular expression is one of the very text, in both readings: its author says which letters and
which case.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.glob import (
    StringMatch,
    compile_glob,
    glob_head,
    is_glob,
    plain_glob,
    run_program,
)
from meup_agent.protocol.capability.reading import Reading, fold_letter, fold_text
from meup_agent.protocol.capability.work import bounded
from meup_agent.protocol.kinds import KINDS, canonical
from meup_agent.protocol.regex import compile_search

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
    return "" if is_regex(body) else glob_head(body)


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
    program = compile_search(expression)
    # For letters alone few states are ever built; for anything else all steps may count each byte.
    states = 4 * len(expression) if _WORDS.fullmatch(expression) else None
    return run_program(program, states), program.steps


def is_regex(body: str) -> bool:
    """True if a pattern without its ``!`` is a regular expression."""
    return len(body) > 2 and body.startswith("/") and body.endswith("/")
