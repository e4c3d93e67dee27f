"""The history: what was decided and what expired; and one proposal, with its whole chain."""

from __future__ import annotations

import json
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import urlencode

from anyio.lowlevel import checkpoint
from starlette.responses import HTMLResponse, Response

from meup_agent.gateway.auth import NOT_FOUND
from meup_agent.gateway.console.context import PageContext, redirect
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.console.templating import STEPS, key_of
from meup_agent.gateway.edge.handshake import is_seq
from meup_agent.gateway.edge.http.context import Problem, await_callback
from meup_agent.gateway.edge.http.views import (
    FOLD_TURN,
    MAX_UNSEEN,
    OVER,
    TRANSIT,
    HistoryView,
    count_unseen,
    current_proposals,
    find_history,
    read_query,
)
from meup_agent.protocol.audit import Audit, AuditRecord, proposal_as_json
from meup_agent.protocol.space.journal import MAX_SEARCHED, DecisionRow, Entry
from meup_agent.protocol.wire.payloads import without_meta
from meup_agent.wording import IGNORED, MEANINGS, state_name

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


# --- one proposal ---

MAX_INDENTED: Final = 256 * 1024
"""Characters of an export up to which each value has a line."""


async def find_proposal(context: PageContext) -> AuditRecord:
    """The latest proposal of this space with the key in the path, or that with the number, too.

    Raises:
        RequestDenied: The space has none, or has forgotten it.
    """
    host, seq = context.space_server, context.request.query_params.get("seq", "")
    proposals = await current_proposals(host)
    for each in reversed(proposals.audit.proposals):
        if key_of(each.proposer, each.id) == context.key and seq in ("", str(each.first.seq)):
            return each
    # An older one is folded by itself, of what the journal keeps of it.
    if is_seq(seq):
        ask = partial(host.journal.find_chain, host.name, int(seq))
        entries: tuple[Entry, ...] = await await_callback(lambda tell: ask(then=tell))
        audit = Audit()
        for nth, entry in enumerate(entries, 1):
            audit.add(entry)
            if nth % FOLD_TURN == 0:
                await checkpoint()
        audit.pass_time(host.now() - TRANSIT)
        for each in audit.proposals:
            if each.first.seq == int(seq) and key_of(each.proposer, each.id) == context.key:
                return each
    raise RequestDenied(
        NOT_FOUND, "This space has no such proposal, or the gateway has forgotten it."
    )


async def show_proposal(context: PageContext) -> Response:
    """The page."""
    proposal = await find_proposal(context)
    call = proposal.call
    return context.page(
        "proposal.html",
        proposal=proposal,
        key=context.key,
        call=call,
        params=without_meta(call.params),
        states=MEANINGS,
        word=state_name(proposal.state, failed=proposal.has_failed, ran_anyway=proposal.ran_anyway),
        steps=STEPS,
        ignored=IGNORED,
        topics="space",
    )


async def export_proposal(context: PageContext) -> Response:
    """The chain as JSON, to keep."""
    document = proposal_as_json(await find_proposal(context), timeline=True)
    said = json.dumps(document)
    # With line ends it takes twenty times as long: of millions of values, seconds.
    if len(said) <= MAX_INDENTED:
        said = json.dumps(document, indent=2)
    disposition = f'attachment; filename="proposal-{context.key}.json"'
    return Response(
        said, media_type="application/json", headers={"Content-Disposition": disposition}
    )
