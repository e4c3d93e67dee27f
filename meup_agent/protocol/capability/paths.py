"""Paths into a JSON value (PROTOCOL 7): ``$.a``, ``$['a']``, ``$[0]``, ``$.*``, ``$..a``, ``**``.

Children and descendants, no filters. Each step turns the nodes found so far into the next ones and
visits no node twice, so each costs time linear in the value; a path may have hundreds of steps, so
every visit counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, cast

import msgspec

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.reading import Reading, fold_text
from meup_agent.protocol.capability.work import NODE_WORK, WorkBudget

MAX_PATH_STEPS: Final = 100
"""Steps of one path: each leads one level down, and no frame has more levels."""

_Step = Callable[[Iterator[object], WorkBudget], Iterator[object]]

_STEP: Final = re.compile(
    r"""(?P<deep>\.\.(?=[^.])|(?:\.(?=[^.\[])|(?=\[)))"""
    r"""(?:(?P<every>\*(?=[.\[]|\Z)|\[\*\])|\[(?P<index>0|[1-9][0-9]{0,8})\]"""
    r"""|\[(?:'(?P<single>[^'\\]*)'|"(?P<double>[^"\\]*)")\]|(?P<name>[^.\[\]'"*?()@]+))"""
)


class Path(msgspec.Struct, frozen=True):
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
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


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
        return _every_child
    if step["index"]:
        index = int(step["index"])
        return lambda nodes, work: (
            cast("list[object]", node)[index]
            for node in _counted(nodes, work)
            if isinstance(node, list) and index < len(cast("list[object]", node))
        )
    name = next(found for found in step.group("name", "single", "double") if found is not None)
    if reading is Reading.WIDE:
        plain = fold_text(name)
        return lambda nodes, work: (
            member
            for node in _counted(nodes, work)
            if isinstance(node, dict)
            for member in work.members(cast("dict[str, Any]", node)).get(plain, ())
        )
    return lambda nodes, work: (
        cast("dict[str, Any]", node)[name]
        for node in _counted(nodes, work)
        if isinstance(node, dict) and name in node
    )


def _every_child(nodes: Iterator[object], work: WorkBudget) -> Iterator[object]:
    return (child for node in nodes for child in _counted(_children(node), work))


def _counted(nodes: Iterable[object], work: WorkBudget) -> Iterator[object]:
    for node in nodes:
        work.spend(NODE_WORK)
        yield node
