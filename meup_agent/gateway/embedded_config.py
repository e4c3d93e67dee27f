"""A configuration made by a program, not read from a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meup_agent.gateway.auth import new_token
from meup_agent.gateway.config import Config, Limits, SpaceConfig, participant

Participants = Mapping[str, Iterable[Mapping[str, Any]]]
"""Capabilities by participant."""


def embedded_config(space: str, participants: Participants, limits: Limits | None = None) -> Config:
    """A configuration of one space, with a random token for each participant."""
    entries = {
        name: participant(name, capabilities, (new_token(),))
        for name, capabilities in participants.items()
    }
    return Config((SpaceConfig(space, entries),), limits=limits or Limits())


def first_token(config: Config, participant_id: str, space: str | None = None) -> str:
    """The first token of a participant.

    Raises:
        KeyError: There is no such participant, or it has no token.
    """
    found = config.spaces[0] if space is None else config.space(space)
    entry = found.participants.get(participant_id) if found else None
    if entry is None or not entry.tokens:
        raise KeyError(f"no token of {participant_id!r}; name a participant of the gateway")
    return entry.tokens[0]
