"""Rejections of our proposals, and the words that explain them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio
from anyio.lowlevel import checkpoint

from meup_agent.client.current import parent_in
from meup_agent.client.forgetting import awaited
from meup_agent.session.timeouts import checked_timeout

if TYPE_CHECKING:
    from meup_agent.protocol import exchange
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.session import Session

EXPLANATION_SECONDS: Final = 5.0
"""How long an explanation is waited for: it follows its reject at once, where there is one."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejection of a proposal of ours.

    Attributes:
        proposal_id: The proposal.
        reason: The reason code.
        by: Who rejected it.
        id: The id of the reject; an explanation correlates to it.
        counts: Whether it ended the wait (PROTOCOL 4.5).
    """

    proposal_id: str
    reason: str
    by: str
    id: str
    counts: bool
    _session: Session | None = field(default=None, repr=False, compare=False)

    @awaited
    async def explanation(self, timeout: float | None = EXPLANATION_SECONDS) -> str:
        """Wait for the words that explain it, which follow as a chat (PROTOCOL 4.3).

        Args:
            timeout: Seconds to wait; most rejections have no explanation.

        Returns:
            The words of the participant that rejected it, as a stranger wrote them, at most 4,000
            characters; empty where none have come.
        """
        if self._session is None:
            return ""
        return await explanation_of(self._session, self.by, self.id, timeout)


def rejection_of(session: Session, told: exchange.Rejection) -> Rejection:
    """A rejection as a handler sees it."""
    return Rejection(told.proposal_id, told.reason, told.by, told.id, told.counts, session)


class _Words:
    """Looks at each envelope whether the explanation has come with it."""

    def __init__(self, session: Session, by: str, rejection_id: str) -> None:
        self.came = anyio.Event()
        self._session = session
        self._named = by, rejection_id

    def put(self, envelope: Envelope) -> None:
        """Look again; whatever has come, it has taken effect."""
        if said_of(self._session, *self._named):
            self.came.set()


def said_of(session: Session, by: str, rejection_id: str) -> str:
    """The words that have come so far to explain a reject."""
    return session.table.explanations.get(by, rejection_id, session.now())


async def explanation_of(
    session: Session, by: str, rejection_id: str, timeout: float | None
) -> str:
    """Wait for the words that explain a reject; empty where none come in time."""
    words = _Words(session, by, rejection_id)
    if said_of(session, by, rejection_id):
        await checkpoint()
        return said_of(session, by, rejection_id)
    with (
        anyio.move_on_after(checked_timeout(timeout)),
        session.watchers.listening(words),
        session.exchanges.release_slot(parent_in(session)),
    ):
        await words.came.wait()
    return said_of(session, by, rejection_id)
