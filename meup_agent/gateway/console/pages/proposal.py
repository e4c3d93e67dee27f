"""One proposal: its whole chain."""

from __future__ import annotations

import json
from typing import Final

from starlette.responses import Response

from meup_agent.gateway.auth import NOT_FOUND
from meup_agent.gateway.console.context import PageContext
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.console.templating import STEPS, key_of
from meup_agent.gateway.edge.http.views import current_proposals
from meup_agent.protocol.audit import AuditRecord, proposal_as_json
from meup_agent.protocol.wire.payloads import without_meta
from meup_agent.wording import IGNORED, MEANINGS

MAX_INDENTED: Final = 256 * 1024
"""Characters of an export up to which each value has a line."""


async def find_proposal(context: PageContext) -> AuditRecord:
    """The latest proposal of this space with the key in the path.

    Raises:
        RequestDenied: The space has none, or has forgotten it.
    """
    proposals = await current_proposals(context.space_server)
    for each in reversed(proposals.audit.proposals):
        if key_of(each.proposer, each.id) == context.key:
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
