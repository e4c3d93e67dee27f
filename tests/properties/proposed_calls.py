"""Calls that hostile peers propose, and a model's knowledge of them."""

from dataclasses import dataclass, field
from typing import Any

from meup_agent import Envelope


@dataclass(slots=True)
class Proposed:
    """The model of one proposal.

    Attributes:
        path: What tells its call from others.
        expires: The time after which it has certainly expired.
        over: It must not start any more, and why.
        runs: The requests that were started for it, and not cancelled before they answered.
        used: Those of them that were started before its proposer made it anew (PROTOCOL 6).
    """

    path: str
    expires: float
    over: str = ""
    runs: list[Envelope] = field(default_factory=list[Envelope])
    used: list[Envelope] = field(default_factory=list[Envelope])


def mark(envelope: Envelope) -> str:
    """Tells one envelope from any other, also of its sender and id."""
    return f"{envelope.sender} {envelope.id} {envelope.ts}"


def call_of(path: str) -> dict[str, Any]:
    return {"name": "write", "arguments": {"path": path}}
