"""``meup withdraw``: take a proposal back, beside the agent that proposed it."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from meup_agent.cli.address import As, Http, Space, Token, TokenFile, http_address
from meup_agent.cli.command_session import CommandSession, send_confirmed
from meup_agent.cli.options import Json, NoColour, complete_reason
from meup_agent.cli.proposal_lookup import pending_proposal
from meup_agent.cli.render.escape import visible
from meup_agent.protocol import kinds
from meup_agent.protocol.payloads import as_object
from meup_agent.reasons import Reason

_REASONS = ", ".join(Reason)


def withdraw(
    proposal: Annotated[
        str,
        typer.Argument(
            metavar="PROPOSAL", help="The proposal's id, or its beginning.", show_default=False
        ),
    ],
    reason: Annotated[
        str,
        typer.Argument(
            metavar="[REASON]", help=f"Why: {_REASONS}.", autocompletion=complete_reason
        ),
    ] = Reason.NO_LONGER_NEEDED,
    act_as: As = None,
    http: Http = None,
    space: Space = None,
    token: Token = None,
    token_file: TokenFile = None,
    as_json: Json = False,
    no_colour: NoColour = False,
) -> None:
    """Withdraw a proposal of the participant whose token you have.

    It is said over HTTP, so an agent that runs with this token keeps its connection, and learns
    that its proposal was withdrawn.

    Example: `MEUP_TOKEN=… meup withdraw 0c9f2c62a4ce --http http://localhost:8421`
    """
    where = http_address(http, space, token, token_file, act_as)

    async def act(session: CommandSession) -> None:
        record = await pending_proposal(
            session.api, proposal, proposer=session.space.me, in_progress=True
        )
        whole = str(record["id"])
        send = partial(
            session.space.send,
            kinds.MCP_WITHDRAW,
            {"reason": reason},
            to=tuple(map(str, record.get("to") or ())),
            correlation=whole,
        )
        withdrawal, _ = await send_confirmed(session.space, "the withdrawal", send)
        [now] = [
            each
            for each in await session.api.proposals(whole)
            if each.get("seq") == record.get("seq")
        ] or [record]
        state = str(now.get("state"))
        session.stderr.note(
            f"proposal {whole} is withdrawn"
            if state == "withdrawn"
            else f"the withdrawal of {whole} came too late: it is {visible(state, 64)},"
            f" by {visible(str(as_object(now.get('decision')).get('by')), 64)}"
        )
        await session.print_json({"withdrawal": withdrawal, "proposal": whole, "state": state})

    CommandSession(where, colour=not no_colour, as_json=as_json).run(act)
