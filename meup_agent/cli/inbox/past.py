"""Past of a space, read over HTTP: what was decided, and what waited before we came.

A gateway tells a newcomer of a hundred open proposals and of none that is decided. Without HTTP the
inbox does with what it sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meup_agent.approval.past_proposals import MAX_PAST, past_of_documents
from meup_agent.cli.failures import Failure
from meup_agent.client.ask_each import ask_each
from meup_agent.protocol import kinds
from meup_agent.protocol.envelope import draft
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.payloads import objects_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meup_agent.approval.proposal_history import PastProposal
    from meup_agent.cli.http_api import HttpApi
    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope

AT_A_TIME: Final = 8
"""Envelopes that are read at the same time."""


MAX_WAITING: Final = 2_000
"""Of what waited before we came, the latest: each is read by itself."""


class SpacePast(NamedTuple):
    """The proposals of before we came.

    Attributes:
        decided: Those that were decided, oldest first.
        waiting: Open ones that the gateway did not tell of when we joined, each before the
            requests that are out for it.
        rejected: The proposer and id of open ones that we have rejected.
        documents: The open ones as the gateway describes them.
    """

    decided: tuple[PastProposal, ...] = ()
    waiting: tuple[Envelope, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    documents: tuple[dict[str, Any], ...] = ()


async def read_past(api: HttpApi, space: Space) -> SpacePast:
    """Read the past of a space.

    Args:
        api: The gateway's HTTP API.
        space: The space, joined before: what is withdrawn meanwhile is noticed there.
    """
    latest = await api.recent(MAX_PAST)
    waiting = {int(each["seq"]): each for each in latest if _is_pending(each)}
    if len(latest) == MAX_PAST:
        # Those that have waited the longest come before the latest ones.
        for each in await api.recent(MAX_WAITING, state=str(ProposalState.PENDING)):
            waiting[int(each["seq"])] = each
    rejected = tuple(
        (str(each.get("proposer")), str(each.get("id")))
        for each in waiting.values()
        if any(no.get("by") == space.me for no in objects_in(each.get("rejections")))
    )
    known = {(each.proposer, each.id) for each in space.proposals}
    missing = [
        number
        for seq, each in sorted(waiting.items())
        if (each.get("proposer"), each.get("id")) not in known and each.get("proposer") != space.me
        for number in (seq, *_requests_of(each))
    ]
    found = await _envelopes(api, missing)
    # A newcomer is told of none: what a policy denied would wait as if nobody had looked at it.
    for _, each in sorted(waiting.items()):
        found += _rejections_of(each, space.me)
    documents = tuple(waiting.values())
    return SpacePast(tuple(past_of_documents(latest)), tuple(found), rejected, documents)


def _requests_of(record: dict[str, Any]) -> list[int]:
    """The numbers of the requests that are out for a proposal."""
    return [
        number
        for each in objects_in(record.get("fulfillments"))
        if each.get("cancelled_at") is None and each.get("responded_at") is None
        if isinstance(number := each.get("seq"), int)
    ]


def _rejections_of(record: dict[str, Any], me: str) -> Iterator[Envelope]:
    """The rejections of a proposal by others, without their words."""
    for each in objects_in(record.get("rejections")):
        by, id, about = each.get("by"), each.get("id"), record.get("id")
        if isinstance(by, str) and isinstance(id, str) and isinstance(about, str) and by != me:
            reason = {"reason": str(each.get("reason") or "")}
            yield draft(kinds.MCP_REJECT, reason, id=id, sender=by, correlation=(about,))


async def _envelopes(api: HttpApi, numbers: list[int]) -> list[Envelope]:
    async def read(seq: int) -> Envelope | None:
        try:
            return await api.envelope(seq)
        except Failure:
            return None  # the gateway does not keep it any more

    found = await ask_each(numbers, read, at_a_time=AT_A_TIME)
    return [each for each in found if each is not None]


def _is_pending(record: dict[str, Any]) -> bool:
    return record.get("state") in (ProposalState.PENDING, ProposalState.IN_PROGRESS)
