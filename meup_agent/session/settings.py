"""The settings of a session, and the interfaces that it calls."""

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
    """The settings of a session.

    Attributes:
        dialect: The dialect that we begin with; the gateway's welcome may name another.
        backoff: The pauses between attempts to connect.
        limits: The handlers that run and wait at once.
        first_welcome: Seconds to wait for the first welcome; ``None``: as long as it takes.
        mode: Take part, only ask, or only look on.
    """

    dialect: str = DEFAULT_DIALECT
    backoff: Backoff = field(default_factory=Backoff)
    limits: Limits = field(default_factory=Limits)
    first_welcome: float | None = 10.0
    mode: Mode = Mode.PARTICIPATING


class Handlers(Protocol):
    """The handlers of an agent; each call returns at once."""

    def find(self, role: Role, envelope: Envelope, call: Call | None) -> object:
        """Find the handler for an envelope in a role; something false where there is none.

        What is found comes back to :meth:`start` as ``work.handler``.
        """
        ...

    def start(self, key: Key, work: Work) -> None:
        """Start it; the session is told of its end by :meth:`Session.returned` or `raised`."""
        ...

    def cancel(self, key: Key, cause: Cause) -> None:
        """End its scope."""
        ...


class EnvelopeListener(Protocol):
    """A callee for every envelope."""

    def put(self, envelope: Envelope) -> None:
        """Take one; returns at once."""
        ...
