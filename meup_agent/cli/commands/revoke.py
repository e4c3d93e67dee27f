"""``meup revoke``: let somebody do less."""

from __future__ import annotations

from typing import Annotated

import typer

from meup_agent.cli import exit_codes
from meup_agent.cli.address import Participant, Space, Token, TokenFile, Url, resolve_address
from meup_agent.cli.capability_arguments import Capabilities, Why, read_capabilities
from meup_agent.cli.command_session import CommandSession
from meup_agent.cli.failures import Failure
from meup_agent.cli.options import Json, NoColour, Timeout, seconds
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.results import as_json_line


def revoke(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The participant.", show_default=False)
    ],
    capabilities: Capabilities = None,
    grant: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The grant to revoke, in place of capabilities."),
    ] = None,
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
    """Revoke a grant, or everything of a participant's that some capabilities cover.

    It takes effect at once: what the participant has in flight and may do no more ends, too.

    Example: `MEUP_TOKEN=… meup revoke proposer mcp/request --reason "that was enough"`
    """
    where = resolve_address(url, space, token, token_file, participant)
    limit = seconds(timeout, "--timeout")
    revoked = read_capabilities(capabilities)
    if bool(revoked) == (grant is not None):
        raise Failure("say what is revoked: either capabilities or --grant", exit_codes.USAGE)

    async def act(session: CommandSession) -> None:
        await session.space.revoke(name, revoked, grant=grant, reason=reason or "", timeout=limit)
        if as_json:
            what = {"grant": grant} if grant else {"capabilities": revoked}
            await session.output.write(as_json_line({"participant": name, **what}))
        session.stderr.note(f"{visible(name, 64)} may do less now")

    CommandSession(where, colour=not no_colour).run(act)
