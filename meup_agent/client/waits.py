"""Waits for something to become true of the space: a participant's arrival, an explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from meup_agent.client.running_handler import awaited, release_slot
from meup_agent.errors import ParticipantGone
from meup_agent.protocol.outcomes import Rejection, with_explain
from meup_agent.session.deadlines import checked_timeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.protocol.exchange import Participant
    from meup_agent.session import Session

T = TypeVar("T")


async def _wait_for(session: Session, find: Callable[[], T], timeout: float | None) -> T:
    """Wait until something is found, and return it; what is not found in time is falsy."""
    with (
        anyio.move_on_after(checked_timeout(timeout)),
        # Looked at again at each envelope, which has taken effect by then.
        session.watchers.watch(lambda _: bool(find())) as heard,
    ):
        # It may be gone again before this task runs.
        while not (found := find()):
            with release_slot(session):
                await anext(heard)
        await checkpoint()
        return found
    return find()


async def wait_for_participant(
    session: Session, participant: str, timeout: float | None
) -> Participant:
    """Wait until a participant is present; see :meth:`meup_agent.Space.present`."""

    def find() -> Participant | None:
        roster = session.table.roster
        if participant not in roster:  # looked for at each envelope, so the list is built once
            return None
        return next(each for each in roster.participants() if each.id == participant)

    found = await _wait_for(session, find, timeout)
    if found is None:
        raise ParticipantGone(f"{participant!r} did not come into the space in {timeout:g} s")
    return found


def with_explanation(session: Session, rejection: Rejection) -> Rejection:
    """The rejection of a proposal of ours, whose explanation can be waited for."""

    def so_far(rejected: Rejection) -> str:
        return session.table.explanations.get(rejected.by, rejected.id, session.now())

    @awaited
    async def explanation(rejected: Rejection, timeout: float | None) -> str:
        return await _wait_for(session, lambda: so_far(rejected), timeout)

    return with_explain(rejection, explanation, so_far(rejection))
