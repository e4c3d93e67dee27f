"""The history: what was decided and what expired, from the journal's table of decisions."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlencode

from starlette.responses import HTMLResponse, Response

from meup_agent.gateway.console.context import PageContext, redirect
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.console.templating import key_of
from meup_agent.gateway.edge.http.context import Problem
from meup_agent.gateway.edge.http.history import (
    MAX_UNSEEN,
    OVER,
    HistoryView,
    count_unseen,
    find_history,
    read_query,
)
from meup_agent.protocol.space.decisions import MAX_SEARCHED, DecisionRow

PAGE_ROWS: Final = 50
"""Decisions of a page."""

COLUMNS: Final = (
    ("when", "When"),
    ("tool", "Tool"),
    ("proposer", "Proposed by"),
    ("state", "State"),
    ("by", "Decided by"),
    ("rule", "Rule"),
    ("waited", "Waited"),
)
"""Columns, each with the name by which it is sorted."""

_KEPT: Final = ("search", "state", "tool", "proposer", "by", "sort")
# The parameters of a page that the next one has, too.


class Column(NamedTuple):
    """The head of a column: a link that sorts by it."""

    words: str
    query: str
    order: str  # as ``aria-sort`` says it; empty: the table is not sorted by it


async def show_history(context: PageContext) -> Response:
    """The page."""
    host, given = context.space_server, context.request.query_params
    try:
        query = read_query(host, given, PAGE_ROWS)
    except Problem as problem:
        raise RequestDenied(problem.status, f"The address means nothing: {problem}.") from None
    history = await find_history(host, context.identity.participant, query)
    kept = {name: given[name] for name in _KEPT if given.get(name)}
    following = history.following
    return context.page(
        "history.html",
        history=history,
        rows=[(key_of(row.proposer, row.id), row) for row in history.page.rows],
        columns=[_column(*each, history, kept) for each in COLUMNS],
        kept=kept,
        states=OVER,
        following=urlencode(kept | following) if following else "",
        unseen=unseen_words(history.unseen),
        # Then they are seen when the page is.
        shows_all_unseen=sum(map(history.is_unseen, history.page.rows)) == history.unseen,
        is_filtered=bool(kept.keys() - {"sort"}),
        ended=_ended,
        most=MAX_SEARCHED,
        topics="inbox",
    )


def _column(name: str, words: str, history: HistoryView, kept: dict[str, str]) -> Column:
    query = history.query
    if query.sort != name:
        # Times begin with the latest and the longest, names with the first.
        sort, order = f"-{name}" if name in ("when", "waited") else name, ""
    else:
        order = "ascending" if query.ascending else "descending"
        sort = f"-{name}" if query.ascending else name
    return Column(words, urlencode(kept | {"sort": sort}), order)


def _ended(row: DecisionRow) -> float:
    """The time at which a proposal ended, in seconds since 1970 (UTC)."""
    return (row.ends_at or row.proposed_at) / 1_000_000


def unseen_words(count: int) -> str:
    """A number of expiries; empty: none."""
    return f"{MAX_UNSEEN - 1}+" if count >= MAX_UNSEEN else str(count or "")


async def show_unseen(context: PageContext) -> Response:
    """The number of expiries that were not seen, for the link to the page."""
    count = await count_unseen(context.space_server, context.identity.participant)
    return HTMLResponse(unseen_words(count))


async def mark_seen(context: PageContext) -> Response:
    """Mark as seen what had expired when the page was made."""
    host, until = context.space_server, context.typed("until")
    at = int(until[:20]) if until.isascii() and until.isdigit() else host.now()
    host.journal.mark_seen(host.name, context.identity.participant, min(at, host.now()))
    return redirect(context, "/history")
