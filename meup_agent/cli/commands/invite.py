"""``meup invite``: let somebody into the space."""

from __future__ import annotations

from typing import Annotated

import typer

from meup_agent.cli.address import Participant, Space, Token, TokenFile, Url, resolve_address
from meup_agent.cli.capability_arguments import Capabilities, Why, read_capabilities
from meup_agent.cli.command_session import CommandSession
from meup_agent.cli.options import Json, NoColour, Timeout, seconds
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.results import as_json_line


def invite(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Their name in the space.", show_default=False)
    ],
    capabilities: Capabilities = None,
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
    """Invite a participant; its token is written to standard output, once and nowhere else.

    A participant that was removed may come back by it. One of the gateway's configuration keeps its
    tokens, and nothing is written.

    Example: `MEUP_TOKEN=… meup invite guest chat mcp/proposal > guest.token`
    """
    where = resolve_address(url, space, token, token_file, participant)
    limit = seconds(timeout, "--timeout")
    given = read_capabilities(capabilities)

    async def act(session: CommandSession) -> None:
        made = await session.space.invite(name, given, reason=reason or "", timeout=limit)
        if as_json:
            document = {"participant": name, "token": made.token, "url": made.url}
            await session.output.write(as_json_line(document))
        elif made.token is not None:
            await session.output.write(f"{visible(made.token, 512)}\n")
        kept = "" if made.token else " again, with the token they have"
        session.stderr.note(f"{visible(name, 64)} may join{kept}")

    CommandSession(where, colour=not no_colour).run(act)
