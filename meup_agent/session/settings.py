"""What a session is given: how it behaves, and who does something with what comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from meup_agent.protocol.dialects import DEFAULT_DIALECT
from meup_agent.protocol.exchange import Limits, Mode
from meup_agent.session.reconnector import Backoff

if TYPE_CHECKING:
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import Key, Role, Work
    from meup_agent.protocol.payloads import Call
    from meup_agent.reasons import Cause


@dataclass(frozen=True, slots=True)
class Settings:
    """How a session behaves.

    Attributes:
        dialect: The dialect that we begin with; the gateway's welcome may name another.
        backoff: How long to wait between attempts to connect.
        limits: How much is handled at once.
        first_welcome: Seconds to wait for the first welcome; ``None``: as long as it takes.
        mode: How much it does: take part, only ask, or only look on.
    """

    dialect: str = DEFAULT_DIALECT
    backoff: Backoff = field(default_factory=Backoff)
    limits: Limits = field(default_factory=Limits)
    first_welcome: float | None = 10.0
    mode: Mode = Mode.PARTICIPATING


class Handlers(Protocol):
    """What an agent does with what comes; all of it returns at once."""

    def find(self, role: Role, envelope: Envelope, call: Call | None) -> object:
        """Find the handler for an envelope in a role; something false where there is none.

        What is found comes back to :meth:`start` as ``work.handler``.

        Args:
            role: The role.
            envelope: The envelope.
            call: What it asks for, of a request or a proposal.
        """
        ...

    def start(self, key: Key, work: Work) -> None:
        """Start it; the session is told of its end by :meth:`Session.returned` or `raised`."""
        ...

    def cancel(self, key: Key, cause: Cause) -> None:
        """End its scope."""
        ...


class EnvelopeListener(Protocol):
    """Somebody who hears every envelope."""

    def put(self, envelope: Envelope) -> None:
        """Take one; returns at once."""
        ...
