"""``meup kick``: remove a participant from the space."""

from __future__ import annotations

from meup_agent.cli.command_session import CommandSession, JoinOptions
from meup_agent.cli.options import Name, Why
from meup_agent.cli.render.escape import visible


def kick(name: Name, reason: Why = None, *, join: JoinOptions) -> None:
    """Remove a participant, who stays out until they are invited again.

    What they were granted is revoked, and what they have in flight ends.

    Example: `MEUP_TOKEN=… meup kick guest --reason "it is late"`
    """
    limit = join.seconds

    async def act(session: CommandSession) -> None:
        await session.space.kick(name, reason=reason or "", timeout=limit)
        await session.print_json({"participant": name})
        session.stderr.note(f"{visible(name, 64)} is removed, and stays out until invited again")

    join.run(act)
