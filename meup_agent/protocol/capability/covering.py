"""Comparison of capabilities: a granter needs one that allows all that its grant allows.

For patterns as rich as these that cannot be decided in general, so the answer errs on one side:
what is said to be covered is covered, and what is not said to be may still be. Covered are

- whatever a capability without a ``payload``, of the same kinds, allows;
- what is written alike, keys in any order;
- a value that the pattern matches: ``read_file`` by ``read_*``, ``!delete`` or ``/^read/``;
- a narrower glob: ``read_f*`` by ``read_*``, ``mcp/re*`` by ``mcp/*``, ``a/*/b`` by ``**``;
- an object that asks for more keys, and each of a list if one of the other list covers it;
- fewer addressees: each that ``to`` names, or any, where the other has none.

The capability that covers is read narrowly where it lets a grant through, and widely where it holds
one back, by revoking it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from meup_agent.protocol.capability.patterns import compile_pattern
from meup_agent.protocol.capability.reading import Exhausted, Reading
from meup_agent.protocol.capability.strings import ANY, compile_kind, is_exact, literal_head
from meup_agent.protocol.wire.kinds import canonical

MAX_COMPARISONS: Final = 20_000
"""Pairs of parts that are compared to find one capability covered: more than people write, and some
milliseconds. What takes more is taken for not covered."""

_LIMITS: Final = ("payload", "to")
"""Fields of a capability that narrow it."""

_REMEMBERED: Final = 1_024
_REMEMBERED_PAIRS: Final = 16_384
_pattern: Final = lru_cache(maxsize=_REMEMBERED)(compile_pattern)
_kind: Final = lru_cache(maxsize=_REMEMBERED)(compile_kind)
_SPECIAL: Final = re.compile(r"\A!|[*?[{}\\]")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_:/-]*")
_PLAIN_GLOB: Final = re.compile(r"(?!.*\*\*)[A-Za-z0-9_:/*-]+")


def kinds_of(capability: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A capability taken apart by its kinds: they may be covered by different ones."""
    kind: str | list[str] = capability["kind"]
    each = [kind] if isinstance(kind, str) else kind
    rest = {name: capability[name] for name in _LIMITS if name in capability}
    return [{"kind": one, **rest} for one in each]


def covers(
    held: Mapping[str, Any], wanted: Mapping[str, Any], reading: Reading = Reading.NARROW
) -> bool:
    """True if a capability, in a reading, allows all that another, of one kind pattern, does."""
    if not any(_covers_kind(each["kind"], wanted["kind"], reading) for each in kinds_of(held)):
        return False
    limits = [name for name in _LIMITS if name in held]
    try:
        compared = _Comparison(reading)
        return all(name in wanted and compared.covers(held[name], wanted[name]) for name in limits)
    except Exhausted:
        return False


def covers_pattern(
    held: object, wanted: object, reading: Reading = Reading.NARROW, *, of_arguments: bool = False
) -> bool:
    """True if a pattern, in a reading, takes all that another one takes, where decidable.

    Args:
        held: The pattern that may cover.
        wanted: The other pattern, read narrowly.
        reading: The reading of the first.
        of_arguments: They are patterns of arguments, in which ``*`` takes every text.
    """
    try:
        return _Comparison(reading, any_text=of_arguments).covers(held, wanted)
    except Exhausted:
        return False


def first_covering(
    held: Iterable[Mapping[str, Any]],
    wanted: Mapping[str, Any],
    reading: Reading = Reading.NARROW,
) -> Mapping[str, Any] | None:
    """The first of some capabilities that covers one of one kind pattern."""
    return next((each for each in held if covers(each, wanted, reading)), None)


class _Comparison:
    def __init__(self, reading: Reading, *, any_text: bool = False) -> None:
        self._left = MAX_COMPARISONS
        self._reading = reading
        self._any_text = any_text or reading is Reading.WIDE

    def covers(self, held: object, wanted: object) -> bool:
        self._left -= 1
        if self._left < 0:
            raise Exhausted
        if isinstance(wanted, list):
            return all(self.covers(held, each) for each in cast("list[object]", wanted))
        if isinstance(held, list):
            return any(self.covers(each, wanted) for each in cast("list[object]", held))
        if isinstance(wanted, dict):
            return isinstance(held, dict) and self._covers_object(
                cast("dict[str, object]", held), cast("dict[str, object]", wanted)
            )
        if isinstance(held, dict):
            return False
        if isinstance(wanted, str) and self._any_text and isinstance(held, str) and held in ANY:
            return True
        if isinstance(wanted, str) and not (is_exact(wanted) and not wanted.startswith("!")):
            return isinstance(held, str) and _covers_glob(held, wanted, self._reading)
        # A value that stands for itself alone.
        if isinstance(held, str):
            return _pattern(held, reading=self._reading).matches(wanted)
        return _same(held, wanted)

    def _covers_object(self, held: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
        # Each key, a glob or a path too, narrows what matches: one that stands in both with a
        # narrower pattern narrows at least as much.
        return all(key in wanted and self.covers(each, wanted[key]) for key, each in held.items())


@lru_cache(maxsize=_REMEMBERED_PAIRS)
def _covers_kind(held: str, wanted: str, reading: Reading) -> bool:
    if held in (wanted, "*"):
        return True
    if wanted == "*":
        return False  # alone it means every kind, which no other glob does
    if is_exact(wanted) and not wanted.startswith("!"):
        return _kind(held, reading=reading)(canonical(wanted))
    return _covers_glob(held, wanted, reading)


def _covers_glob(held: str, wanted: str, reading: Reading) -> bool:
    """True if a string pattern covers another one that matches more than itself."""
    if held == wanted:
        return True
    if reading is Reading.WIDE:
        return _begins_widely(held, wanted)
    if not _PLAIN_GLOB.fullmatch(wanted) or wanted.endswith("/"):
        return False
    begun = held.removesuffix("**") if held.endswith("**") else held.removesuffix("*")
    if begun == held or not _PLAIN.fullmatch(begun):
        return False
    if not wanted.startswith(begun):
        return False
    rest = wanted[len(begun) :]
    if held.endswith("**"):
        return (not begun or begun.endswith("/")) and "//" not in wanted
    return "/" not in rest


def _begins_widely(held: str, wanted: str) -> bool:
    """True if a glob that ends with a star, which takes whatever follows, covers another pattern.

    A regular expression or a negation has no beginning.
    """
    begun = held.rstrip("*")
    if begun == held or _SPECIAL.search(begun) is not None or wanted.startswith("!"):
        return False
    head, small = literal_head(wanted), begun.casefold()
    if head.casefold() == small and wanted.startswith("**", len(head)):
        return held.endswith("/**")  # the folder itself is one of them
    return head.casefold().startswith(small)


def _same(held: object, wanted: object) -> bool:
    return isinstance(held, bool) == isinstance(wanted, bool) and held == wanted


def stripped(capabilities: Sequence[object]) -> list[dict[str, Any]]:
    """Capabilities without the ``id`` that others put beside them; any other field limits them."""
    return [
        {name: value for name, value in each.items() if name != "id"}
        for each in cast("Sequence[dict[str, Any]]", capabilities)
    ]
