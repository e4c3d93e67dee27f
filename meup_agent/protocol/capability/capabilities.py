"""What one participant may send: its capabilities, compiled (PROTOCOL 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.patterns import Compiler, Match
from meup_agent.protocol.capability.strings import StringMatch, compile_kind

MAX_CAPABILITIES: Final = 256
"""Capabilities of one participant: a kind that is new is held against each."""

MAX_KINDS_REMEMBERED: Final = 256
"""Kinds whose rules are kept: ten times those that exist, few for those that are made up."""

_NEVER: Final = ("system/", "system.")

# `id` is what existing gateways put beside a capability. Any other field would be a restriction
# that is not understood, and leaving it out would allow more than was meant.
_FIELDS: Final = {"kind", "payload", "id"}


class Capabilities:
    """Compiled capabilities; decides what may be sent.

    Attributes:
        patterns: The capabilities as they were written, as JSON values.
    """

    def __init__(
        self, patterns: tuple[Any, ...], rules: Sequence[tuple[StringMatch, Match | None]]
    ) -> None:
        self.patterns = patterns
        self._rules = rules
        self._by_kind: dict[str, bool | tuple[Match, ...]] = {}

    def allow(self, kind: str, payload: object | Callable[[], object]) -> bool:
        """Whether an envelope may be sent.

        Args:
            kind: Its kind, with slashes.
            payload: Its payload as JSON values, or a function that decodes it: called at most
                once, and only if the answer depends on it.
        """
        rule = self._by_kind.get(kind)
        if rule is None:
            rule = self._rule(kind)
            if len(self._by_kind) < MAX_KINDS_REMEMBERED:
                self._by_kind[kind] = rule
        if isinstance(rule, bool):
            return rule
        value = payload() if callable(payload) else payload
        return any(matches(value) for matches in rule)

    def _rule(self, kind: str) -> bool | tuple[Match, ...]:
        if kind == "system" or kind.startswith(_NEVER):
            return False
        matching = [matches for fits, matches in self._rules if fits(kind)]
        of_payload = tuple(matches for matches in matching if matches is not None)
        if len(of_payload) < len(matching):
            return True
        return of_payload or False


def compile_capabilities(
    patterns: Sequence[object], *, place: str = "capabilities"
) -> Capabilities:
    """Compile the capabilities of one participant.

    Args:
        patterns: Objects with a ``kind`` and perhaps a ``payload``, as JSON values.
        place: Where the list stands, for error messages.

    Raises:
        InvalidPattern: One of them does not compile, or there are too many.
    """
    if not isinstance(patterns, list | tuple):
        raise InvalidPattern("the capabilities are no list", place=place)
    if len(patterns) > MAX_CAPABILITIES:
        raise InvalidPattern(
            f"there are {len(patterns)} capabilities; at most {MAX_CAPABILITIES} are taken",
            place=place,
        )
    compiler = Compiler()
    rules = [
        _capability(item, compiler, f"{place}[{index}]") for index, item in enumerate(patterns)
    ]
    return Capabilities(tuple(patterns), rules)


def compile_announced(patterns: Sequence[object]) -> Capabilities:
    """Compile what a gateway says of somebody, as far as it can be understood.

    What does not compile, and what goes beyond the limits, allows nothing: the decision is the
    gateway's, and this is only a forecast of it.

    Args:
        patterns: Capabilities as JSON values, or what else a gateway sent in their place.
    """
    compiler = Compiler()
    understood: list[object] = []
    rules: list[tuple[StringMatch, Match | None]] = []
    for item in patterns[:MAX_CAPABILITIES]:
        try:
            rules.append(_capability(item, compiler, "capability"))
        except InvalidPattern:
            continue
        understood.append(item)
    return Capabilities(tuple(understood), rules)


def _capability(item: object, compiler: Compiler, place: str) -> tuple[StringMatch, Match | None]:
    if not isinstance(item, dict):
        raise InvalidPattern('a capability is an object such as {"kind": "chat"}', place=place)
    fields = cast("dict[object, object]", item)
    unknown = [str(name) for name in fields if name not in _FIELDS]
    if unknown:
        raise InvalidPattern(
            f"a capability has no field {unknown[0]!r}, only kind and payload", place=place
        )
    if "kind" not in fields:
        raise InvalidPattern("the capability has no kind", place=place)
    fits = _kind(fields["kind"], compiler, f"{place}.kind")
    if "payload" not in fields:
        return fits, None
    payload: object = fields["payload"]
    if not isinstance(payload, dict | list):
        raise InvalidPattern("the pattern of a payload is an object", place=f"{place}.payload")
    return fits, compiler.compile(cast("object", payload), f"{place}.payload")


def _kind(pattern: object, compiler: Compiler, place: str) -> StringMatch:
    compiler.count(place)
    if isinstance(pattern, str):
        return compile_kind(pattern, place=place)
    if not isinstance(pattern, list):
        raise InvalidPattern("a kind is a string or a list of strings", place=place)
    alternatives: list[StringMatch] = []
    for index, item in enumerate(cast("list[object]", pattern)):
        if not isinstance(item, str):
            raise InvalidPattern("a kind is a string", place=f"{place}[{index}]")
        compiler.count(f"{place}[{index}]")
        alternatives.append(compile_kind(item, place=f"{place}[{index}]"))
    return lambda kind: any(fits(kind) for fits in alternatives)
