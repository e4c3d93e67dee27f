"""Configurations without a file: one space for a program, and one to try things out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from meup_agent.gateway.auth import new_token
from meup_agent.gateway.config import Config, SpaceConfig, participant
from meup_agent.gateway.limits import GatewayLimits

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
        {"kind": "participant/request-status"},
    ),
    # Answers requests, which needs no capability, and may show its work and say something about it.
    "tools": (
        {"kind": "mcp/response"},
        {"kind": "chat"},
        {"kind": "reasoning/*"},
        {"kind": "stream/*"},
    ),
    # Sees everything and says nothing.
    "observer": (),
}
"""The four roles, with the capabilities that each needs."""

GUESTS: Final = ("guest1", "guest2", "guest3")
"""Participants for the user's own agents: they may do what the proposer may."""

PARTICIPANTS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    **ROLES,
    # No participant can grant what it lacks, so the administrator may do everything.
    "admin": ({"kind": "*"},),
    **dict.fromkeys(GUESTS, ROLES["proposer"]),
}
"""The participants of a ``--dev`` gateway, with their capabilities."""


Participants = Mapping[str, Iterable[Mapping[str, Any]]]
"""Capabilities by participant."""


def one_space_config(
    space: str,
    participants: Participants,
    limits: GatewayLimits | None = None,
    *,
    tokens: Mapping[str, str] | None = None,
) -> Config:
    """A configuration of one space; a participant without a token in ``tokens`` gets a new one."""
    known = tokens or {}
    entries = {
        name: participant(name, capabilities, (known.get(name) or new_token(),))
        for name, capabilities in participants.items()
    }
    return Config((SpaceConfig(space, entries),), limits=limits or GatewayLimits())


def dev_config(tokens: Mapping[str, str] | None = None, space: str = DEV_SPACE) -> Config:
    """A configuration with :data:`PARTICIPANTS`; see :func:`one_space_config`."""
    return one_space_config(space, PARTICIPANTS, tokens=tokens)


def first_token(config: Config, participant_id: str, space: str | None = None) -> str:
    """The first token of a participant; a :exc:`KeyError` where it has none."""
    found = config.spaces[0] if space is None else config.space(space)
    entry = found.participants.get(participant_id) if found else None
    if entry is None or not entry.tokens:
        raise KeyError(f"no token of {participant_id!r}; name a participant of the gateway")
    return entry.tokens[0]
