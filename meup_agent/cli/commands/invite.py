"""``meup invite``: invite a participant into the space."""

from __future__ import annotations

from typing import Annotated

import typer

from meup_agent.cli.arguments import read_capabilities
from meup_agent.cli.command_session import CommandSession, JoinOptions
from meup_agent.cli.options import Capabilities, Why
from meup_agent.cli.render.escape import visible


def invite(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Their name in the space.", show_default=False)
    ],
    capabilities: Capabilities = None,
    reason: Why = None,
    *,
    join: JoinOptions,
) -> None:
    """Invite a participant; its token is written to standard output, once and nowhere else.

    A participant that was removed may come back by it. One of the gateway's configuration keeps its
    tokens, and nothing is written.

    Example: `MEUP_TOKEN=… meup invite guest chat mcp/proposal > guest.token`
    """
    limit = join.seconds
    given = read_capabilities(capabilities)

    async def act(session: CommandSession) -> None:
        made = await session.space.invite(name, given, reason=reason or "", timeout=limit)
        await session.print_json({"participant": name, "token": made.token, "url": made.url})
        if made.token is not None and not join.as_json:
            await session.output.write(f"{visible(made.token, 512)}\n")
        kept = "" if made.token else " again, with the token they have"
        session.stderr.note(f"{visible(name, 64)} may join{kept}")

    join.run(act)
