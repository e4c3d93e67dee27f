"""The timeline of a space, and the envelopes in it."""

from __future__ import annotations

import json

from starlette.responses import Response

from meup_agent.gateway.admission import NOT_FOUND
from meup_agent.gateway.console.context import PageContext
from meup_agent.gateway.console.guard import Denied
from meup_agent.gateway.console.rendering import key_of, pretty
from meup_agent.gateway.console.timeline import PAGE_ROWS
from meup_agent.gateway.edge.http.context import read_journal
from meup_agent.gateway.edge.http.messages import is_seq
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.server import SpaceServer

TONES = ("proposal", "request", "response", "reject", "withdraw", "cancel", "chat", "system")
"""Kinds that the timeline can be filtered by."""


async def show_timeline(context: PageContext) -> Response:
    """The newest rows, newest first, or those before a number."""
    query, host = context.request.query_params, context.host
    feed = context.site.feeds.of(host.name)
    said = query.get("before", "")
    before = int(said) if is_seq(said) else host.fanout.delivered + 1
    entries = await newest_before(host, before)
    feed.note_speakers(entries)
    rows = [feed.row(entry) for entry in entries]
    floor = host.journal.floor(host.name)
    older = entries[0].seq if entries and entries[0].seq > floor + 1 else None
    values = {
        "rows": rows[::-1],
        "columns": feed.columns.names,
        "places": feed.columns.places,
        "older": older,
        "tones": TONES,
        "topics": "space",
    }
    if query.get("part") == "rows":
        return context.page("timeline_more.html", **values)
    return context.page("timeline.html", **values)


async def newest_before(host: SpaceServer, before: int) -> list[Entry]:
    """A page of entries before a number, oldest first.

    Numbers are shared by the spaces of a gateway, so that a stretch of them may have few entries.
    """
    found: list[Entry] = []
    floor, step = host.journal.floor(host.name), PAGE_ROWS
    upper = before - 1
    while len(found) < PAGE_ROWS and upper > floor:
        lower = max(floor, upper - step)
        page = list(await read_journal(host, after=lower, until=upper, limit=step))
        found = [*page, *found]
        upper, step = lower, min(step * 2, 10_000)
    return found[-PAGE_ROWS:]


async def show_envelope(context: PageContext) -> Response:
    """One envelope, whole."""
    seq: int = context.request.path_params["seq"]
    host = context.host
    page = await read_journal(host, after=seq - 1, until=seq, limit=1) if seq > 0 else ()
    if not page or page[0].seq != seq:
        raise Denied(NOT_FOUND, "The journal of this space has no such envelope, or not any more.")
    entry = page[0]
    feed = context.site.feeds.of(host.name)
    proposer, proposal = feed.threads.of(entry.envelope)
    envelope = entry.envelope
    try:
        text = pretty(json.loads(envelope.raw_payload))
    except (ValueError, RecursionError):
        text = repr(envelope.raw_payload[:2_000])
    return context.page(
        "envelope.html",
        entry=entry,
        envelope=envelope,
        payload=text,
        thread=key_of(proposer, proposal) if proposal else "",
        topics="",
    )
