"""Rule index: the rules that a text can match, by the beginnings of their patterns.

Most patterns begin with letters that mean only themselves. So of two hundred rules that differ by
a tool's name or by one argument, a few are left to be compared. Texts and patterns are held against
one another as in the wide reading, which takes all that the narrow one does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, cast

from meup_agent.protocol.capability.glob import is_glob
from meup_agent.protocol.capability.paths import is_path
from meup_agent.protocol.capability.reading import fold_text
from meup_agent.protocol.capability.strings import plain_beginnings
from meup_agent.protocol.capability.work import WorkBudget
from meup_agent.protocol.payloads import as_object

FEW: Final = 8
"""Rules that are compared one after the other as fast as an index finds them."""


class BeginningIndex:
    """Numbers by the beginnings of patterns; those of patterns without one are found always.

    Args:
        patterns: A pattern for each number, of any JSON form; ``None``: any text.
    """

    def __init__(self, patterns: Sequence[object]) -> None:
        self._all = list(range(len(patterns)))
        self._always: list[int] = []
        by_length: dict[int, dict[str, list[int]]] = {}
        for number, pattern in enumerate(patterns):
            beginnings = beginnings_of(pattern)
            if beginnings is None:
                self._always.append(number)
                continue
            for each in beginnings:
                by_length.setdefault(len(each), {}).setdefault(each, []).append(number)
        self._by_length = sorted(by_length.items())

    def find(self, text: object, work: WorkBudget) -> list[int]:
        """The numbers, in order, of which the patterns may match a value; of others none does."""
        if isinstance(text, list):
            return self._all  # a pattern may take one of its elements
        if not isinstance(text, str):
            return self._always
        found = self._always
        for form in work.forms(text):
            for length, numbers in self._by_length:
                more = numbers.get(form[:length])
                if more is not None:
                    found = found + more
        # A pattern may have several beginnings.
        return found if found is self._always else sorted(set(found))


class ArgumentIndex:
    """Numbers of patterns of arguments, by the argument that most of them look at."""

    def __init__(self, patterns: Sequence[object]) -> None:
        keys: Counter[str] = Counter()
        for each in patterns:
            keys.update(
                key
                for key, value in as_object(each).items()
                if not is_path(key) and not is_glob(key) and beginnings_of(value) is not None
            )
        [(self._key, count)] = keys.most_common(1) or [("", 0)]
        self._plain = fold_text(self._key)
        self._index = None
        if count > FEW:
            self._index = BeginningIndex([as_object(each).get(self._key) for each in patterns])

    def find(self, arguments: dict[str, Any], work: WorkBudget) -> list[int] | None:
        """The numbers of the patterns that may match; ``None``: any may."""
        if self._index is None:
            return None
        for name in arguments:
            if name != self._key and work.plain_forms(name)[0] == self._plain:
                return None
        return self._index.find(arguments.get(self._key), work)


def beginnings_of(pattern: object) -> tuple[str, ...] | None:
    """Texts of which each match begins with one; ``None`` where nothing is known of that."""
    if isinstance(pattern, list | tuple):
        found: list[str] = []
        for each in cast("Sequence[object]", pattern):
            inner = beginnings_of(each)
            if inner is None:
                return None
            found += inner
        return tuple(found) or None
    if not isinstance(pattern, str) or pattern.startswith("!"):
        return None
    return plain_beginnings(pattern) or None
