"""The gateway's log: one line for each event of a connection, and never a token."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meup_agent.protocol.space.fanout import Member
    from meup_agent.protocol.space.server import SpaceServer

log: Final = logging.getLogger("meup_agent.gateway")

MAX_SHOWN_CHARS: Final = 80
"""Characters of a stranger's text in the log."""


def shown(text: str) -> str:
    """A stranger's text as it may stand in a log: quoted, escaped and cut."""
    cut = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
    return ascii(cut)


def joined_from(member: Member, host: SpaceServer, where: str) -> str:
    """The line about a connection that is about to join or to observe its space.

    Args:
        member: The connection.
        host: The space.
        where: Where it came from.
    """
    if member.observes:
        return f"observes from {where}"
    replaces = " in place of an older connection" if host.member(member.participant) else ""
    return f"joined from {where}{replaces}"
