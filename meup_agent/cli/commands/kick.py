"""``meup kick``: remove somebody from the space."""

from __future__ import annotations

from typing import Annotated

import typer

from meup_agent.cli.address import Participant, Space, Token, TokenFile, Url, resolve_address
from meup_agent.cli.capability_arguments import Why
from meup_agent.cli.command_session import CommandSession
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
    where = resolve_address(url, space, token, token_file, participant)
    limit = seconds(timeout, "--timeout")

    async def act(session: CommandSession) -> None:
        await session.space.kick(name, reason=reason or "", timeout=limit)
        if as_json:
            await session.output.write(as_json_line({"participant": name}))
        session.stderr.note(f"{visible(name, 64)} is removed, and stays out until invited again")

    CommandSession(where, colour=not no_colour).run(act)
