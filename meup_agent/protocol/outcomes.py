"""How an exchange of our own can end."""

from __future__ import annotations

from typing import Any

import msgspec

from meup_agent.protocol.payloads import Change, as_object
from meup_agent.protocol.reasons import Cause


class Fulfilled(msgspec.Struct, frozen=True):
    """A proposal was carried out, and its response is here.

    Attributes:
        proposal_id: The proposal.
        by: Who fulfilled it.
        executor: Who carried it out and answered.
        result: The MCP result as JSON values; ``None`` if the answer was an error.
        error: The JSON-RPC error as JSON values; ``None`` if there was a result.
        changes: What was carried out otherwise than proposed, as far as we could see it.
        relayed: We have it from the fulfiller, because the gateway hid the fulfilling request from
            us (PROTOCOL 2): then ``changes`` is empty, and ``executor`` is empty unless the
            fulfiller says that nothing was changed.
        relay_says_edited: Whether the fulfiller says that it changed something; ``None``: it does
            not say, or nothing was relayed.
    """

    proposal_id: str
    by: str
    executor: str
    result: Any = None
    error: dict[str, Any] | None = None
    changes: tuple[Change, ...] = ()
    relayed: bool = False
    relay_says_edited: bool | None = None

    @property
    def edited(self) -> bool:
        """Whether something other than the proposal was carried out, as far as we know."""
        return bool(self.changes) or self.relay_says_edited is True

    @property
    def knows_edits(self) -> bool:
        """Whether :attr:`edited` is known; a relay that does not say it leaves it open."""
        return not self.relayed or self.relay_says_edited is not None

    @property
    def as_proposed(self) -> bool:
        """Whether what was carried out is what was proposed, and that is known."""
        return self.knows_edits and not self.edited

    @property
    def is_error(self) -> bool:
        """Whether it failed: a JSON-RPC error, or a tool's result with ``isError``."""
        if self.error is not None:
            return True
        return as_object(self.result).get("isError") is True


class Rejected(msgspec.Struct, frozen=True):
    """A proposal was rejected by somebody whose rejection counts (PROTOCOL 4.5).

    Attributes:
        proposal_id: The proposal.
        reason: The reason code.
        by: Who rejected it; of several, the last.
        rejection_id: The id of the reject; an explanation that follows correlates to it.
    """

    proposal_id: str
    reason: str
    by: str
    rejection_id: str = ""


class Withdrawn(msgspec.Struct, frozen=True):
    """We took a proposal back, or gave a request up: here, or in another process under our name."""

    proposal_id: str
    cause: Cause

    @property
    def reason(self) -> str:
        """The reason code that the withdrawal carried."""
        return self.cause.code


class Expired(msgspec.Struct, frozen=True):
    """The deadline passed; what was sent was withdrawn or cancelled.

    Attributes:
        proposal_id: The proposal or request.
        sent: ``False``: it never left, so nobody can have carried it out.
        begun_by: Who had begun to fulfill the proposal, and was not done; empty: nobody was seen
            to.
    """

    proposal_id: str
    sent: bool = True
    begun_by: str = ""


class Gone(msgspec.Struct, frozen=True):
    """Everyone it was addressed to has been absent too long (PROTOCOL 4.6).

    Attributes:
        proposal_id: The proposal or request.
        participants: Who is absent; empty: a proposal was for whoever may, and nobody was here.
    """

    proposal_id: str
    participants: tuple[str, ...] = ()


class Responded(msgspec.Struct, frozen=True):
    """A request was answered.

    Attributes:
        by: Who answered.
        result: The result as JSON values; ``None`` if the answer was an error.
        error: The JSON-RPC error; ``None`` if there was a result.
    """

    by: str
    result: Any = None
    error: dict[str, Any] | None = None


class GatewayRefused(msgspec.Struct, frozen=True):
    """The gateway did not let it through."""

    error: str
    message: str
    details: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class Unsent(msgspec.Struct, frozen=True):
    """It certainly did not leave."""

    why: str


class Unknown(msgspec.Struct, frozen=True):
    """It was sent, and an answer can no longer arrive."""

    why: str


class LostRace(msgspec.Struct, frozen=True):
    """Somebody else's fulfilling request came first in the gateway's order (PROTOCOL 4.4)."""

    by: str


Outcome = Fulfilled | Rejected | Withdrawn | Expired | Gone
"""How a proposal ends for the one who waits for it."""

Ending = Outcome | Responded | GatewayRefused | Unsent | Unknown | LostRace
"""How any exchange of our own ends."""
