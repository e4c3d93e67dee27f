"""One proposal: its whole chain."""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from anyio.lowlevel import checkpoint
from starlette.responses import Response

from meup_agent.gateway.auth import NOT_FOUND
from meup_agent.gateway.console.context import PageContext
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.console.templating import STEPS, key_of
from meup_agent.gateway.edge.handshake import is_seq
from meup_agent.gateway.edge.http.context import await_callback
from meup_agent.gateway.edge.http.views import FOLD_TURN, TRANSIT, current_proposals
from meup_agent.protocol.audit import Audit, AuditRecord, proposal_as_json
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.wire.payloads import without_meta
from meup_agent.wording import IGNORED, MEANINGS, state_name

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
        word=state_name(proposal.state, failed=proposal.has_failed),
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
