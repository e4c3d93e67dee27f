"""Calls that are decided together: the groups of a queue, what differs in them, and who stays out.

A group has the calls of one tool by one proposer. It stands where its most urgent call does, and
each of its rows tells the arguments that the others have otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from meup_agent.approval.inbox.item import Verb
from meup_agent.approval.inbox.listing import MAX_CALL_CHARS
from meup_agent.protocol.wire.payloads import is_same_json

if TYPE_CHECKING:
    from meup_agent.approval.inbox.item import InboxItem

MAX_TOGETHER: Final = 50
"""Calls that are shown at once, and decided together."""

MAX_DIFFERING: Final = 3
"""Arguments that a row tells."""

MAX_VALUE: Final = 60
"""Characters of a value in a row; the card has all of it."""


class QueueRow(NamedTuple):
    """A call in a queue.

    Attributes:
        item: The call.
        of: Calls of its group, at the first of them; 0 at the others.
        differs: The names and the beginnings of the values that the others have otherwise; of a
            call that is alone, its first ones.
        is_same: The others of its group have the same arguments.
    """

    item: InboxItem
    of: int
    differs: tuple[tuple[str, str], ...]
    is_same: bool = False


def group_of(item: InboxItem) -> tuple[str, ...]:
    """The tool and the proposer of a call: of those in one group they are the same."""
    return (item.proposer, item.client, item.target or "", item.method, item.tool)


def queue_rows(items: Sequence[InboxItem]) -> list[QueueRow]:
    """The rows of the calls at the head of a queue, those of a group one after the other."""
    groups: dict[tuple[str, ...], list[InboxItem]] = {}
    for each in items:
        groups.setdefault(group_of(each), []).append(each)
    return [row for group in groups.values() for row in _rows_of(group)]


def _rows_of(group: list[InboxItem]) -> Iterable[QueueRow]:
    # A large call is told by none of its arguments: it would be compared at each change.
    told = {each: None for each in group if len(each.envelope.raw_payload) <= MAX_CALL_CHARS}
    names = dict.fromkeys(name for each in told for name in each.arguments)
    differing = [name for name in names if _differs(name, [*told])]
    for place, each in enumerate(group):
        of = 0 if place else len(group)
        if each not in told:
            yield QueueRow(each, of, ())
            continue
        shown = [name for name in (differing if len(told) > 1 else names) if name in each.arguments]
        values = tuple((name, _beginning(each.arguments[name])) for name in shown[:MAX_DIFFERING])
        yield QueueRow(each, of, values, len(told) > 1 and not differing)


def _differs(name: str, group: list[InboxItem]) -> bool:
    first = group[0].arguments
    return any(
        name not in each.arguments
        or name not in first
        or not is_same_json(first[name], each.arguments[name])
        for each in group
    )


def _beginning(value: object) -> str:
    """The beginning of a value: a text as it is, anything else as JSON."""
    if not isinstance(value, str):
        # As much as is told of it: a list may have thousands of values.
        value = "".join(islice(_JSON.iterencode(value), MAX_VALUE))
    return value if len(value) <= MAX_VALUE else value[: MAX_VALUE - 2] + " …"


_JSON: Final = json.JSONEncoder(ensure_ascii=False)


def why_alone(item: InboxItem) -> str:
    """The reason for which a call is not approved together with others; empty: it is."""
    if Verb.VOTE in item.may:
        return "a rule counts votes about it"
    if Verb.APPROVE not in item.may:
        return "it cannot be approved here now"
    if item.danger:
        return f"it is marked as dangerous: {item.danger[0]}"
    if item.takes_word:
        return "its rule asks for a typed word"
    facts = item.tool_facts
    if facts is not None and facts.mark is not None:
        return "its tool has changed since it was accepted"
    return ""
