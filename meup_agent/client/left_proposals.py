"""Proposals that an earlier process of their participant left open, as the gateway tells of them.

They say that they outlive it, so the gateway keeps them until they are decided, and the answer for
their proposer. It is asked again as something is heard that may have changed them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.causes import Cause, Reason
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.outcomes import Expiry, Rejection, Withdrawal
from meup_agent.protocol.wire.payloads import build_end

if TYPE_CHECKING:
    from meup_agent.client.proposal import ProposalRecord
    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.outcomes import Outcome

MAX_ID_CHARS: Final = 256
"""Characters of an id that is asked for: no proposal has a longer one."""

QUIET_SECONDS: Final = 10.0
"""Until the gateway is asked again though nothing was heard: an expiry need not be told."""

PAUSE_SECONDS: Final = 1.0
"""Between two questions, however much is said in the space."""

_NEWS: Final = (kinds.MCP_RESPONSE, kinds.MCP_REJECT, kinds.MCP_WITHDRAW, kinds.MCP_REQUEST)


async def find_left(space: Space, proposal: str) -> ProposalRecord | None:
    """A proposal of our own participant that outlives its process; ``None``: there is none.

    Raises:
        MeupError: The gateway did not answer.
    """
    if len(proposal) > MAX_ID_CHARS or not space.gateway.guarantees.lists_proposals:
        return None
    for state in ("open", "decided"):
        async for each in space.proposals.list(state=state, id=proposal, proposer=space.me):
            if each.id == proposal and each.outlives:
                return each
    return None


async def withdraw_left(space: Space, record: ProposalRecord) -> None:
    """Take it back; without effect where it is decided.

    Raises:
        MeupError: The gateway did not let it through.
    """
    await space.send(
        kinds.MCP_WITHDRAW,
        build_end(Reason.NO_LONGER_NEEDED, None),
        to=record.to,
        correlation=record.id,
    )


async def outcome_of_left(
    space: Space, record: ProposalRecord, within: float | None
) -> Outcome | ProposalRecord | None:
    """Wait for its outcome.

    Returns:
        Its outcome; its record, where it was carried out and its answer is not kept; ``None``: it
        still waits after so many seconds, or is known no longer.

    Raises:
        MeupError: The gateway did not answer.
    """

    def may_end_it(envelope: Envelope) -> bool:
        return envelope.kind in _NEWS

    with (
        anyio.move_on_after(math.inf if within is None else within),
        space.watch(may_end_it) as news,
    ):
        latest: ProposalRecord | None = record
        while latest is not None:
            # Its state is our session's, which may be ahead of the list that has the answer.
            if latest.decided_at is not None:
                return _outcome(latest) or latest
            if latest.state.is_pending and latest.rejections:
                # Its process would have taken the first one for an answer (PROTOCOL 4.5).
                await withdraw_left(space, latest)
                return latest.rejections[0]
            await anyio.sleep(PAUSE_SECONDS)
            if latest.state.is_pending:
                with anyio.move_on_after(QUIET_SECONDS):
                    await anext(news)
            latest = await find_left(space, record.id)
    return None


def _outcome(record: ProposalRecord) -> Outcome | None:
    """The outcome of a decided proposal; ``None``: it was fulfilled, and its answer is gone."""
    match record.state:
        case ProposalState.REJECTED:
            return Rejection(record.id, record.reason or "", record.decided_by or "")
        case ProposalState.WITHDRAWN:
            by = record.decided_by or record.proposer
            return Withdrawal(record.id, by, Cause(record.reason or str(Reason.OTHER), by))
        case ProposalState.EXPIRED:
            return Expiry(record.id)
        case _:
            return record.outcome
