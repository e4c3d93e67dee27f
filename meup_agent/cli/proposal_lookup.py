"""Finds the proposal that is meant, as the gateway's journal knows it."""

from __future__ import annotations

from typing import Any

from meup_agent.cli import exit_codes
from meup_agent.cli.failures import Failure
from meup_agent.cli.http_api import HttpApi
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.formatting import format_call
from meup_agent.errors import AlreadyDecided, AlreadyInProgress
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.payloads import Call, as_object
from meup_agent.protocol.payloads import digest as digest_of_call

MAX_NAMED = 4
"""Proposals that an error names."""


async def pending_proposal(
    api: HttpApi,
    given: str,
    *,
    proposer: str | None = None,
    digest: str | None = None,
    in_progress: bool = False,
    whichever_call: bool = True,
) -> dict[str, Any]:
    """The pending proposal that an id, or the beginning of one, means.

    Args:
        api: The gateway's HTTP API.
        given: The id.
        proposer: Whose it is; ``None``: anybody's.
        digest: Of the call that is meant, where one is.
        in_progress: Its fulfillment may be on its way.
        whichever_call: The pending one is meant where its proposer has used the id before
            for another call; it is not where something is approved.

    Raises:
        Failure: The gateway knows none, or several.
        AlreadyDecided: It is not pending any more.
        AlreadyInProgress: Its fulfillment is on its way.
    """
    if not given.strip():
        raise Failure("the proposal is empty; give its id", exit_codes.USAGE)
    found = [
        each
        for each in await api.proposals(given)
        if (proposer is None or each.get("proposer") == proposer)
        and (digest is None or digest_of(each) == digest)
    ]
    if not found:
        whose = "proposal" if proposer is None else f"proposal of {visible(proposer, 64)}"
        raise Failure(f"the gateway knows no {whose} {given!r}; meup audit lists those it knows")
    exact = [each for each in found if each.get("id") == given] or found
    if len(exact) > 1:
        exact = _same(exact, whichever_call=whichever_call) or exact
    if len(exact) > 1:
        raise _several(given, exact)
    record = exact[0]
    by = record.get("in_progress_by")
    if not _is_pending(record):
        raise AlreadyDecided(str(record.get("id")), str(record.get("state")))
    if isinstance(by, str) and not in_progress:
        raise AlreadyInProgress(str(record.get("id")), by)
    return record


def _same(found: list[dict[str, Any]], *, whichever_call: bool) -> list[dict[str, Any]]:
    """The one that is meant of those that one proposer made under one id; none if that is open."""
    keys = {(each.get("proposer"), each.get("id")) for each in found}
    pending = [each for each in found if _is_pending(each)]
    calls = {digest_of(each) for each in found}
    same_call = len(calls) == 1 and None not in calls
    return pending if len(keys) == len(pending) == 1 and (whichever_call or same_call) else []


def _is_pending(record: dict[str, Any]) -> bool:
    return record.get("state") in (ProposalState.PENDING, ProposalState.IN_PROGRESS)


def digest_of(record: dict[str, Any]) -> str | None:
    """The digest of a proposed call (PROTOCOL 6); ``None`` where it has none."""
    target = record.get("target")
    return digest_of_call(
        str(record.get("method")),
        as_object(record.get("params")),
        target if isinstance(target, str) else None,
    )


def _several(given: str, found: list[dict[str, Any]]) -> Failure:
    """The error for an ambiguous id; it names each proposal that has it."""
    proposers = {each.get("proposer") for each in found}
    if len({each.get("id") for each in found}) > 1:
        advice = "give more of the id"
    elif len(proposers) > 1:
        advice = "say with --proposer whose is meant"
    else:
        advice = "say with --digest which is meant; meup audit --json and meup tail --json tell"
    said = "; ".join(_in_words(each) for each in found[:MAX_NAMED])
    more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return Failure(
        f"several proposals are meant by {given!r}: {said}{more}; {advice}", exit_codes.USAGE
    )


def _in_words(record: dict[str, Any]) -> str:
    identity, proposer, state = (
        visible(str(record.get(key)), 64) for key in ("id", "proposer", "state")
    )
    params = as_object(record.get("params"))
    call = Call(str(record.get("method")), params)
    target = f"{visible(str(record['target']), 64)}." if record.get("target") else ""
    return f"{identity} of {proposer}, {target}{format_call(call)}, {state.replace('_', ' ')}"
