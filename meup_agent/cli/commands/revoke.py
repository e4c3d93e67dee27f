"""``meup revoke``: revoke a grant, or the capabilities of a participant."""

from __future__ import annotations

from typing import Annotated

import typer

from meup_agent.cli import exit_codes
from meup_agent.cli.arguments import read_capabilities
from meup_agent.cli.command_session import CommandSession, JoinOptions
from meup_agent.cli.failures import Failure
from meup_agent.cli.options import Capabilities, Name, Why
from meup_agent.cli.render.escape import visible


def revoke(
    name: Name,
    capabilities: Capabilities = None,
    grant: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The grant to revoke, in place of capabilities."),
    ] = None,
    reason: Why = None,
    *,
    join: JoinOptions,
) -> None:
    """Revoke a grant, or everything of a participant's that some capabilities cover.

    It takes effect at once: what the participant has in flight and may do no more ends, too.

    Example: `MEUP_TOKEN=… meup revoke proposer mcp/request --reason "that was enough"`
    """
    limit = join.seconds
    revoked = read_capabilities(capabilities)
    if bool(revoked) == (grant is not None):
        raise Failure("say what is revoked: either capabilities or --grant", exit_codes.USAGE)

    async def act(session: CommandSession) -> None:
        await session.space.revoke(name, revoked, grant=grant, reason=reason or "", timeout=limit)
        what = {"grant": grant} if grant else {"capabilities": revoked}
        await session.print_json({"participant": name, **what})
        session.stderr.note(f"{visible(name, 64)} may do less now")

    join.run(act)
