"""The spaces of a gateway, by name."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime

from meup_agent.gateway.config import Config
from meup_agent.protocol.space.counters import Counters
from meup_agent.protocol.space.host import SpaceHost
from meup_agent.protocol.space.journal import Journal, MemoryJournal


class Hub:
    """Every space of a gateway.

    Args:
        config: The spaces and their participants.
        journal: Keeps what is accepted; in memory by default.
        new_id: Makes the ids of the gateway's own envelopes.
        now: Tells the time in UTC.

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
        now: Callable[[], datetime] | None = None,
    ) -> None:
        moment = now or _utc_now
        self.journal = journal or MemoryJournal(lambda: microseconds(moment()))
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
                clock=lambda: rfc3339(moment()),
                now=lambda: microseconds(moment()),
                counters=self.counters,
            )
            for space in config.spaces
        }

    def close(self, code: int, reason: str) -> None:
        """Close every member of every space."""
        for space in self.spaces.values():
            space.close(code, reason)


def _random_id() -> str:
    return secrets.token_hex(16)


def _utc_now() -> datetime:
    return datetime.now(UTC)


def microseconds(moment: datetime) -> int:
    """A time in microseconds since 1970 (UTC)."""
    return round(moment.timestamp() * 1_000_000)


def rfc3339(moment: datetime) -> str:
    """A time as it stands in ``ts``: UTC, in milliseconds."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
