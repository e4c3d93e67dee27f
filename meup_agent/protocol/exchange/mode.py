"""How much a session does in its space: take part, only ask, or only look on (PROTOCOL 3)."""

from __future__ import annotations

from enum import Enum


class Mode(Enum):
    """How much of the exchange table is at work."""

    PARTICIPATING = "participating"
    OUTGOING_ONLY = "outgoing only"
    """It asks, proposes and tells; it starts no handler and answers nothing."""
    OBSERVING = "observing"
    """It hears what everybody hears, and says nothing."""

    @property
    def answers(self) -> bool:
        """Whether it starts handlers, and answers, rejects and acknowledges."""
        return self is Mode.PARTICIPATING

    @property
    def speaks(self) -> bool:
        """Whether it begins exchanges of its own, and says what its user says."""
        return self is not Mode.OBSERVING
