"""What a client says of itself, and how long it waits for an answer.

A label names the program at the other end, for people; the participant is the token's. Clients end
a call by themselves after a time that they do not tell, so it is known from their names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from meup_agent.mcp.sdk.tasks import TaskSession
from meup_agent.protocol.wire.payloads import MAX_LABEL_CHARS

if TYPE_CHECKING:
    from meup_agent.mcp.server.catalog import Ctx
    from meup_agent.protocol.wire.payloads import JsonObject

ANSWER_MARGIN: Final = 10.0
"""Seconds before its client's limit at which a call that still waits is answered."""

USUAL_LIMIT: Final = 60.0
"""Seconds that most clients wait: the default of the SDK for TypeScript."""

MIN_ANSWER_SECONDS: Final = 1.0


class ClientLabel(NamedTuple):
    """The name and the version that a client gives at its handshake; empty where it gives none."""

    name: str = ""
    version: str = ""

    @classmethod
    def of(cls, ctx: Ctx) -> ClientLabel:
        """The label of the client of a request, as it is with this request."""
        params = ctx.session.client_params
        if params is None:
            return cls()
        said = params.client_info
        return cls(said.name[:MAX_LABEL_CHARS], said.version[:MAX_LABEL_CHARS])

    def wire(self) -> JsonObject:
        """The label as a proposal has it."""
        return {"name": self.name, "version": self.version}


class KnownClient(NamedTuple):
    """A client whose limit is not the usual one."""

    name: str
    since: tuple[int, ...]  # the first version that this is true of; empty: any
    limit: float | None  # seconds; ``None``: it waits for hours, or as long as it takes
    about: str


KNOWN_CLIENTS: Final = (
    KnownClient("claude-code", (1,), None, "Claude Code: `MCP_TOOL_TIMEOUT`, by default a day"),
    KnownClient("gemini-cli-mcp-client", (), 600.0, "Gemini CLI: `timeout` of the server's entry"),
    KnownClient(
        "mcp", (), None, "the SDK for Python and FastMCP, if a program gives no other name"
    ),
)
"""The clients that are known to wait longer, by the names that they give."""


def limit_of(label: ClientLabel) -> float | None:
    """Seconds after which a client gives a call up; ``None``: not before a person can decide."""
    for known in KNOWN_CLIENTS:
        if label.name == known.name and _version(label.version) >= known.since:
            return known.limit
    return USUAL_LIMIT


def _version(said: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", said)[:3])


def answer_seconds(ctx: Ctx, given: float | None) -> float | None:
    """Seconds until a call that still waits is answered; ``None``: it waits as long as it takes.

    Args:
        ctx: The call's request. One that is a task is polled, and has no limit.
        given: The seconds that are configured for every client; 0: never; ``None``: by the client.
    """
    if isinstance(ctx.session, TaskSession):
        return None
    if given is not None:
        return given or None
    limit = limit_of(ClientLabel.of(ctx))
    return None if limit is None else max(limit - ANSWER_MARGIN, MIN_ANSWER_SECONDS)
