"""The spaces of a gateway, by name, and what their members may."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime

from meup_agent.gateway.auth import Identity
from meup_agent.gateway.config import Config
from meup_agent.protocol.capability import Capabilities
from meup_agent.protocol.space.counters import Counters
from meup_agent.protocol.space.host import SpaceHost


class Hub:
    """Every space of a gateway.

    Args:
        config: The spaces and their participants.
        pack: Makes of a frame what members take (see :class:`SpaceHost`).
        new_id: Makes the ids of the gateway's own envelopes.
        clock: Tells the time as it stands in ``ts``.

    Attributes:
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
        pack: Callable[[bytes], bytes] = bytes,
        new_id: Callable[[], str] | None = None,
        clock: Callable[[], str] | None = None,
    ) -> None:
        self.counters = Counters()
        self.tokens = config.tokens()
        self.spaces = {
            space.id: SpaceHost(
                space.id,
                new_id=new_id or _random_id,
                clock=clock or _now,
                counters=self.counters,
                pack=pack,
            )
            for space in config.spaces
        }
        self._capabilities = {
            Identity(space.id, participant_id): participant.capabilities
            for space in config.spaces
            for participant_id, participant in space.participants.items()
        }

    def capabilities(self, identity: Identity) -> Capabilities:
        """What somebody may send in the space that their token is for."""
        return self._capabilities[identity]

    def close(self, code: int, reason: str) -> None:
        """Close every member of every space."""
        for space in self.spaces.values():
            space.close(code, reason)


def _random_id() -> str:
    return secrets.token_hex(16)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
