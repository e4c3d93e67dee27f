"""Waits for a participant to come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

from meup_agent.client.current import parent_in
from meup_agent.errors import ParticipantGone
from meup_agent.session.deadlines import checked_timeout

if TYPE_CHECKING:
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import Participant
    from meup_agent.session import Session


class _Coming:
    """Looks at each envelope whether the participant is present now."""

    def __init__(self, session: Session, participant: str) -> None:
        self.came = anyio.Event()
        self._session = session
        self._participant = participant

    def put(self, envelope: Envelope) -> None:
        """Look again; whatever has come, it has taken effect."""
        if self._participant in self._session.table.roster:
            self.came.set()


async def present(session: Session, participant: str, *, timeout: float | None) -> Participant:
    """See :meth:`meup_agent.Space.present`."""
    timeout = checked_timeout(timeout)
    with anyio.move_on_after(timeout):
        while (found := _find(session, participant)) is None:
            coming = _Coming(session, participant)
            with (
                session.watchers.listening(coming),
                session.pending_calls.release_slot(parent_in(session)),
            ):
                await coming.came.wait()
        await checkpoint()
        return found
    raise ParticipantGone(f"{participant!r} did not come into the space in {timeout:g} s")


def _find(session: Session, participant: str) -> Participant | None:
    here = session.table.roster.participants()
    return next((each for each in here if each.id == participant), None)
