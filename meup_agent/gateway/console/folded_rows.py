"""Folded rows: a line of thought, or a stream, is one row of the timeline, its parts inside.

By itself, since the page and the feed that renews it fold alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from meup_agent.gateway.console.template_environment import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.gateway.console.timeline import TimelineRow


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
