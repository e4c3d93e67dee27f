"""A gateway for trying things out: four participants, one for each role."""

from __future__ import annotations

from typing import Any, Final

from meup_agent.gateway.config import Config
from meup_agent.gateway.embedded_config import embedded_config, first_token

ROLES: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    # May not call a tool, so it proposes; may ask what tools there are.
    "proposer": (
        {"kind": "mcp/proposal"},
        {"kind": "mcp/withdraw"},
        {"kind": "mcp/request", "payload": {"method": "initialize"}},
        {"kind": "mcp/request", "payload": {"method": "ping"}},
        {"kind": "mcp/request", "payload": {"method": "*/list"}},
        {"kind": "chat"},
    ),
    # Reviews proposals, and carries out what it approves by requests of its own.
    "fulfiller": (
        {"kind": "mcp/request"},
        {"kind": "mcp/response"},
        {"kind": "mcp/reject"},
        {"kind": "mcp/proposal"},
        {"kind": "mcp/withdraw"},
        {"kind": "chat"},
    ),
    # Answers requests, which needs no capability, and may say something about it.
    "tools": ({"kind": "mcp/response"}, {"kind": "chat"}),
    # Sees everything and says nothing.
    "observer": (),
}
"""The participants of a ``--dev`` gateway, with the capabilities that each role needs."""


def dev_config(space: str = "demo") -> tuple[Config, dict[str, str]]:
    """A configuration with the participants of :data:`ROLES` and new tokens.

    Args:
        space: The id of its one space.

    Returns:
        The configuration, and each participant's token.
    """
    config = embedded_config(space, ROLES)
    return config, {name: first_token(config, name) for name in ROLES}
