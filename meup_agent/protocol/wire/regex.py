"""Regular expressions of strangers, by RE2: their time is linear in the text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import re2 as _re2

re2: Any = _re2  # the library ships no types

MAX_PROGRAM_BYTES: Final = 1 << 20
"""Memory that one compiled pattern may take; a stranger may have written it."""

MAX_PROGRAM_STEPS: Final = 1000
"""Instructions of one compiled pattern. In the worst case each is tried at every byte of a text, in
5 to 15 ns: callers that match long texts count what it costs."""

MAX_UNICODE_CLASSES: Final = 8
r"""Classes such as ``\pL`` in one pattern: each is read as hundreds of ranges, and a pattern of
nothing else took 22 ms before it was found too large."""

_UNICODE_CLASS: Final = re.compile(r"\\[pP]")


class Program(NamedTuple):
    """A compiled pattern."""

    matches: Callable[[bytes], bool]  # tells whether a text, as UTF-8, matches
    steps: int  # the instructions that each byte of it may take


def compile_bytes(pattern: str, *, max_bytes: int) -> Callable[[bytes], bool]:
    """A pattern for a whole text, byte by byte, for patterns of our own."""
    options = _options(max_bytes)
    options.encoding = re2.Options.Encoding.LATIN1
    match: Callable[[bytes], object] = re2.compile(pattern.encode("latin-1"), options).fullmatch
    return lambda text: match(text) is not None


def compile_program(pattern: str, *, anywhere: bool = False) -> Program:
    """A pattern for a whole text, or anywhere in one; ValueError if RE2 does not take it."""
    if len(_UNICODE_CLASS.findall(pattern)) > MAX_UNICODE_CLASSES:
        raise ValueError(f"it has more than {MAX_UNICODE_CLASSES} classes such as \\pL")
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
    match: Callable[[bytes], object] = compiled.search if anywhere else compiled.fullmatch

    def matches(text: bytes) -> bool:
        return match(text) is not None

    return Program(matches, compiled.programsize)


def _options(max_bytes: int) -> Any:
    options = re2.Options()
    options.never_capture = True
    options.dot_nl = True
    options.log_errors = False
    options.max_mem = max_bytes
    return options
