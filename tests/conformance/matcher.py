"""Matching of capabilities by existing gateways: less than specified, and more trusting.

Their own decisions are in tests/vectors/captures/capability-matrix.jsonl. What is lenient here is
lenient there: numbers and booleans in a pattern are not looked at, a glob is a prefix.
"""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


class ProcessingError(Exception):
    """A gateway's words to the sender whose frame made its own code fail."""


def may(capabilities: list[Json], message: Json, *, negations: bool) -> bool:
    """True where one of the capabilities allows the message.

    `negations`: whether `!value` in a payload pattern means any other value (`mew/v0.4`).

    Raises:
        ProcessingError: the matcher would have called a string's method on something else.
    """
    return any(_allows(capability, message, negations) for capability in capabilities)


def _allows(capability: Json, message: Json, negations: bool) -> bool:
    pattern, kind = capability.get("kind"), message.get("kind")
    if pattern == "*":
        return True
    below = isinstance(pattern, str) and pattern.endswith("/*")
    if below and isinstance(kind, str) and kind.startswith(str(pattern)[:-1]):
        return _fits(message.get("payload"), capability.get("payload"), negations)
    if pattern == kind:
        return _fits(message.get("payload"), capability.get("payload"), negations)
    return False


def _fits(value: Any, pattern: Any, negations: bool) -> bool:
    if pattern is None:
        return True
    if not isinstance(value, (dict, list)) and not value:
        return False
    return all(
        _entry_fits(_member(value, key), expected, negations) for key, expected in _entries(pattern)
    )


def _entry_fits(value: Any, expected: Any, negations: bool) -> bool:
    if isinstance(expected, str):
        if negations and expected.startswith("!"):
            return bool(value != expected[1:])
        if not expected.endswith("*"):
            return bool(value == expected)
        if isinstance(value, (dict, list)) or (value and not isinstance(value, str)):
            raise ProcessingError("payload[key].startsWith is not a function")
        return isinstance(value, str) and value != "" and value.startswith(expected[:-1])
    if expected is None and not negations:
        # The older one fails on a null in a pattern, so that the message does not pass.
        raise ProcessingError("Cannot convert undefined or null to object")
    if expected is None or isinstance(expected, (dict, list)):
        return _fits(value, expected, negations)
    return True


def _entries(pattern: Any) -> list[tuple[str, Any]]:
    if isinstance(pattern, Mapping):
        return list(pattern.items())
    return [(str(index), entry) for index, entry in enumerate(pattern)]


def _member(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return value.get(key)
    if isinstance(value, list | str) and key.isdigit() and int(key) < len(value):
        return value[int(key)]
    return None
