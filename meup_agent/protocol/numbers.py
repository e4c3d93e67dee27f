"""Numbers that JSON has no form for, or that readers hold differently (PROTOCOL 1, Numbers).

Encoders write NaN and the infinities as ``null``, and read integers of any length; a tool must not
run with the one, and a reader that has doubles only turns the other into an infinity.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, cast

import msgspec

from meup_agent.protocol.regex import compile_bytes

DOUBLE_DIGITS: Final = 309
"""Digits of the integers from which on a double may be too small."""

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""The largest integer that a reader whose numbers are doubles, as JavaScript's, holds exactly."""

_SAFE_DIGITS: Final = len(str(MAX_SAFE_INTEGER))
_DIGITS: Final = b"0123456789"


def is_finite(value: object) -> bool:
    """True if JSON values, structs or dataclasses hold neither NaN nor an infinity."""
    try:
        _STRICT.encode(value)
    except (ValueError, RecursionError):
        return False
    return True


def _inside(value: object) -> object:
    """The plain values in one that the standard library has no JSON form for."""
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    if isinstance(value, set | frozenset):
        return list(cast("set[Any]", value))
    return None


_STRICT: Final = json.JSONEncoder(
    allow_nan=False, skipkeys=True, check_circular=False, default=_inside
)


def fits_double(raw: bytes, value: object) -> bool:
    """True if every integer in decoded JSON is within the range of a double."""
    return not _has_run(raw, DOUBLE_DIGITS) or all(map(_is_double, _integers(value)))


def find_unsafe_integer(raw: bytes, value: object) -> int | None:
    """The first integer in decoded JSON that a reader with doubles would round; ``None``: none."""
    if not _has_run(raw, _SAFE_DIGITS):
        return None
    return next((each for each in _integers(value) if abs(each) > MAX_SAFE_INTEGER), None)


def _has_run(raw: bytes, digits: int) -> bool:
    """True if JSON has so many digits in a row: only then is an integer of it so large."""
    # A run of so many digits has one at each place that is a multiple of their number.
    sampled = raw[digits - 1 :: digits]
    return len(sampled.translate(None, _DIGITS)) < len(sampled) and _long_run(digits)(raw)


def _integers(value: object) -> Iterator[int]:
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending += cast("dict[str, object]", each).values()
        elif isinstance(each, list | tuple):
            pending += cast("list[object]", each)
        elif isinstance(each, int):
            yield each


def _is_double(number: int) -> bool:
    try:
        float(number)
    except OverflowError:
        return False
    return True


@cache
def _long_run(digits: int) -> Callable[[bytes], bool]:
    return compile_bytes(f".*[0-9]{{{digits}}}.*", max_bytes=8 << 20)
