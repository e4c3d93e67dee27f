"""Numbers that JSON has no form for, or that no reader holds (PROTOCOL 1, Numbers).

Encoders write NaN and the infinities as ``null``, and read integers of any length; a tool must not
run with the one, and a reader that has doubles only turns the other into an infinity.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from typing import Any, Final, cast

import msgspec

from meup_agent.protocol.regex import compile_bytes

DOUBLE_DIGITS: Final = 309
"""Digits of the integers from which on a double may be too small."""

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
    # A run of so many digits has one at each place that is a multiple of their number.
    sampled = raw[DOUBLE_DIGITS - 1 :: DOUBLE_DIGITS]
    if len(sampled.translate(None, _DIGITS)) == len(sampled) or not _long_run()(raw):
        return True
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending += cast("dict[str, object]", each).values()
        elif isinstance(each, list | tuple):
            pending += cast("list[object]", each)
        elif isinstance(each, int):
            try:
                float(each)
            except OverflowError:
                return False
    return True


@cache
def _long_run() -> Callable[[bytes], bool]:
    return compile_bytes(f".*[0-9]{{{DOUBLE_DIGITS}}}.*", max_bytes=8 << 20)
