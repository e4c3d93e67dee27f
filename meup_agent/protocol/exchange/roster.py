"""Who is in the space, as the gateway tells it, and since when somebody is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meup_agent.protocol.capability import Capabilities, compile_announced
from meup_agent.protocol.exchange.memory import Memory
from meup_agent.protocol.payloads import as_object

MAX_PARTICIPANTS = 10_000
"""Participants that are kept; a gateway that names more is not believed."""


@dataclass(frozen=True, slots=True)
class Participant:
    """Somebody in the space.

    Attributes:
        id: Their name.
        capabilities: What they may send, as the gateway announced it.
    """

    id: str
    capabilities: tuple[Any, ...] = ()


class Roster:
    """The participants of a space at this moment."""

    def __init__(self) -> None:
        self.me = ""
        self.welcomed_at: float | None = None
        self.my_capabilities: tuple[Any, ...] = ()
        self._present: dict[str, Participant] = {}
        self._left: Memory[str, float] = Memory(count=MAX_PARTICIPANTS, seconds=3600.0)
        self._compiled: dict[str, Capabilities] = {}

    def welcome(self, payload: dict[str, Any], now: float) -> None:
        """Take over what the gateway says in ``system/welcome``."""
        you = participant_of(payload.get("you"))
        if you is not None:
            self.me, self.my_capabilities = you.id, you.capabilities
        others = payload.get("participants")
        listed = [participant_of(item) for item in others] if isinstance(others, list) else []
        self._present = {item.id: item for item in listed[:MAX_PARTICIPANTS] if item is not None}
        if you is not None:
            self._present[you.id] = you
        self._compiled.clear()
        self.welcomed_at = now

    def update(self, payload: dict[str, Any], now: float) -> tuple[str, Participant] | None:
        """Take over a presence event; ``(event, participant)`` if it was one that we know."""
        participant = participant_of(payload.get("participant"))
        event = payload.get("event")
        if participant is None or event not in ("join", "leave"):
            return None
        self._compiled.pop(participant.id, None)
        if event == "leave":
            self._present.pop(participant.id, None)
            self._left.put(participant.id, now, now)
        elif len(self._present) < MAX_PARTICIPANTS:
            self._present[participant.id] = participant
        return event, participant

    def __contains__(self, participant_id: object) -> bool:
        """Whether somebody is present."""
        return participant_id in self._present

    def participants(self) -> tuple[Participant, ...]:
        """Everybody who is present, we included."""
        return tuple(self._present.values())

    def absent_since(self, participant_id: str, now: float) -> float | None:
        """Since when somebody has been away; never earlier than our own welcome (PROTOCOL 4.6)."""
        if participant_id in self._present or self.welcomed_at is None:
            return None
        left = self._left.get(participant_id, now)
        return max(left if left is not None else 0.0, self.welcomed_at)

    def may(self, participant_id: str, kind: str, payload: Any) -> bool:
        """Whether somebody's announced capabilities allow an envelope."""
        participant = self._present.get(participant_id)
        if participant is None:
            return False
        compiled = self._compiled.get(participant_id)
        if compiled is None:
            compiled = self._compiled[participant_id] = compile_announced(participant.capabilities)
        return compiled.allow(kind, payload)


def participant_of(value: object) -> Participant | None:
    """The participant in a welcome or a presence; ``None`` where there is none."""
    item = as_object(value)
    name = item.get("id")
    if not isinstance(name, str) or not name:
        return None
    capabilities = item.get("capabilities")
    return Participant(name, tuple(capabilities) if isinstance(capabilities, list) else ())
