"""Past of a space, read over HTTP: what was decided, and what waited before we came.

A gateway tells a newcomer of a hundred open proposals and of none that is decided. Without HTTP the
inbox does with what it sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from meup_agent.approval.proposal_history import PastProposal
from meup_agent.cli.failures import Failure
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.payloads import TARGET, Call, as_object, objects_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.cli.http_api import HttpApi
    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope

MAX_PAST: Final = 500
"""Proposals that are read: as many as a gateway tells at once."""

AT_A_TIME: Final = 8
"""Envelopes that are read at the same time."""


class SpacePast(NamedTuple):
    """The proposals of before we came: the decided ones, oldest first, and the open ones."""

    decided: tuple[PastProposal, ...] = ()
    waiting: tuple[Envelope, ...] = ()


async def read_past(api: HttpApi, space: Space) -> SpacePast:
    """Read the past of a space.

    Args:
        api: The gateway's HTTP API.
        space: The space, joined before: what is withdrawn meanwhile is noticed there.
    """
    latest = await api.recent(limit=str(MAX_PAST))
    waiting = {int(each["seq"]): each for each in latest if _is_pending(each)}
    if len(latest) == MAX_PAST:
        # Those that have waited the longest come before the latest ones.
        for each in await api.recent(limit=str(MAX_PAST), state=str(ProposalState.PENDING)):
            waiting[int(each["seq"])] = each
    known = {(each.proposer, each.id) for each in space.proposals}
    missing = [
        seq
        for seq, each in sorted(waiting.items())
        if (each.get("proposer"), each.get("id")) not in known and each.get("proposer") != space.me
    ]
    return SpacePast(tuple(decided_in(latest)), tuple(await _envelopes(api, missing)))


async def _envelopes(api: HttpApi, numbers: list[int]) -> list[Envelope]:
    found: dict[int, Envelope] = {}
    limiter = anyio.CapacityLimiter(AT_A_TIME)

    async def read(seq: int) -> None:
        try:
            async with limiter:
                found[seq] = await api.envelope(seq)
        except Failure:
            pass  # the gateway does not keep it any more

    async with anyio.create_task_group() as tasks:
        for seq in numbers:
            tasks.start_soon(read, seq)
    return [found[seq] for seq in numbers if seq in found]


def decided_in(records: Iterable[dict[str, Any]]) -> Iterable[PastProposal]:
    """The decided proposals among those that a gateway tells."""
    for each in records:
        decision = as_object(each.get("decision"))
        try:
            state = ProposalState(str(each.get("state")))
        except ValueError:
            continue
        if state.is_pending:
            continue
        target = each.get("target")
        meta = {"_meta": {TARGET: target}} if isinstance(target, str) else {}
        yield PastProposal(
            str(each.get("id")),
            str(each.get("proposer")),
            Call(str(each.get("method")), {**as_object(each.get("params")), **meta}),
            state,
            str(_fulfiller(each) or decision.get("by") or ""),
            str(decision.get("reason") or ""),
        )


def _fulfiller(record: dict[str, Any]) -> object:
    return next((each.get("by") for each in objects_in(record.get("fulfillments"))), None)


def _is_pending(record: dict[str, Any]) -> bool:
    return record.get("state") in (ProposalState.PENDING, ProposalState.IN_PROGRESS)
