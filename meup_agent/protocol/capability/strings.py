"""Patterns for one string: exact, glob, ``!pattern`` and ``/regex/`` (PROTOCOL 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.glob import compile_glob, is_glob
from meup_agent.protocol.kinds import KINDS, canonical
from meup_agent.protocol.regex import compile_search

StringMatch = Callable[[str], bool]

MAX_PATTERN_CHARS: Final = 1024
"""Characters of one pattern or key: room for a long path; a stranger may have written it."""

_SHOWN_CHARS: Final = 60  # of a pattern, in an error message


def compile_string(pattern: str, *, place: str) -> tuple[StringMatch, bool]:
    """The test for a pattern without its ``!``, and whether the outcome is to be negated.

    Raises:
        InvalidPattern: The pattern does not compile.
    """
    body, negated = _split(pattern, place)
    return _compile(body, place), negated


def compile_kind(pattern: str, *, place: str = "kind") -> StringMatch:
    """A function that tells whether a kind (with slashes) matches.

    Kinds that this package knows may stand in the pattern with dots too, wildcards included:
    ``mcp.*`` means ``mcp/*``. ``*`` alone matches every kind.

    Raises:
        InvalidPattern: The pattern does not compile.
    """
    body, negated = _split(pattern, place)
    match = _compile_kind(body, place)
    return (lambda kind: not match(kind)) if negated else match


def check_length(pattern: str, place: str) -> None:
    """Refuse a pattern or key that is too long or no valid text.

    Raises:
        InvalidPattern: It is.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise InvalidPattern(
            f"the pattern has {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are taken",
            place=place,
        )
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise InvalidPattern("the pattern holds a lone surrogate", place=place) from None


def checked_glob(pattern: str, place: str) -> StringMatch:
    """:func:`~.glob.compile_glob` with the place in its error.

    Raises:
        InvalidPattern: The glob does not compile.
    """
    try:
        return compile_glob(pattern)
    except ValueError as error:
        raise InvalidPattern(
            f"the glob {_shown(pattern)} does not compile: {error}", place=place
        ) from None


def _split(pattern: str, place: str) -> tuple[str, bool]:
    check_length(pattern, place)
    body = pattern.lstrip("!")
    # A bare `!` would allow nearly everything, and `//` everything: both are slips of the pen.
    if pattern and body in ("", "//"):
        raise InvalidPattern(
            f"{_shown(pattern)} names nothing; write the pattern that is meant", place=place
        )
    return body, (len(pattern) - len(body)) % 2 == 1


def _compile(body: str, place: str) -> StringMatch:
    if _is_regex(body):
        try:
            return compile_search(body[1:-1])
        except ValueError as error:
            raise InvalidPattern(
                f"the regular expression {_shown(body)} does not compile: {error}", place=place
            ) from None
    if is_glob(body):
        return checked_glob(body, place)
    return body.__eq__


def _compile_kind(body: str, place: str) -> StringMatch:
    if body == "*":
        return lambda kind: True
    match = _compile(canonical(body), place)
    if not is_glob(body) or _is_regex(body) or "." not in body or "/" in body:
        return match
    slashed = checked_glob(body.replace(".", "/"), place)
    return lambda kind: match(kind) or (kind in KINDS and slashed(kind))


def _is_regex(body: str) -> bool:
    return len(body) > 2 and body.startswith("/") and body.endswith("/")


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= _SHOWN_CHARS else pattern[:_SHOWN_CHARS] + "…")
