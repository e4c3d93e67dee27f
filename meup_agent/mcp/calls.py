"""One call of a tool, from an MCP client through the space: a request, or a proposal."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from meup_agent.client.messages import Progress
from meup_agent.client.proposal_handle import TTL
from meup_agent.errors import (
    ConnectionFailed,
    InvalidArguments,
    NotExpressible,
    ParticipantGone,
    Refused,
    RequestError,
    RequestTimeout,
)
from meup_agent.mcp import decisions
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.capability import compile_announced
from meup_agent.protocol.exchange import Wait
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.outcomes import Expiry, Fulfillment, Gone, Rejection, Withdrawal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mcp.server.context import ServerRequestContext

    from meup_agent.client.proposal_handle import ProposalHandle
    from meup_agent.client.space import Space
    from meup_agent.mcp.catalog import Offer
    from meup_agent.protocol.outcomes import Outcome
    from meup_agent.protocol.payloads import JsonObject

log = logging.getLogger("meup_agent.mcp")

CALL: Final = "tools/call"

COMPLETE: Final = {"resultType": "complete"}
"""What 2026-07-28 wants in each result; older revisions take no notice of it."""

REQUEST_SECONDS: Final = 600.0
"""Wait for a result, or for progress on the way to it; a client that waits less cancels."""

WAITING_SECONDS: Final = 5.0
"""Between two notes that a proposal waits: a client's own timeout, reset by each, is longer."""

EXPLANATION_SECONDS: Final = 0.5
"""Wait for an explanation behind its rejection; none is owed (PROTOCOL 4.3)."""

PROGRESS_KEPT: Final = 64
"""Progress notes kept for a client that reads slowly; later ones are left out."""

MAX_PROGRESS_CHARS: Final = 1000

_STEP: Final = 1e-6
"""MCP wants progress to grow: what tells of waiting is less than any real progress."""


OUTCOME: Final = f"{payloads.PREFIX}outcome"
WITHDRAWN: Final = {payloads.META: {OUTCOME: ProposalState.WITHDRAWN}}
"""Tells the result of a withdrawn call, which is cancelled, from that of a failed one."""


@dataclass(frozen=True, slots=True)
class CallSettings:
    """Settings of the calls.

    Attributes:
        ttl: Seconds that a proposal waits for a decision and its result; ``None``: for ever.
        to: The participants that should decide proposals; empty: any that may, and then the first
            rejection decides.
    """

    ttl: float | None = TTL
    to: tuple[str, ...] = ()


class ProgressRelay:
    """Progress on its way to a client, which need not ask for it.

    Args:
        ctx: The client's request.
    """

    def __init__(self, ctx: ServerRequestContext[Any, Any]) -> None:
        self._session = ctx.session
        self._send, self._receive = anyio.create_memory_object_stream[Progress](PROGRESS_KEPT)
        self._last = -_STEP

    def put(self, progress: Progress) -> None:
        """Tell the client, soon; returns at once."""
        try:
            self._send.send_nowait(progress)
        except (anyio.WouldBlock, anyio.ClosedResourceError):
            log.debug("progress was left out: the client reads slowly")

    def note(self, text: str) -> None:
        """Tell the client something that is no progress of the tool's."""
        self.put(Progress(float("-inf"), None, text))

    async def run(self) -> None:
        """Tell the client of each, until :meth:`close`."""
        async with self._receive:
            async for each in self._receive:
                self._last = max(each.done, self._last + _STEP)
                message = each.message[:MAX_PROGRESS_CHARS] or None
                await self._session.report_progress(self._last, each.total, message)

    def close(self) -> None:
        """Nothing more comes."""
        self._send.close()


@asynccontextmanager
async def progress_relay(
    ctx: ServerRequestContext[Any, Any],
) -> AsyncGenerator[ProgressRelay | None]:
    """Relay progress for the length of a block; ``None`` where the client wants none."""
    if not (ctx.meta and ctx.meta.get("progress_token") is not None):
        yield None
        return
    relay = ProgressRelay(ctx)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(relay.run)
        try:
            yield relay
        finally:
            relay.close()


async def call_tool(
    space: Space,
    offer: Offer,
    params: JsonObject,
    ctx: ServerRequestContext[Any, Any],
    settings: CallSettings,
) -> JsonObject:
    """Call a participant's tool: a request if our capabilities allow it, otherwise a proposal.

    Args:
        space: The space.
        offer: The tool.
        params: The client's parameters.
        ctx: The client's request.
        settings: Settings of the calls.

    Returns:
        The result as JSON values, as it came; for a model also where there is none.

    Raises:
        MCPError: The call was answered with an error.
    """
    sent = forwarded(params, name=offer.name)
    sent.setdefault("arguments", {})
    try:
        async with progress_relay(ctx) as relay:
            if space.may(kinds.MCP_REQUEST, payloads.request(CALL, sent, "")):
                return await _request(space, offer, sent, relay)
            return await _propose(space, offer, sent, relay, settings)
    except RequestError as error:
        raise answered_with(error) from error
    except (
        InvalidArguments,
        NotExpressible,
        RequestTimeout,
        ParticipantGone,
        Refused,
        ConnectionFailed,
    ) as error:
        return tool_error(decisions.failed(offer.exposed, str(error)))


async def _request(
    space: Space, offer: Offer, sent: JsonObject, relay: ProgressRelay | None
) -> JsonObject:
    result = await space.request(
        offer.participant,
        CALL,
        sent,
        timeout=REQUEST_SECONDS,
        on_progress=None if relay is None else relay.put,
    )
    return as_result(result)


async def _propose(
    space: Space,
    offer: Offer,
    sent: JsonObject,
    relay: ProgressRelay | None,
    settings: CallSettings,
) -> JsonObject:
    async with (
        anyio.create_task_group() as tasks,
        space.propose(
            offer.participant,
            offer.name,
            payloads.as_object(sent["arguments"]),
            to=settings.to,
            ttl=settings.ttl,
            # A model that waits for another opinion to come waits for nothing, mostly.
            wait=Wait.ADDRESSED if settings.to else Wait.FIRST,
            on_progress=None if relay is None else relay.put,
        ) as proposal,
    ):
        if relay is not None:
            tasks.start_soon(_tell_waiting, space, sent, proposal, relay, settings)
        outcome = await proposal.outcome()
        tasks.cancel_scope.cancel()
    return await result_of_proposal(offer.exposed, outcome, settings)


async def _tell_waiting(
    space: Space,
    sent: JsonObject,
    proposal: ProposalHandle,
    relay: ProgressRelay,
    settings: CallSettings,
) -> None:
    """Tell the client every while that its proposal waits, and for whom."""
    payload = payloads.request(CALL, sent, "")
    began = anyio.current_time()
    while proposal.state is ProposalState.PENDING:
        waited = anyio.current_time() - began
        left = None if settings.ttl is None else settings.ttl - waited
        deciding = list(settings.to) or [
            each.id
            for each in space.participants
            if each.id != space.me
            and compile_announced(each.capabilities).allow(kinds.MCP_REQUEST, payload)
        ]
        relay.note(decisions.waiting(deciding, left))
        await anyio.sleep(WAITING_SECONDS)


async def result_of_proposal(tool: str, outcome: Outcome, settings: CallSettings) -> JsonObject:
    """The result of a proposed call, for a model."""
    match outcome:
        case Fulfillment():
            if outcome.error is not None:
                error = outcome.error
                raise MCPError(
                    int(error.get("code", 0)), str(error.get("message", "")), error.get("data")
                )
            result = as_result(outcome.result)
            if outcome.as_proposed:
                return result
            note = {"type": "text", "text": decisions.edited(outcome)}
            return {**result, "content": [*payloads.objects_in(result.get("content")), note]}
        case Rejection():
            explanation = await outcome.explanation(EXPLANATION_SECONDS)
            return tool_error(decisions.rejected(tool, outcome, explanation))
        case Expiry():
            return tool_error(decisions.expired(tool, outcome, settings.ttl))
        case Withdrawal():
            return {**tool_error(decisions.withdrawn(tool, outcome)), **WITHDRAWN}
        case Gone():
            return tool_error(decisions.gone(tool, outcome))


def is_withdrawn(result: object) -> bool:
    """True for the result of a proposal that was withdrawn."""
    return payloads.as_object(payloads.as_object(result).get(payloads.META)).get(OUTCOME) == (
        ProposalState.WITHDRAWN
    )


def forwarded(params: JsonObject, **changed: str) -> JsonObject:
    """A client's parameters for a participant, without what concerns client and us alone."""
    sent = {name: value for name, value in params.items() if name not in (payloads.META, "task")}
    meta = {
        name: value
        for name, value in payloads.as_object(params.get(payloads.META)).items()
        if name != payloads.PROGRESS_TOKEN
        and not name.startswith((payloads.PREFIX, "io.modelcontextprotocol/"))
    }
    return {**sent, **changed, **({payloads.META: meta} if meta else {})}


def as_result(result: Any) -> JsonObject:
    """A participant's result as MCP has it; what is none becomes an error that says so."""
    given = payloads.as_object(result)
    if isinstance(given.get("content"), list) or given.get("resultType") not in (None, "complete"):
        return {**COMPLETE, **given}
    return tool_error("The tool's answer is no result of MCP: it has no content.")


def answered_with(error: RequestError) -> MCPError:
    """A participant's error, for a client; codes of some peers are texts."""
    code = error.code if isinstance(error.code, int) else INTERNAL_ERROR
    return MCPError(code, str(error.message), error.data)


def tool_error(text: str) -> JsonObject:
    """A tool's result that is an error, with a text for a model."""
    return {**COMPLETE, "content": [{"type": "text", "text": text}], "isError": True}
