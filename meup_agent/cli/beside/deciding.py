"""Finds the proposal that is meant, as the gateway's journal knows it."""

from __future__ import annotations

from typing import Any

from meup_agent.cli import exit_codes
from meup_agent.cli.beside.http_space import HttpSpace
from meup_agent.cli.escape import visible
from meup_agent.cli.failures import Failure
from meup_agent.errors import AlreadyDecided, AlreadyInProgress
from meup_agent.protocol.lifecycle import ProposalState

MAX_NAMED = 4
"""Proposals that an error names."""


async def pending_proposal(
    space: HttpSpace, given: str, *, proposer: str | None = None, in_progress: bool = False
) -> dict[str, Any]:
    """The pending proposal that an id, or the beginning of one, means.

    Args:
        space: The space.
        given: The id.
        proposer: Whose it is; ``None``: anybody's.
        in_progress: Whether its fulfillment may be on its way.

    Raises:
        Failure: The gateway knows none, or several.
        AlreadyDecided: It is not pending any more.
        AlreadyInProgress: Its fulfillment is on its way.
    """
    if not given.strip():
        raise Failure("the proposal is empty; give its id", exit_codes.USAGE)
    found = [
        each
        for each in await space.proposals(given)
        if proposer is None or each.get("proposer") == proposer
    ]
    if not found:
        whose = "proposal" if proposer is None else f"proposal of {visible(proposer, 64)}"
        raise Failure(f"the gateway knows no {whose} {given!r}; meup audit lists those it knows")
    if len(found) > 1:
        # One id may be used again by who began to count anew: the one that is pending is meant.
        pending = [each for each in found if _is_pending(each)]
        same = {(each.get("proposer"), each.get("id")) for each in found}
        if len(pending) != 1 or len(same) != 1:
            said = ", ".join(
                f"{visible(str(each.get('id')), 64)} of {visible(str(each.get('proposer')), 64)}"
                for each in found[:MAX_NAMED]
            )
            raise Failure(f"several proposals are meant by {given!r}: {said}", exit_codes.USAGE)
        found = pending
    record = found[0]
    by = record.get("in_progress_by")
    if not _is_pending(record):
        raise AlreadyDecided(str(record.get("id")), str(record.get("state")))
    if isinstance(by, str) and not in_progress:
        raise AlreadyInProgress(str(record.get("id")), by)
    return record


def _is_pending(record: dict[str, Any]) -> bool:
    return record.get("state") in (ProposalState.PENDING, ProposalState.IN_PROGRESS)
