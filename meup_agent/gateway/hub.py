"""The spaces of a gateway, by name."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from meup_agent.gateway.auth import Identity
from meup_agent.gateway.config import Config
from meup_agent.protocol.dialects import DEFAULT_DIALECT, spoken
from meup_agent.protocol.space.counters import Counters
from meup_agent.protocol.space.host import SpaceHost
from meup_agent.protocol.space.journal import Journal, MemoryJournal


def wall_clock() -> int:
    """The time in microseconds since 1970 (UTC)."""
    return time.time_ns() // 1_000


class Hub:
    """Every space of a gateway.

    Args:
        config: The spaces and their participants.
        journal: Keeps what is accepted; in memory by default.
        new_id: Makes the ids of the gateway's own envelopes.
        now: Tells the time in microseconds since 1970 (UTC).

    Attributes:
        journal: What was accepted.
        counters: What has happened, over all spaces.
        tokens: Whose each token is.
        spaces: The spaces by id.

    Raises:
        ConfigurationError: Two participants have the same token.
    """

    def __init__(
        self,
        config: Config,
        *,
        journal: Journal | None = None,
        new_id: Callable[[], str] | None = None,
        now: Callable[[], int] = wall_clock,
    ) -> None:
        kept = config.journal
        self.journal = journal or MemoryJournal(
            now, max_entries=kept.memory_entries, max_bytes=kept.memory_bytes
        )
        self._config = config
        self.counters = Counters()
        self.tokens = config.tokens()
        self.spaces = {
            space.id: SpaceHost(
                space.id,
                participants={
                    participant_id: participant.capabilities
                    for participant_id, participant in space.participants.items()
                },
                journal=self.journal,
                new_id=new_id or _random_id,
                now=now,
                counters=self.counters,
            )
            for space in config.spaces
        }

    def dialect(self, identity: Identity) -> str:
        """The dialect of somebody who does not say which it speaks (PROTOCOL 1)."""
        space = self._config.space(identity.space)
        participant = space.participants.get(identity.participant) if space else None
        configured = (participant and participant.dialect) or (space and space.dialect)
        return spoken(configured or DEFAULT_DIALECT) or DEFAULT_DIALECT

    def close(self, code: int, reason: str) -> None:
        """Close every member of every space."""
        for space in self.spaces.values():
            space.close(code, reason)


def _random_id() -> str:
    return secrets.token_hex(16)
