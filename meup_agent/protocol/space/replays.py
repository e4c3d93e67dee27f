"""Open proposals for a newcomer that may decide them (PROTOCOL 4.6)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.payloads import JsonObject
from meup_agent.protocol.reasons import Reason
from meup_agent.protocol.space.open import OpenExchanges
from meup_agent.protocol.space.shelf import Open

MAX_REPLAYED: Final = 100
"""Envelopes that follow the welcome of a newcomer: fewer than an agent keeps queued."""

MAX_REPLAYED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the same, and of those that are read to see whether the newcomer may decide them."""

MAX_REPLAY_BYTES: Final = 256 * 1024
"""Bytes of one of them: a larger one would take the place of all others."""

MAX_CONSIDERED: Final = 1_000
"""Open proposals that are looked at for a newcomer."""

May = Callable[[str, JsonObject], bool]
"""Whether somebody may send a kind with a payload."""


class Replay(NamedTuple):
    """An envelope of before a newcomer came.

    Attributes:
        envelope: A proposal, or a request that is out to fulfill the one before it.
        in_progress: The proposal has a fulfilling request out.
    """

    envelope: Envelope
    in_progress: bool


def replays(exchanges: OpenExchanges, participant: str, may: May, at: int) -> list[Replay]:
    """What a newcomer is told of open proposals, in the order in which they were accepted.

    Of too many the newest are told, of each proposer as many as of the others. What has certainly
    expired, and what was too large to keep, is left out; so are the newcomer's own, since nobody
    decides their own.

    Args:
        exchanges: What is open.
        participant: The newcomer.
        may: What it may send.
        at: The time in microseconds since 1970 (UTC).
    """
    rejects = may(kinds.MCP_REJECT, {"reason": str(Reason.DISAGREE)})
    found: list[list[Open]] = []
    count = size = 0
    for proposal in islice(exchanges.fairly(), MAX_CONSIDERED):
        if (
            not _is_kept(proposal)
            or proposal.envelope.sender == participant
            or proposal.state_at(at) is ProposalState.EXPIRED
        ):
            continue
        told = [proposal, *filter(_is_kept, proposal.fulfilling.values())]
        # What is only read costs time, too.
        size += sum(item.size for item in told)
        if size > MAX_REPLAYED_BYTES:
            break
        if rejects or _may_fulfill(proposal, may):
            count += len(told)
            if count > MAX_REPLAYED:
                break
            found.append(told)
    found.sort(key=lambda told: told[0].number)
    return [
        Replay(item.envelope, told[0].state is ProposalState.IN_PROGRESS)
        for told in found
        for item in told
    ]


def _is_kept(item: Open) -> bool:
    return item.whole and item.size <= MAX_REPLAY_BYTES


def _may_fulfill(proposal: Open, may: May) -> bool:
    call = payloads.read_proposal(proposal.envelope.payload_object)
    return may(kinds.MCP_REQUEST, payloads.request(call.method, call.params, ""))
