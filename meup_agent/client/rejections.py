"""Rejections of our proposals, and the words that explain them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

from meup_agent.client.current import parent_in
from meup_agent.client.forgetting import awaited
from meup_agent.session.deadlines import checked_timeout

if TYPE_CHECKING:
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.outcomes import Rejection
    from meup_agent.session import Session


def with_explanation(session: Session, rejection: Rejection) -> Rejection:
    """The rejection of a proposal of ours, whose explanation can be waited for."""

    @awaited
    async def explanation(rejected: Rejection, timeout: float | None) -> str:
        return await explanation_of(session, rejected, timeout)

    return rejection.explained_by(explanation)


class _Words:
    """Looks at each envelope whether the explanation has come with it."""

    def __init__(self, session: Session, rejection: Rejection) -> None:
        self.came = anyio.Event()
        self._session = session
        self._rejection = rejection

    def put(self, envelope: Envelope) -> None:
        """Look again; whatever has come, it has taken effect."""
        if said_of(self._session, self._rejection):
            self.came.set()


def said_of(session: Session, rejection: Rejection) -> str:
    """The words that have come so far to explain a rejection."""
    return session.table.explanations.get(rejection.by, rejection.id, session.now())


async def explanation_of(session: Session, rejection: Rejection, timeout: float | None) -> str:
    """Wait for the words that explain a rejection; empty where none come in time."""
    words = _Words(session, rejection)
    if said_of(session, rejection):
        await checkpoint()
        return said_of(session, rejection)
    with (
        anyio.move_on_after(checked_timeout(timeout)),
        session.watchers.listening(words),
        session.pending_calls.release_slot(parent_in(session)),
    ):
        await words.came.wait()
    return said_of(session, rejection)
