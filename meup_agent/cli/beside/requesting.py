"""Makes a request over HTTP, and waits for its response."""

from __future__ import annotations

import secrets
from contextlib import aclosing, nullcontext
from typing import Any, Final

import anyio

from meup_agent.cli import exit_codes
from meup_agent.cli.beside.http_space import Heard, HttpSpace
from meup_agent.cli.beside.visit import HttpVisit
from meup_agent.cli.failures import Failure
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.progress import ProgressLine, progress_line
from meup_agent.client.progress import Progress
from meup_agent.errors import RequestTimeout
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.outcomes import Responded
from meup_agent.protocol.payloads import as_object, read_response
from meup_agent.reasons import Cause, Reason, read_reason

ID_BYTES: Final = 16


def new_id() -> str:
    """An id that nobody has had."""
    return secrets.token_hex(ID_BYTES)


class Withdrawn(Failure):
    """The proposal that a request carries out was withdrawn meanwhile.

    Attributes:
        why: The reason code.
    """

    def __init__(self, sentence: str, why: str) -> None:
        super().__init__(sentence)
        self.why = why


async def request(
    visit: HttpVisit,
    to: str,
    method: str,
    params: dict[str, Any],
    *,
    seconds: float | None,
    fulfills: tuple[str, str] | None = None,
    waiting: ProgressLine | None = None,
) -> Responded:
    """Make a request, and wait for its response; it is cancelled if nobody waits any more.

    Args:
        visit: Where.
        to: Who is asked.
        method: The MCP method.
        params: Its parameters.
        seconds: How long to wait; ``None``: as long as it takes.
        fulfills: Proposer and id of the proposal that it carries out.
        waiting: Shows that something is waited for, where several requests share one line.

    Raises:
        RequestTimeout: No response came in time.
        Refused: The gateway does not let us make it.
        Failure: The gateway cancelled it, or its proposal was withdrawn.
    """
    space, request_id = visit.space, new_id()
    params = {**params, payloads.META: {**as_object(params.get(payloads.META))}}
    params[payloads.META][payloads.PROGRESS_TOKEN] = request_id
    reason: str = Reason.NO_LONGER_NEEDED

    async def cancel() -> str:
        cause = Cause(reason, by=space.me, id=request_id)
        await space.say(
            kinds.MCP_REQUEST,
            payloads.cancelled(request_id, cause),
            id=new_id(),
            to=(to,),
            correlation=(request_id,),
        )
        return f"{visible(to, 64)} was asked to stop"

    shown = progress_line(visit.stderr.console, f"waiting for {to}")
    async with shown if waiting is None else nullcontext(waiting) as line:
        async with visit.giving_up(cancel):
            said = await space.say(
                kinds.MCP_REQUEST,
                payloads.request(method, params, request_id),
                id=request_id,
                to=(to,),
                correlation=(fulfills[1],) if fulfills is not None else (),
            )
            with anyio.move_on_after(seconds):
                async with aclosing(space.events(said.seq)) as events:
                    async for heard in events:
                        progress = _progress(heard, to, request_id)
                        if progress is not None:
                            line.update(progress)
                        response = _response(heard, space, to, request_id)
                        if response is not None:
                            return response
                        try:
                            _check_it_goes_on(heard, space, to, request_id, fulfills)
                        except Withdrawn as withdrawn:
                            reason = withdrawn.why
                            raise
            reason = Reason.TIMEOUT
            raise RequestTimeout(
                f"{method} got no response from {to!r} before its deadline, and was cancelled"
            )


def _response(heard: Heard, space: HttpSpace, to: str, request_id: str) -> Responded | None:
    envelope = heard.envelope
    if (
        envelope.kind != kinds.MCP_RESPONSE
        or envelope.sender != to
        or request_id not in envelope.correlation
        or not envelope.concerns(space.me)
    ):
        return None
    result, error = read_response(envelope.payload)
    return Responded(by=to, result=result, error=error)


def _progress(heard: Heard, to: str, request_id: str) -> Progress | None:
    envelope = heard.envelope
    if envelope.kind != kinds.MCP_REQUEST or envelope.sender != to:
        return None
    call = payloads.read_call(envelope.payload)
    if call.method != kinds.PROGRESS or call.params.get(payloads.PROGRESS_TOKEN) != request_id:
        return None
    done = payloads.number(call.params.get("progress"))
    message = call.params.get("message")
    if done is None:
        return None
    return Progress(
        done,
        payloads.number(call.params.get("total")),
        message if isinstance(message, str) else "",
    )


def _check_it_goes_on(
    heard: Heard, space: HttpSpace, to: str, request_id: str, fulfills: tuple[str, str] | None
) -> None:
    """Notice that nobody waits any more, or that nobody will answer.

    Raises:
        Failure: That is so.
    """
    envelope = heard.envelope
    match envelope.kind:
        case kinds.MCP_WITHDRAW if fulfills is not None:
            proposer, proposal = fulfills
            if envelope.sender in (proposer, *kinds.GATEWAY_NAMES) and (
                proposal in envelope.correlation
            ):
                why = read_reason(envelope.payload_object.get("reason"))
                raise Withdrawn(
                    f"{proposer!r} withdrew proposal {proposal} while it was carried out: {why}",
                    why,
                )
        case kinds.MCP_REQUEST if (
            envelope.sender in (space.me, *kinds.GATEWAY_NAMES)
            and request_id in envelope.correlation
        ):
            call = payloads.read_call(envelope.payload)
            if call.method == kinds.CANCELLED:
                why = read_reason(call.params.get("reason"))
                raise Failure(f"the request was cancelled by {envelope.sender!r}: {why}")
        case kinds.SYSTEM_PRESENCE if envelope.sender in kinds.GATEWAY_NAMES:
            payload = envelope.payload_object
            who = as_object(payload.get("participant")).get("id")
            if payload.get("event") == "leave" and who == to:
                raise Failure(
                    f"{to!r} left the space before it answered; it may have done it",
                    exit_codes.ABSENT,
                )
        case _:
            pass
