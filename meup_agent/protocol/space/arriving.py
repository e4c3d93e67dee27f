"""How somebody comes into a space, and what is said of it (PROTOCOL 2 and 6)."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from meup_agent.protocol.capability import Capabilities
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.resume import ARRIVED


class Arriving(msgspec.Struct, frozen=True):
    """How a member comes in, as far as it missed something (PROTOCOL 6).

    Attributes:
        until: What it missed has numbers up to this one, and comes before anything new.
        gap: Some of what it missed is not known here any more.
        resumed: It was here before, and comes back.
    """

    until: int
    gap: bool = False
    resumed: bool = False


class Joined(NamedTuple):
    """What a participant's arrival makes the gateway say; both are drafts.

    Attributes:
        welcome: For the newcomer alone.
        presence: For everybody, the newcomer included.
    """

    welcome: Envelope
    presence: Envelope


def missed_by(arriving: Arriving | None) -> dict[str, Any]:
    """What a welcome says of what its reader missed (PROTOCOL 6)."""
    if arriving is None:
        return {}
    return {"resumed": arriving.resumed, "until": arriving.until, "gap": arriving.gap}


def announced(arriving: Arriving | None) -> dict[str, Any]:
    """What everybody is told of what a newcomer missed: nothing has to be said again to most."""
    if arriving is None:
        return {}
    return {ARRIVED: "gap" if arriving.gap else "resumed" if arriving.resumed else "new"}


def described(participant: str, capabilities: Capabilities) -> dict[str, Any]:
    """A participant as welcomes and presences say it."""
    return {"id": participant, "capabilities": list(capabilities.patterns)}
