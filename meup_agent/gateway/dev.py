"""A gateway to try things out: a participant for each role, an administrator and free seats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from meup_agent.gateway.auth import new_token
from meup_agent.gateway.config import Config, SpaceConfig, participant

DEV_SPACE: Final = "demo"
"""The id of the one space."""

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
"""The four roles, with the capabilities that each needs."""

FREE_SEATS: Final = ("guest1", "guest2", "guest3")
"""Participants for the user's own agents: they may do what the proposer may."""

PARTICIPANTS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    **ROLES,
    # Nobody can grant what they lack, so the administrator may do everything.
    "admin": ({"kind": "*"},),
    **dict.fromkeys(FREE_SEATS, ROLES["proposer"]),
}
"""The participants of a ``--dev`` gateway, with their capabilities."""


def dev_config(tokens: Mapping[str, str] | None = None, space: str = DEV_SPACE) -> Config:
    """A configuration with the participants of :data:`PARTICIPANTS`.

    Args:
        tokens: The token of each participant; one that is not in it gets a new token.
        space: The id of its one space.
    """
    known = tokens or {}
    entries = {
        name: participant(name, capabilities, (known.get(name) or new_token(),))
        for name, capabilities in PARTICIPANTS.items()
    }
    return Config((SpaceConfig(space, entries),))
