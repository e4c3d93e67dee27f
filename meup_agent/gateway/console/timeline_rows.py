"""Rows of the timeline, and their folds: a line of thought, or a stream, is one, its parts inside.

By itself, since the page and the feed that renews it fold alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from meup_agent.gateway.console.template_environment import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable


class TimelineRow(NamedTuple):
    """One envelope, in words and as an arrow."""

    seq: int
    at: float  # seconds since 1970 (UTC)
    kind: str
    tone: str  # the class of its colour
    sender: str
    to: tuple[str, ...]
    verb: str
    words: str
    thread: str  # the key of the proposal that it belongs to; empty: none
    state: str  # the state that this proposal has now; empty: it is not known
    group: str  # the line of thought, or the stream, that it is folded into; empty: none
    begin: float  # the place of its sender, in percent
    ends: tuple[float, ...]  # the places of its addressees; empty: to all


class FoldedRow(NamedTuple):
    """A row of the timeline as it stands there."""

    lead: TimelineRow  # the newest
    key: str  # of the line of thought, or the stream; empty: it is a row by itself
    parts: list[TimelineRow]  # all of them, the newest first; none of a row by itself


def fold_rows(rows: Iterable[TimelineRow]) -> list[FoldedRow]:
    """Fold rows that come the newest first: a fold stands where its newest part does."""
    folded: list[FoldedRow] = []
    by_group: dict[str, FoldedRow] = {}
    for row in rows:
        if not row.group:
            folded.append(FoldedRow(row, "", []))
        elif row.group in by_group:
            by_group[row.group].parts.append(row)
        else:
            fold = by_group[row.group] = FoldedRow(row, key_of("group", row.group), [row])
            folded.append(fold)
    return folded
