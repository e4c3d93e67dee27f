"""What ``meup doctor`` finds: its checks, and everything that they tell of a gateway."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from meup_agent.cli.render.capabilities import Permission
from meup_agent.protocol.guarantees import Guarantees

NAMES: Final = (
    "address",
    "settings",
    "name",
    "port",
    "tls",
    "handshake",
    "token",
    "space",
    "welcome",
    "dialect",
    "gateway",
    "me",
    "may",
    "here",
    "round trip",
    "clock",
)
"""The checks, in their order."""

NEEDED: Final = frozenset(NAMES[2:9])
"""Those without which there is no connection."""

NOT_TRIED: Final = "not tried"


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: One of :data:`NAMES`.
        ok: Whether all is good; ``None``: it was not tried, or there was nothing to look at.
        said: What was found, safe to print.
        advice: What to do; where all is good, what to think of.
    """

    name: str
    ok: bool | None
    said: str
    advice: str = ""


@dataclass(slots=True)
class Report:
    """What was found.

    Attributes:
        url: The address that was dialled; empty where there was none to dial.
        space: The space that was asked for.
        checks: All of them, in the order of :data:`NAMES`.
        lost: Whether the connection ended before everything was looked at.
        me: Our name in the space.
        asked: The dialect that we asked for.
        adopted: The dialect that the gateway speaks with us.
        guarantees: What the gateway gives; ``None`` where it was not reached.
        said_guarantees: Whether it says so itself.
        capabilities: Ours, as the gateway announced them.
        permissions: The same in words.
        participants: The names of everybody present, ours included.
        round_trip: Seconds.
        clock_difference: Seconds that the gateway's clock is ahead of ours.
    """

    url: str = ""
    space: str = ""
    checks: list[Check] = field(default_factory=list[Check])
    lost: bool = False
    me: str = ""
    asked: str = ""
    adopted: str = ""
    guarantees: Guarantees | None = None
    said_guarantees: bool = False
    capabilities: tuple[Any, ...] = ()
    permissions: list[Permission] = field(default_factory=list[Permission])
    participants: tuple[str, ...] = ()
    round_trip: float | None = None
    clock_difference: float | None = None

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not any(check.ok is False for check in self.checks)

    @property
    def connected(self) -> bool:
        """Whether no check failed that a connection needs, and it lasted."""
        return not self.lost and not any(
            check.ok is False and check.name in NEEDED for check in self.checks
        )
