"""Alternatives with something in common, joined, so that what they share is looked at once.

``{"method": "tools/call", "params": {"name": "a"}}`` or the same with ``b`` is one object whose
name is ``["a", "b"]``: a list means *any of them*, wherever it stands, and so do a key with
wildcards and a path, which one value below has to fit. Two objects that differ in more than one
member stay two.
"""

from __future__ import annotations

from typing import Any, Final, cast

MAX_JOINED_KEYS: Final = 8
"""Keys of objects that are joined: MCP messages have four, and each is compared without each."""

MAX_JOINED_LEVELS: Final = 4
"""Levels at which objects are joined: deep enough for the arguments of a tool."""


def joined(alternatives: list[object], level: int = 0) -> object:
    """A pattern that matches what any of some compiled patterns matches."""
    flat: dict[str, object] = {}
    for pattern in _flattened(alternatives):
        flat.setdefault(repr(pattern), pattern)
    by_keys: dict[frozenset[str], list[dict[str, Any]]] = {}
    found: list[object] = []
    for pattern in flat.values():
        if not isinstance(pattern, dict):
            found.append(pattern)
            continue
        members = cast("dict[str, Any]", pattern)
        if len(members) > MAX_JOINED_KEYS:
            found.append(members)
        else:
            by_keys.setdefault(frozenset(members), []).append(members)
    for group in by_keys.values():
        found.extend(_joined_objects(group, level) if level < MAX_JOINED_LEVELS else group)
    return found[0] if len(found) == 1 else found


def _flattened(alternatives: list[object]) -> list[object]:
    flat: list[object] = []
    for pattern in alternatives:
        if isinstance(pattern, list):
            flat.extend(_flattened(cast("list[object]", pattern)))
        else:
            flat.append(pattern)
    return flat


def _joined_objects(objects: list[dict[str, Any]], level: int) -> list[dict[str, Any]]:
    """Objects with the same keys; those that differ in one member only become one."""
    for key in objects[0] if len(objects) > 1 else ():
        alike: dict[str, list[dict[str, Any]]] = {}
        for members in objects:
            rest = repr(sorted((name, each) for name, each in members.items() if name != key))
            alike.setdefault(rest, []).append(members)
        objects = [
            {**group[0], key: joined([members[key] for members in group], level + 1)}
            if len(group) > 1
            else group[0]
            for group in alike.values()
        ]
    return objects
