"""``meup kick``: remove somebody from the space."""

from __future__ import annotations

from typing import Annotated

import typer

from meup_agent.cli.address import Participant, Space, Token, TokenFile, Url, address
from meup_agent.cli.capability_arguments import Why
from meup_agent.cli.command_session import Visit
from meup_agent.cli.options import Json, NoColour, Timeout, seconds
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.results import as_json_line


def kick(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The participant.", show_default=False)
    ],
    reason: Why = None,
    url: Url = None,
    space: Space = None,
    token: Token = None,
    token_file: TokenFile = None,
    participant: Participant = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
    no_colour: NoColour = False,
) -> None:
    """Remove a participant, who stays out until they are invited again.

    What they were granted is revoked, and what they have in flight ends.

    Example: `MEUP_TOKEN=… meup kick guest --reason "it is late"`
    """
    where = address(url, space, token, token_file, participant)
    limit = seconds(timeout, "--timeout")

    async def act(visit: Visit) -> None:
        await visit.space.kick(name, reason=reason or "", timeout=limit)
        if as_json:
            await visit.output.write(as_json_line({"participant": name}))
        visit.notes.say(f"{visible(name, 64)} is removed, and stays out until invited again")

    Visit(where, colour=not no_colour).run(act)
