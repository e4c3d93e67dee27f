"""Capabilities of one participant, compiled (PROTOCOL 7)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.patterns import (
    Exhausted,
    Match,
    PatternCompiler,
    StringMatch,
    WorkBudget,
    bounded,
)
from meup_agent.protocol.wire.envelope import is_list, is_object
from meup_agent.protocol.wire.kinds import canonical

MAX_CAPABILITIES: Final = 256
"""Capabilities of one participant: a kind that is new is held against each."""

MAX_KINDS_REMEMBERED: Final = 256
"""Kinds whose rules are kept: ten times those that exist, few for those that are made up."""

MAX_NOT_UNDERSTOOD: Final = 16
"""Capabilities announced for another participant that may fail to compile; the rest is unread."""

MAX_JOINED_KEYS: Final = 8
"""Keys of objects that are joined: MCP messages have four, and each is compared without each."""

MAX_JOINED_LEVELS: Final = 4
"""Levels at which objects are joined: deep enough for the arguments of a tool."""

_SYSTEM: Final = "system"
_NEVER: Final = (f"{_SYSTEM}/", f"{_SYSTEM}.")

# `id` is what existing gateways put beside a capability. Any other field would be a restriction
# that is not understood, and leaving it out would allow more than was meant.
_FIELDS: Final = {"kind", "payload", "to", "id"}


class CompiledCapability(NamedTuple):
    """One capability."""

    fits: StringMatch
    payload: object  # the pattern of the payload; ``None``: any
    to: tuple[str, ...] = ()  # what limits the addressees; empty: nothing does
    fits_to: StringMatch | None = None


class Capabilities:
    """Compiled capabilities; decides what may be sent."""

    def __init__(
        self,
        patterns: tuple[Any, ...],
        rules: Sequence[CompiledCapability],
        compiler: PatternCompiler,
    ) -> None:
        self.patterns = patterns
        self._rules = [rule for rule in rules if rule.fits_to is None]
        self._addressed = _by_addressees(rules, compiler)
        self._compiler = compiler
        self._by_kind: dict[str, bool | Match] = {}
        self._by_rules: dict[tuple[int, ...], Match] = {}

    def allow(
        self, kind: str, payload: object | Callable[[], object], to: Sequence[str] = ()
    ) -> bool:
        """True if they allow an envelope, in time; a function decodes its payload if needed.

        One without addressees never fits a capability that limits them.
        """
        if self._fit(kind, payload):
            return True
        return bool(to) and any(
            all(map(fits, to)) and limited.allow(kind, payload) for fits, limited in self._addressed
        )

    def _fit(self, kind: str, payload: object | Callable[[], object]) -> bool:
        try:
            rule = self._by_kind.get(kind)
            if rule is None:
                rule = self._decided(canonical(kind))
                if len(self._by_kind) < MAX_KINDS_REMEMBERED:
                    self._by_kind[kind] = rule
            if isinstance(rule, bool):
                return rule
            value = payload() if callable(payload) else payload
            return rule(value, WorkBudget(value))
        except Exhausted:
            return False

    def _decided(self, kind: str) -> bool | Match:
        if is_reserved_kind(kind):
            return False
        work = WorkBudget(kind)
        matching = tuple(number for number, rule in enumerate(self._rules) if rule.fits(kind, work))
        if not matching:
            return False
        payloads = [self._rules[number].payload for number in matching]
        if None in payloads:
            return True
        # Many kinds, made up ones too, come under the same rules.
        found = self._by_rules.get(matching)
        if found is None:
            found = self._compiler.again(joined(payloads))
            if len(self._by_rules) < MAX_KINDS_REMEMBERED:
                self._by_rules[matching] = found
        return found


def _by_addressees(
    rules: Sequence[CompiledCapability], compiler: PatternCompiler
) -> tuple[tuple[Callable[[str], bool], Capabilities], ...]:
    """The rules that limit addressees, together with those of the same limit."""
    groups: dict[tuple[str, ...], list[CompiledCapability]] = {}
    for rule in rules:
        if rule.fits_to is not None:
            groups.setdefault(rule.to, []).append(rule)
    return tuple(
        (bounded(fits), Capabilities((), [rule._replace(fits_to=None) for rule in group], compiler))
        for group in groups.values()
        if (fits := group[0].fits_to) is not None
    )


def compile_capabilities(
    patterns: Sequence[object], *, place: str = "capabilities"
) -> Capabilities:
    """Compile the capabilities of one participant; InvalidPattern names where they stand."""
    if not isinstance(patterns, list | tuple):
        raise InvalidPattern("the capabilities are not a list", place=place)
    if len(patterns) > MAX_CAPABILITIES:
        raise InvalidPattern(
            f"there are {len(patterns)} capabilities; at most {MAX_CAPABILITIES} are taken",
            place=place,
        )
    compiler = PatternCompiler()
    rules = [
        _capability(item, compiler, f"{place}[{index}]") for index, item in enumerate(patterns)
    ]
    return Capabilities(tuple(patterns), rules, compiler)


def refuse_reserved(patterns: Sequence[object], *, place: str = "capabilities") -> None:
    """Raise InvalidPattern for what names ``system/*`` itself, which no wildcard grants (7)."""
    for index, item in enumerate(patterns):
        kind = cast("dict[str, Any]", item)["kind"]
        where = f"{place}[{index}].kind"
        for number, each in enumerate([kind] if isinstance(kind, str) else kind):
            if is_reserved_kind(each):
                raise InvalidPattern(
                    f"{each!r} comes only from the gateway and is never granted; take it out",
                    place=where if each is kind else f"{where}[{number}]",
                )


def is_reserved_kind(kind: str) -> bool:
    """True for a pattern that names the gateway's kinds themselves."""
    return kind == _SYSTEM or kind.startswith(_NEVER)


def compile_announced(patterns: Sequence[object]) -> Capabilities:
    """Compile what a gateway announces, as far as it is understood; the rest allows nothing."""
    compiler = PatternCompiler()
    understood: list[object] = []
    rules: list[CompiledCapability] = []
    failed = 0
    for item in patterns[:MAX_CAPABILITIES]:
        try:
            rules.append(_capability(item, compiler, "capability"))
        except InvalidPattern:
            failed += 1
            if failed == MAX_NOT_UNDERSTOOD:
                break
        else:
            understood.append(item)
    return Capabilities(tuple(understood), rules, compiler)


def _capability(item: object, compiler: PatternCompiler, place: str) -> CompiledCapability:
    if not is_object(item):
        raise InvalidPattern('a capability is an object such as {"kind": "chat"}', place=place)
    unknown = [str(name) for name in item if name not in _FIELDS]
    if unknown:
        raise InvalidPattern(
            f"a capability has no field {unknown[0]!r}, only kind, payload and to", place=place
        )
    if "kind" not in item:
        raise InvalidPattern("the capability has no kind", place=place)
    fits = _kind(item["kind"], compiler, f"{place}.kind")
    to, fits_to = _addressees(item, compiler, f"{place}.to")
    if "payload" not in item:
        return CompiledCapability(fits, None, to, fits_to)
    payload = item["payload"]
    if not (is_object(payload) or is_list(payload)):
        raise InvalidPattern("the pattern of a payload is an object", place=f"{place}.payload")
    compiler.compile(payload, f"{place}.payload")
    # Rules of one kind are compiled together when it first comes; the caller may change
    # its object after that.
    return CompiledCapability(fits, copy.deepcopy(payload), to, fits_to)


def _addressees(
    fields: dict[str, Any], compiler: PatternCompiler, place: str
) -> tuple[tuple[str, ...], StringMatch | None]:
    """The limit of the addressees, as it is and compiled: a name or pattern, or a list of them."""
    if "to" not in fields:
        return (), None
    to = fields["to"]
    listed = to if is_list(to) else [to]
    if not listed or not all(isinstance(each, str) and each for each in listed):
        raise InvalidPattern("the addressees are a name, or a list of names", place=place)
    names = cast("list[str]", listed)
    return tuple(names), _any_of(names, compiler, compiler.strings.text, place)


def _kind(pattern: object, compiler: PatternCompiler, place: str) -> StringMatch:
    compiler.count(place)
    if isinstance(pattern, str):
        return compiler.strings.kind(pattern, place)
    if not is_list(pattern):
        raise InvalidPattern("a kind is a string or a list of strings", place=place)
    return _any_of(pattern, compiler, compiler.strings.kind, place)


def _any_of(
    patterns: Sequence[object],
    compiler: PatternCompiler,
    compile: Callable[[str, str], StringMatch],
    place: str,
) -> StringMatch:
    alternatives: list[StringMatch] = []
    for index, item in enumerate(patterns):
        inner = f"{place}[{index}]"
        if not isinstance(item, str):
            raise InvalidPattern("a kind is a string", place=inner)
        compiler.count(inner)
        alternatives.append(compile(item, inner))
    return lambda text, work: any(fits(text, work) for fits in alternatives)


def joined(alternatives: list[object], level: int = 0) -> object:
    """A pattern that matches what any of some compiled patterns matches.

    Alternatives with something in common are joined, so that what they share is looked at once:
    ``{"method": "tools/call", "params": {"name": "a"}}`` or the same with ``b`` is one object whose
    name is ``["a", "b"]``: a list means *any of them*, wherever it stands, and so do a key with
    wildcards and a path. Two objects that differ in more than one member stay two.
    """
    flat: dict[str, object] = {}
    for pattern in _flattened(alternatives):
        flat.setdefault(repr(pattern), pattern)
    by_keys: dict[frozenset[str], list[dict[str, Any]]] = {}
    found: list[object] = []
    for pattern in flat.values():
        if is_object(pattern) and len(pattern) <= MAX_JOINED_KEYS:
            by_keys.setdefault(frozenset(pattern), []).append(pattern)
        else:
            found.append(pattern)
    for group in by_keys.values():
        found.extend(_joined_objects(group, level) if level < MAX_JOINED_LEVELS else group)
    return found[0] if len(found) == 1 else found


def _flattened(alternatives: list[object]) -> list[object]:
    flat: list[object] = []
    for pattern in alternatives:
        if is_list(pattern):
            flat.extend(_flattened(pattern))
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
