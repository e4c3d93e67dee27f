"""The one door to RE2: regular expressions whose time is linear in the text, whoever wrote them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import re2 as _re2

re2: Any = _re2  # the library ships no types

MAX_PROGRAM_BYTES = 1 << 20
"""Memory that one compiled pattern may take; a stranger may have written it."""

MAX_PROGRAM_STEPS = 1000
"""Instructions of one compiled pattern. In the worst case each is tried at every byte of a text, in
5 to 10 ns: a text of 100 KB then takes a second at most."""


def compile_search(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether the pattern occurs anywhere in a text.

    Raises:
        ValueError: The pattern is no regular expression that RE2 takes, or is too large.
    """
    return _matcher(pattern, "search")


def compile_fullmatch(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether the whole text matches.

    Raises:
        ValueError: The pattern is no regular expression that RE2 takes, or is too large.
    """
    return _matcher(pattern, "fullmatch")


def compile_bytes(pattern: str, *, max_bytes: int) -> Callable[[bytes], bool]:
    """The same as :func:`compile_fullmatch`, byte by byte, for patterns of our own."""
    options = _options(max_bytes)
    options.encoding = re2.Options.Encoding.LATIN1
    match = re2.compile(pattern.encode("latin-1"), options).fullmatch
    return lambda text: match(text) is not None


def _matcher(pattern: str, how: str) -> Callable[[str], bool]:
    try:
        compiled = re2.compile(pattern, _options(MAX_PROGRAM_BYTES))
    except re2.error as error:
        said = error.args[0] if error.args else "not a regular expression"
        raise ValueError(said.decode() if isinstance(said, bytes) else str(said)) from None
    if compiled.programsize > MAX_PROGRAM_STEPS:
        raise ValueError(
            f"it takes {compiled.programsize} steps where {MAX_PROGRAM_STEPS} are allowed; "
            "make it shorter, or its repetitions"
        )
    match: Callable[[str], object] = getattr(compiled, how)
    return lambda text: match(text) is not None


def _options(max_bytes: int) -> Any:
    options = re2.Options()
    options.never_capture = True
    options.dot_nl = True
    options.log_errors = False
    options.max_mem = max_bytes
    return options
