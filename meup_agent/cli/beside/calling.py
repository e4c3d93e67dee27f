"""Calls a tool over HTTP as a participant whose agent may be running, or proposes the call."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import anyio

from meup_agent.cli import exit_codes
from meup_agent.cli.beside.http_space import HttpSpace
from meup_agent.cli.beside.requesting import new_id, request
from meup_agent.cli.beside.visit import HttpVisit
from meup_agent.cli.failures import Failure, code_for
from meup_agent.cli.render.escape import arguments as in_words
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.progress import progress_line
from meup_agent.cli.tool_call import (
    LIST_SECONDS,
    CallResult,
    ToolCall,
    check_arguments,
    print_outcome,
    print_result,
)
from meup_agent.errors import (
    ProposalExpired,
    ProposalRejected,
    ProposalWithdrawn,
    Refused,
    RequestError,
    RequestTimeout,
    ToolError,
)
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.audit import Audit, ProposalAudit
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.outcomes import Fulfillment, Rejection
from meup_agent.protocol.payloads import (
    JsonObject,
    as_object,
    build_proposal,
    objects_in,
    read_response,
)
from meup_agent.protocol.space.journal import Entry
from meup_agent.reasons import Reason


async def run_tool_call(visit: HttpVisit, wanted: ToolCall) -> None:
    """Call the tool, and print its result.

    Raises:
        Failure: It was not called, or there is no result.
        MeupError: As :func:`~meup_agent.cli.beside.requesting.request` says.
    """
    name = f"{wanted.participant}.{wanted.tool}"
    here = [str(each.get("id")) for each in await visit.space.participants()]
    if wanted.participant not in here:
        known = ", ".join(visible(each, 64) for each in here) or "nobody"
        raise Failure(
            f"{wanted.participant!r} is not in the space {visit.space.name!r}; here: {known}",
            exit_codes.ABSENT,
        )
    arguments = await _arguments(visit, wanted)
    params = {"name": wanted.tool, "arguments": arguments}
    try:
        if not wanted.as_proposal and _may(visit.space, "tools/call", params):
            answered = await request(
                visit, wanted.participant, "tools/call", params, seconds=wanted.seconds
            )
            if answered.error is not None:
                payload = answered.error
                raise RequestError(
                    payload.get("code", 0),
                    str(payload.get("message", "no message")),
                    payload.get("data"),
                    by=answered.by,
                )
            answer = CallResult(wanted.participant, answered.result)
        else:
            answer = await _propose(visit, wanted, params)
        await print_result(visit, wanted, answer)
    except ToolError as error:
        raise Failure(f"{name} failed: {error}", code_for(error)) from error
    except RequestError as error:
        by = error.by or wanted.participant
        raise Failure(f"{by} answered with an error: {error}", code_for(error)) from error


def _may(space: HttpSpace, method: str, params: JsonObject) -> bool:
    return space.capabilities.allow(kinds.MCP_REQUEST, payloads.request(method, params, ""))


async def _arguments(visit: HttpVisit, wanted: ToolCall) -> JsonObject:
    """The arguments, read and checked by what the tool's owner says of it, where it says so."""
    tools: list[JsonObject] | None = None
    if _may(visit.space, "tools/list", {}):
        try:
            listed = await request(
                visit, wanted.participant, "tools/list", {}, seconds=LIST_SECONDS
            )
            if listed.error is None:
                tools = objects_in(as_object(listed.result).get("tools"))
        except (Failure, Refused, RequestTimeout):
            visit.given_up = ""
    return check_arguments(tools, wanted, visit.stderr)


# --- a proposal ---


async def _propose(visit: HttpVisit, wanted: ToolCall, params: JsonObject) -> CallResult:
    space, proposal, seconds = visit.space, new_id(), wanted.seconds
    reason: str = Reason.NO_LONGER_NEEDED

    async def withdraw() -> str:
        await space.say(
            kinds.MCP_WITHDRAW,
            {"reason": reason},
            id=new_id(),
            to=wanted.to,
            correlation=(proposal,),
        )
        return f"proposal {proposal} was withdrawn"

    who = ", ".join(visible(each, 64) for each in wanted.to) or "somebody"
    async with (
        progress_line(visit.stderr.console, f"waiting for {who} to decide"),
        visit.giving_up(withdraw),
    ):
        body = build_proposal(
            "tools/call",
            params,
            target=wanted.participant,
            expires=None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds),
        )
        said = await space.say(kinds.MCP_PROPOSAL, body, id=proposal, to=wanted.to)
        name = f"{visible(wanted.participant, 64)}.{visible(wanted.tool, 64)}"
        visit.stderr.note(
            f"proposed {name}({in_words(params['arguments'], 200)}) as {proposal};"
            f" waiting for {who} to decide"
        )
        with anyio.move_on_after(seconds):
            return await _decided(visit, wanted, proposal, said.seq)
        reason = Reason.TIMEOUT
        raise ProposalExpired(proposal, sent=True)


async def _decided(visit: HttpVisit, wanted: ToolCall, proposal: str, seq: int) -> CallResult:
    """Follow the proposal by the same fold as the gateway's audit, until it is decided."""
    space, audit = visit.space, Audit()
    told: set[str] = set()
    async with aclosing(space.events(seq - 1)) as events:
        async for heard in events:
            audit.take(Entry(heard.seq, space.name, 0, heard.envelope))
            for found in audit.named(proposal, proposer=space.me):
                if found.state is ProposalState.FULFILLED:
                    return _answer(found, heard.envelope)
                if found.state is ProposalState.WITHDRAWN:
                    raise ProposalWithdrawn(proposal, found.record.reason or Reason.OTHER)
                for step in found.rejections:
                    if step.id in told:
                        continue
                    told.add(step.id)
                    if step.by in wanted.to:
                        rejected = Rejection(proposal, step.reason, step.by, step.id)
                        await print_outcome(visit, wanted, rejected)
                        raise ProposalRejected(proposal, step.reason, step.by)
                    visit.stderr.note(f"rejected by {step.by}: {step.reason}; others may still")
    raise AssertionError("the events have no end")


def _answer(found: ProposalAudit, response: Envelope) -> CallResult:
    """What came of a proposal that this response fulfills."""
    done = next(item for item in found.fulfillments if item.response is not None)
    result, error = read_response(response.payload)
    fulfilled = Fulfillment(
        proposal_id=found.id,
        by=done.by,
        executor=response.sender,
        result=result,
        error=error,
        changes=done.changes,
    )
    return CallResult(response.sender, result, fulfilled)
