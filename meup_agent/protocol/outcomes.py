"""How an exchange of our own can end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from meup_agent.protocol.payloads import Change, as_object
from meup_agent.reasons import Cause

EXPLANATION_SECONDS: Final = 5.0
"""Wait for an explanation: it follows its reject at once, where there is one."""

Explain = Callable[["Rejection", float | None], Awaitable[str]]
"""Waits for the explanation of a rejection, so many seconds at the most."""


class Fulfillment(msgspec.Struct, frozen=True):
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


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejection of a proposal.

    Attributes:
        proposal_id: The proposal.
        reason: The reason code.
        by: The participant that rejected it.
        id: The id of the reject; an explanation that follows correlates to it.
        counts: It ended the proposer's wait (PROTOCOL 4.5), as every rejection that is an outcome.
    """

    proposal_id: str
    reason: str
    by: str
    id: str = ""
    counts: bool = False
    _explain: Explain | None = field(default=None, repr=False, compare=False)

    async def explanation(self, timeout: float | None = EXPLANATION_SECONDS) -> str:
        """Wait for the words that explain it, which follow as a chat (PROTOCOL 4.3).

        Args:
            timeout: Seconds to wait; most rejections have no explanation.

        Returns:
            The words of the participant that rejected it, as a stranger wrote them, at most 4,000
            characters; empty where none have come, or the proposal is not ours.
        """
        return "" if self._explain is None else await self._explain(self, timeout)

    def explained_by(self, explain: Explain) -> Rejection:
        """The same rejection, whose :meth:`explanation` is waited for by this function."""
        return replace(self, _explain=explain)


class Withdrawal(msgspec.Struct, frozen=True):
    """A withdrawal of a proposal, or the end of the wait for a request by its own participant.

    Attributes:
        proposal_id: The proposal or request.
        by: Its proposer; in another process under the same name, perhaps.
        cause: The reason, with the chain that led to it.
    """

    proposal_id: str
    by: str
    cause: Cause

    @property
    def reason(self) -> str:
        """The reason code."""
        return self.cause.code


class Expiry(msgspec.Struct, frozen=True):
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


Outcome = Fulfillment | Rejection | Withdrawal | Expiry | Gone
"""How a proposal ends for the one who waits for it."""

Ending = Outcome | Responded | GatewayRefused | Unsent | Unknown | LostRace
"""How any exchange of our own ends."""
