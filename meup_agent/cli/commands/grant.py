"""``meup grant``: grant capabilities to a participant."""

from __future__ import annotations

from typing import Annotated

import typer

from meup_agent.cli import exit_codes
from meup_agent.cli.arguments import read_capabilities
from meup_agent.cli.command_session import CommandSession, JoinOptions
from meup_agent.cli.failures import Failure
from meup_agent.cli.options import Capabilities, Why
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.results import as_json_line


def grant(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The participant; it may be away.", show_default=False),
    ],
    capabilities: Capabilities = None,
    reason: Why = None,
    *,
    join: JoinOptions,
) -> None:
    """Grant capabilities to a participant, at once; the grant's id is written to standard output.

    You can grant only what you may send yourself. The command joins with the token, and takes over
    the connection of an agent that runs with the same token.

    Example: `MEUP_TOKEN=… meup grant proposer mcp/request --reason "knows the way"`
    """
    limit = join.seconds
    given = read_capabilities(capabilities)
    if not given:
        raise Failure("nothing is granted; name a capability, such as chat", exit_codes.USAGE)

    async def act(session: CommandSession) -> None:
        made = await session.space.grant(name, given, reason=reason or "", timeout=limit)
        document = {"grant": made.id, "participant": name, "capabilities": given}
        await session.output.write(as_json_line(document) if join.as_json else f"{made.id}\n")
        session.stderr.note(f"{visible(name, 64)} may do more now")

    join.run(act)
