"""The timeline of a space, and the envelopes in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlencode

from starlette.responses import Response

from meup_agent.gateway.auth import NOT_FOUND
from meup_agent.gateway.console.context import PageContext
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.console.templating import KEY_CHARS, json_lines, key_of, lines
from meup_agent.gateway.console.timeline import (
    OTHERS,
    PAGE_ROWS,
    SpaceFeed,
    ThreadIndex,
    TimelineRow,
    fold_rows,
    learn_before,
    newest_before,
)
from meup_agent.gateway.edge.handshake import is_seq
from meup_agent.gateway.edge.http.context import read_journal
from meup_agent.gateway.edge.http.views import current_proposals
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.space.owner import SpaceServer
from meup_agent.protocol.space.state.rules import MAX_ID_CHARS
from meup_agent.wording import MEANINGS

TONES = ("proposal", "request", "response", "progress", "error", "reject", "withdraw", "cancel",
         "chat", "reasoning", "stream", "system", "other")  # fmt: skip
"""Kinds that the timeline can be filtered by."""

MAX_SCANNED: Final = 2_000
"""Envelopes that are looked through for one page of filtered rows; then one asks for more."""


MAX_KEPT_ROWS: Final = 500
"""Rows of a page that is drawn anew with the older ones that a browser had loaded."""


class RowFilter(NamedTuple):
    """The rows that a timeline shows; empty: whatever there is."""

    participant: str = ""
    tone: str = ""
    state: str = ""
    thread: str = ""  # the key of one proposal

    def passes(self, row: TimelineRow) -> bool:
        """True if a row is shown."""
        return (
            (not self.participant or self.participant in (row.sender, *row.to))
            and self.tone in ("", row.tone)
            and self.state in ("", row.state)
            and self.thread in ("", row.thread)
        )

    @property
    def query(self) -> str:
        """The filter as the query of an address."""
        return urlencode({name: value for name, value in self._asdict().items() if value})


def read_filter(query: Mapping[str, str]) -> RowFilter:
    """The filter of an address; a part that names nothing shows everything."""
    tone, state, thread = query.get("tone", ""), query.get("state", ""), query.get("thread", "")
    return RowFilter(
        query.get("participant", "")[:MAX_ID_CHARS],
        tone if tone in TONES else "",
        state if state in {each.value for each in ProposalState} else "",
        thread if len(thread) == KEY_CHARS and thread.isalnum() and thread.isascii() else "",
    )


async def show_timeline(context: PageContext) -> Response:
    """The newest rows, newest first, or those before a number."""
    query, host = context.request.query_params, context.space_server
    feed = context.feed
    said = query.get("before", "")
    shown = read_filter(query)
    before = int(said) if is_seq(said) else None
    kept = query.get("kept", "")
    rows, older = await find_rows(host, feed, shown, before, int(kept) if is_seq(kept) else None)
    return context.page(
        "timeline_more.html" if query.get("part") == "rows" else "timeline.html",
        folds=fold_rows(reversed(rows)),
        columns=feed.columns.names,
        names=sorted({*host.owner.grants, *feed.columns.names} - {OTHERS}),
        places=feed.columns.places,
        older=older,
        filter=shown,
        tones=TONES,
        states={each.value: words for each, words in MEANINGS.items()},
        most=MAX_SCANNED,
        topics="space",
    )


async def find_rows(
    host: SpaceServer,
    feed: SpaceFeed,
    shown: RowFilter,
    before: int | None,
    kept: int | None = None,
) -> tuple[list[TimelineRow], int | None]:
    """A page of rows, oldest first, and the number before which there may be more.

    A browser that has loaded older ones already is given all from the number ``kept`` on, as far
    as one page looks through.
    """
    await current_proposals(host)
    threads = feed.threads if before is None else ThreadIndex(feed.threads)
    upper = host.fanout.delivered + 1 if before is None else before
    rows: list[TimelineRow] = []
    scanned = 0
    again = upper if kept is None else kept
    while (
        len(rows) < PAGE_ROWS or (upper > again and len(rows) < MAX_KEPT_ROWS)
    ) and scanned < MAX_SCANNED:
        entries = await newest_before(host, upper)
        if not entries:
            return rows, None
        await learn_before(host, threads, entries)
        feed.note_speakers(entries)
        page = [feed.row(entry, threads) for entry in entries]
        # Filtered after all are made: a row that is not shown may begin the thread of one that is.
        rows = [*filter(shown.passes, page), *rows]
        scanned, upper = scanned + len(entries), entries[0].seq
    most = max(PAGE_ROWS, min(MAX_KEPT_ROWS, sum(each.seq >= again for each in rows)))
    if len(rows) > most:
        rows = rows[-most:]
        upper = rows[0].seq
    return rows, upper if upper > host.journal.floor(host.name) + 1 else None


async def show_envelope(context: PageContext) -> Response:
    """One envelope, whole."""
    seq: int = context.request.path_params["seq"]
    host = context.space_server
    page = await read_journal(host, after=seq - 1, until=seq, limit=1) if seq > 0 else ()
    if not page or page[0].seq != seq:
        raise RequestDenied(
            NOT_FOUND, "The journal of this space has no such envelope, or not any more."
        )
    entry = page[0]
    envelope = entry.envelope
    threads = ThreadIndex(context.feed.threads)
    await learn_before(host, threads, list(page))
    proposer, proposal, _ = threads.of(envelope)
    try:
        text = json_lines(json.loads(envelope.raw_payload))
    except (ValueError, RecursionError):
        text = lines(repr(envelope.raw_payload[:2_000]))
    return context.page(
        "envelope.html",
        entry=entry,
        envelope=envelope,
        payload=text,
        thread=key_of(proposer, proposal) if proposal else "",
    )
