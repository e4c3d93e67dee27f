"""One call of a tool, from an MCP client through the space: a request, or a proposal."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from meup_agent.client.proposal import ProposalHandle, ProposalRecord, Ttl, resolve_ttl
from meup_agent.client.proposal_feed import find_left, outcome_of_left
from meup_agent.client.space import Space, propose_request
from meup_agent.errors import MeupError, RequestError
from meup_agent.mcp.sdk import decisions
from meup_agent.mcp.sdk.messages import CAPABILITIES, is_declared, mcp_error
from meup_agent.mcp.sdk.naming import RESULT_TOOL, exposed_name
from meup_agent.mcp.sdk.tasks import Ctx, TaskSession
from meup_agent.mcp.server.client_calls import (
    MAX_REQUESTS,
    STATE,
    CallKey,
    ClientCall,
    WaitingCall,
    declared_only,
    too_many_requests,
)
from meup_agent.protocol.capability import compile_announced
from meup_agent.protocol.exchange import Wait
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import microseconds, read_moment
from meup_agent.protocol.wire.outcomes import (
    CallOutcome,
    Fulfillment,
    Outcome,
    Responded,
    Withdrawal,
    result_of,
)
from meup_agent.protocol.wire.payloads import MAX_LABEL_CHARS, JsonObject
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from meup_agent.mcp.server.catalog import Offer
    from meup_agent.mcp.server.client_member import ClientMember


log = logging.getLogger("meup_agent.mcp")

COMPLETE: Final = {"resultType": "complete"}
"""A field that 2026-07-28 wants in each result; older revisions take no notice of it."""

OUTCOME: Final = "dev.meup/outcome"
"""Key of ``_meta`` in the result of a proposal that was not carried out: ``rejected`` …"""

STILL_WAITS: Final = "pending"
"""Outcome of a call that is not decided, or not done, when its client would give up."""

PROPOSAL: Final = "dev.meup/proposal"
"""Beside it: the id under which the outcome can be asked for."""

REQUEST_SECONDS: Final = 600.0
"""Wait for a result, or for progress on the way to it; a client that waits less cancels."""

WAITING_SECONDS: Final = 5.0
"""Between two notes that a proposal waits: a client's own timeout, reset by each, is longer."""

TOLD_MARGIN: Final = 1.0
"""Seconds for what delays an answer, and for clocks, until another process takes it for given."""

MAX_ROUNDS: Final = 16
"""Results of one tool that ask its client instead of ending the call."""


@dataclass(frozen=True, slots=True)
class CallSettings:
    """Settings of the calls.

    Attributes:
        ttl: Seconds that a proposal waits for a decision and its result; ``None``: for ever.
            By default the space's (``MEUP_TTL``).
        answer_within: Seconds until a call that waits is answered with *still waits*; 0: never;
            ``None``: before its client gives up, as far as its name tells when.
        proposes: Calls may become proposals.
        to: The participants that should decide proposals; empty: any that may, and then the first
            rejection decides.
    """

    ttl: Ttl = "space"
    to: tuple[str, ...] = ()
    answer_within: float | None = None
    proposes: bool = True

    def answer_seconds(self, ctx: Ctx) -> float | None:
        """Seconds until a call that still waits is answered; ``None``: it waits on."""
        # One that is a task is polled, and has no limit.
        if not self.proposes or isinstance(ctx.session, TaskSession):
            return None
        if self.answer_within is not None:
            return self.answer_within or None
        limit = limit_of(ClientLabel.of(ctx))
        return None if limit is None else max(limit - ANSWER_MARGIN, MIN_ANSWER_SECONDS)

    @property
    def wait(self) -> Wait:
        """The outcomes that a proposal waits for."""
        # A model that waits for another opinion to come waits for nothing, mostly; but a person
        # who decides often comes because a call waits.
        return Wait.ADDRESSED if self.to else Wait.LATER


async def call_tool(
    member: ClientMember, offer: Offer, params: JsonObject, ctx: Ctx, settings: CallSettings
) -> JsonObject:
    """Call a participant's tool: a request if our capabilities allow it, otherwise a proposal.

    Args:
        member: The participant that the client is.
        offer: The tool.
        params: The client's parameters.
        ctx: The client's request.
        settings: Settings of the calls.

    Returns:
        The result as JSON values, as it came; for a model also where there is none.

    Raises:
        MCPError: The call was answered with an error.
    """
    within = settings.answer_seconds(ctx)
    state = params.get("requestState")
    if isinstance(state, str) and state.startswith(STATE):
        waiting = member.calls.resume(state)
        waiting.take_answers(payloads.as_object(params.get("inputResponses")), ctx)
        return await waiting.next_result(within)
    key = _key_of(offer, params, ctx)
    held = None if within is None else member.calls.held_again(key)
    if held is not None:
        held.call.attach(ctx)
        return await held.next_result(within)
    if len(member.calls.running) + len(member.calls.left_joined) >= MAX_REQUESTS:
        raise too_many_requests()
    sent = {"name": offer.name, "arguments": payloads.as_object(params.get("arguments"))}
    if within is not None and not member.space.may_request(
        offer.participant, payloads.TOOL_CALL, sent
    ):
        left = await _find_same_left(member, key, offer)
        if left is not None:
            return await _join_left(member, left, within, settings)
    session = member.sessions.find(ctx)
    log_level = "debug" if session is None else session.log_level
    call = ClientCall(offer.participant, ctx, log_level, member.start_soon)
    work = partial(_carry_out, member, offer, params, call, settings)
    if within is None and not _asks_by_result(ctx):
        return await work()
    space = member.space
    ttl = resolve_ttl(settings.ttl, space.proposals.ttl)
    deadline = math.inf if ttl is None else anyio.current_time() + ttl

    def still_waits() -> JsonObject:
        assert call.proposal is not None, "it was proposed"
        sent = forwarded(params, name=offer.name)
        left = None if ttl is None else deadline - anyio.current_time()
        return _still_waits(space, offer.exposed, call.proposal, sent, left, settings)

    waiting = WaitingCall(
        call,
        member.calls,
        still_waits=None if within is None else still_waits,
        key=key,
        deadline=deadline,
    )
    member.start_soon(waiting.run, work)
    return await waiting.next_result(within)


async def result_of_held(
    member: ClientMember, params: JsonObject, ctx: Ctx, settings: CallSettings
) -> JsonObject:
    """The outcome of a call that still waited, or that it still waits: the answer of our own tool.

    Args:
        member: The participant that the client is.
        params: The client's parameters.
        ctx: The client's request.
        settings: Settings of the calls.
    """
    proposal = payloads.as_object(params.get("arguments")).get("id")
    if not isinstance(proposal, str) or not proposal:
        # As a tool's own answer: a model reads that, and asks again.
        return tool_error(decisions.failed(RESULT_TOOL, "it needs the id of a call, as a text: id"))
    if member.calls.was_told(proposal):
        return tool_error(decisions.unknown_result(proposal))
    held = member.calls.held(proposal)
    within = settings.answer_seconds(ctx)
    if held is None:
        return await _result_of_left(member.space, proposal, within, settings)
    held.call.attach(ctx)
    return await held.next_result(within)


async def _result_of_left(
    space: Space, proposal: str, within: float | None, settings: CallSettings
) -> JsonObject:
    """The outcome of a call of an earlier process of our participant, as the gateway tells it."""
    try:
        record = await find_left(space, proposal)
        if record is None:
            return tool_error(decisions.unknown_result(proposal))
        tool = record.tool if record.target is None else exposed_name(record.target, record.tool)
        outcome = await outcome_of_left(space, record, within)
        if isinstance(outcome, ProposalRecord):
            return tool_error(decisions.answer_gone(tool))
        if outcome is not None:
            return await _result_of_proposal(tool, outcome, None)
    except RequestError as error:
        raise mcp_error(error) from error
    except MeupError as error:
        return tool_error(decisions.failed(RESULT_TOOL, str(error)))
    sent = {"name": record.tool, "arguments": record.arguments}
    end = record.expires_at
    left = None if end is None else (end - datetime.now(UTC)).total_seconds()
    return _still_waits(space, tool, record, sent, left, settings)


async def _find_same_left(
    member: ClientMember, key: CallKey, offer: Offer
) -> ProposalRecord | None:
    """The open proposal of another process of our participant that the same call joins.

    Only behind the time by which its own call was answered, so that two equal calls that are meant
    to be two stay two. One that is decided is told by its id alone: it may have been told already.
    """
    space = member.space
    if not space.gateway.guarantees.lists_proposals:
        return None
    label = " ".join(filter(None, key.client))
    try:
        async for each in space.proposals.list(proposer=space.me, tool=offer.name):
            digest = payloads.digest(
                payloads.TOOL_CALL, {"name": each.tool, "arguments": each.arguments}, each.target
            )
            if (
                (each.client, each.target, digest) == (label, offer.participant, key.digest)
                and each.outlives
                and _was_told(space, each)
                and each.id not in member.calls.proposals
            ):
                return each
    except MeupError as error:
        log.debug("%s is proposed anew, since the open ones are not known: %s", key.tool, error)
    return None


def _was_told(space: Space, record: ProposalRecord) -> bool:
    """True if the call of a proposal was answered that it still waits, by the gateway's time."""
    meta = payloads.read_proposal(record.envelope.payload).meta
    told_by = read_moment(meta.get(payloads.TOLD_BY))
    return told_by is not None and microseconds(space.gateway.now) >= told_by


async def _join_left(
    member: ClientMember, record: ProposalRecord, within: float, settings: CallSettings
) -> JsonObject:
    """The outcome of a proposal of another process, as for its own call."""
    member.calls.left_joined.add(record.id)
    try:
        return await _result_of_left(member.space, record.id, within, settings)
    finally:
        member.calls.left_joined.discard(record.id)


RESULT_TOOL_OFFER: Final[JsonObject] = {
    "name": RESULT_TOOL,
    "title": "Outcome of a call that waits",
    "description": (
        "Wait for the outcome of an earlier call that was answered with an id, since it still"
        " waited for a decision. It changes nothing. An outcome is told once."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {"id": {"type": "string", "description": "The id that the call was given."}},
        "required": ["id"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
"""Our own tool, as it is listed."""


def _key_of(offer: Offer, params: JsonObject, ctx: Ctx) -> CallKey:
    """The key by which the same call is known when it comes again."""
    called = {"name": offer.name, "arguments": payloads.as_object(params.get("arguments"))}
    digest = payloads.digest(payloads.TOOL_CALL, called, offer.participant)
    return CallKey(ClientLabel.of(ctx), offer.exposed, digest or "")


def _still_waits(
    space: Space,
    tool: str,
    proposal: ProposalHandle | ProposalRecord,
    sent: JsonObject,
    left: float | None,
    settings: CallSettings,
) -> JsonObject:
    """The answer to a client that would give up before its call is decided, or done.

    It is an error for programs, which would look for the result of the tool in it.
    """
    said = decisions.still_waits(
        tool,
        proposal.id,
        decisions.describe_waiting(_deciders(space, sent, settings), left),
        in_progress=proposal.state is ProposalState.IN_PROGRESS,
        result_tool=RESULT_TOOL,
    )
    return {**tool_error(said), payloads.META: {OUTCOME: STILL_WAITS, PROPOSAL: proposal.id}}


def _asks_by_result(ctx: Ctx) -> bool:
    """True if the client answers questions, and only those that come as results."""
    declared = ctx.session.client_capabilities
    return not ctx.session.can_send_request and any(
        is_declared(declared, each) for each in CAPABILITIES
    )


async def _carry_out(
    member: ClientMember,
    offer: Offer,
    params: JsonObject,
    call: ClientCall,
    settings: CallSettings,
) -> JsonObject:
    sent = forwarded(params, name=offer.name)
    sent.setdefault("arguments", {})
    failure: MCPError | None = None
    result: JsonObject = {}
    member.calls.running.add(call)
    try:
        try:
            result = await _invoke(member.space, offer, sent, call, settings)
        except RequestError as error:
            failure = mcp_error(error)
        except MeupError as error:
            result = tool_error(decisions.failed(offer.exposed, str(error)))
        await call.finish_notes()
    finally:
        member.calls.end(call)
    if failure is not None:
        raise failure
    return result


async def _invoke(
    space: Space, offer: Offer, sent: JsonObject, call: ClientCall, settings: CallSettings
) -> JsonObject:
    """Call the tool, and once more with each answer to what its result asks of the client."""
    for _ in range(MAX_ROUNDS):
        outcome = await _call_once(space, offer, sent, call, settings)
        if not isinstance(outcome, Responded):
            ttl = resolve_ttl(settings.ttl, space.proposals.ttl)
            return await _result_of_proposal(offer.exposed, outcome, ttl)
        result = result_of(outcome)
        asked = payloads.as_object(result)
        if asked.get("resultType") != "input_required":
            return as_result(result)
        if call.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return declared_only(call.ctx, asked)
        # Clients of older revisions answer requests of ours instead.
        sent = {**sent, "inputResponses": await _answers(call, asked.get("inputRequests"))}
        sent["requestState"] = asked.get("requestState")
    return tool_error(f"The tool asked more than {MAX_ROUNDS} times.")


async def _call_once(
    space: Space, offer: Offer, sent: JsonObject, call: ClientCall, settings: CallSettings
) -> CallOutcome:
    async with background_tasks() as tasks:

        def note_proposed(proposal: ProposalHandle) -> None:
            call.note_proposed(proposal)
            if call.wants_progress:
                tasks.start_soon(_tell_waiting, space, sent, proposal, call, settings)

        return await space.invoke(
            offer.participant,
            offer.name,
            payloads.as_object(sent["arguments"]),
            more=sent,
            proposal_meta=_proposal_meta(space, call.ctx, settings),
            to=settings.to,
            timeout=REQUEST_SECONDS,
            ttl=settings.ttl,
            wait=settings.wait,
            on_progress=call.put_progress if call.wants_progress else None,
            on_begun=call.ids.add,
            on_proposed=note_proposed,
        )


async def _answers(call: ClientCall, requests: object) -> JsonObject:
    """A client's answers to what a result asks."""
    answers: JsonObject = {}
    for key, each in payloads.as_object(requests).items():
        request = payloads.as_object(each)
        method = str(request.get("method"))
        if method not in CAPABILITIES:
            raise RequestError(INVALID_REQUEST, f"a tool cannot ask a client for {method[:64]!r}")
        answers[key] = await call.ask(method, payloads.as_object(request.get("params")))
    return answers


async def _tell_waiting(
    space: Space,
    sent: JsonObject,
    proposal: ProposalHandle,
    call: ClientCall,
    settings: CallSettings,
) -> None:
    """Tell the client every while that its proposal waits, and for whom."""
    ttl = resolve_ttl(settings.ttl, space.proposals.ttl)
    began = anyio.current_time()
    while proposal.state is ProposalState.PENDING:
        waited = anyio.current_time() - began
        left = None if ttl is None else ttl - waited
        call.put_waiting(decisions.describe_waiting(_deciders(space, sent, settings), left))
        await anyio.sleep(WAITING_SECONDS)


def _deciders(space: Space, sent: JsonObject, settings: CallSettings) -> list[str]:
    """The participants that may decide a call."""
    payload = payloads.request(payloads.TOOL_CALL, sent, "")
    return list(settings.to) or [
        each.id
        for each in space.participants
        if each.id != space.me
        and compile_announced(each.capabilities).allow(kinds.MCP_REQUEST, payload)
    ]


def _proposal_meta(space: Space, ctx: Ctx, settings: CallSettings) -> JsonObject:
    """The members of a proposal's ``_meta``: its client, and by when that may stop waiting."""
    label = ClientLabel.of(ctx)
    meta: JsonObject = {payloads.CLIENT: label._asdict()} if label.name else {}
    within = settings.answer_seconds(ctx)
    if within is not None:
        told_by = space.gateway.now + timedelta(seconds=within + TOLD_MARGIN)
        meta |= {payloads.OUTLIVES: True, payloads.TOLD_BY: told_by.isoformat()}
    return meta


async def propose_read(
    space: Space, participant: str, method: str, params: JsonObject, settings: CallSettings
) -> Any:
    """Propose what a client reads and its participant may not ask for; the result as it came.

    Raises:
        RequestError: It was answered with an error, or not carried out as it was proposed.
        MeupError: It could not be proposed, or its outcome is not known.
    """
    outcome = await propose_request(
        space, participant, method, params, to=settings.to, ttl=settings.ttl, wait=settings.wait
    )
    what = f"{method} {params.get('uri') or params.get('name')}"
    if not isinstance(outcome, Fulfillment):
        said = await decisions.undone(what, outcome, resolve_ttl(settings.ttl, space.proposals.ttl))
        raise RequestError(payloads.EXCHANGE_ERROR, said, {OUTCOME: outcome.word})
    result = result_of(outcome)
    if not outcome.as_proposed:
        # It has no place for a note, without which it would pass for what was asked for.
        raise RequestError(payloads.EXCHANGE_ERROR, decisions.edited_read(what, outcome))
    return result


async def _result_of_proposal(tool: str, outcome: Outcome, ttl: float | None) -> JsonObject:
    """The result of a proposed call that had some seconds, for a model."""
    if isinstance(outcome, Fulfillment):
        if payloads.as_object(result_of(outcome)).get("resultType") == "input_required":
            return tool_error(decisions.asks_first(tool))
        result = as_result(outcome.response)
        if outcome.as_proposed:
            return result
        note = {"type": "text", "text": decisions.edited(outcome)}
        return {**result, "content": [*payloads.objects_in(result.get("content")), note]}
    said = tool_error(await decisions.undone(tool, outcome, ttl))
    # Programs find the outcome beside the text.
    return {**said, payloads.META: {OUTCOME: outcome.word}}


def forwarded(params: JsonObject, **changed: str) -> JsonObject:
    """A client's parameters for a participant, without what concerns client and us alone."""
    sent = payloads.filter_meta(
        params,
        lambda name: (
            name != payloads.PROGRESS_TOKEN
            and not name.startswith((payloads.PREFIX, "io.modelcontextprotocol/"))
        ),
    )
    sent.pop("task", None)
    return {**sent, **changed}


def as_result(result: Any) -> JsonObject:
    """A participant's result as MCP has it; what is none becomes an error that says so."""
    given = payloads.as_object(result)
    if OUTCOME in payloads.as_object(given.get(payloads.META)):
        # Ours to say: a tool that was carried out must not pass for one that was not.
        given = payloads.filter_meta(given, lambda name: name != OUTCOME)
    if isinstance(given.get("content"), list) or given.get("resultType") not in (None, "complete"):
        return {**COMPLETE, **given}
    return tool_error("The tool's answer is not a result of MCP: it has no content.")


def tool_error(text: str) -> JsonObject:
    return {**COMPLETE, "content": [{"type": "text", "text": text}], "isError": True}


def is_withdrawn(result: object) -> bool:
    meta = payloads.as_object(payloads.as_object(result).get(payloads.META))
    return meta.get(OUTCOME) == Withdrawal.word


# --- client labels ---
# What a client says of itself, and how long it waits for an answer.
#
# A label names the program at the other end, for people; the participant is the token's. Clients
# end a call by themselves after a time that they do not tell, so it is known from their names.

ANSWER_MARGIN: Final = 10.0
"""Seconds before its client's limit at which a call that still waits is answered."""

USUAL_LIMIT: Final = 60.0
"""Seconds that most clients wait: the default of the SDK for TypeScript."""

MIN_ANSWER_SECONDS: Final = 1.0


class ClientLabel(NamedTuple):
    """The name and the version that a client gives at its handshake; empty where it gives none."""

    name: str = ""
    version: str = ""

    @classmethod
    def of(cls, ctx: Ctx) -> ClientLabel:
        """The label of the client of a request, as it is with this request."""
        params = ctx.session.client_params
        if params is None:
            return cls()
        said = params.client_info
        return cls(said.name[:MAX_LABEL_CHARS], said.version[:MAX_LABEL_CHARS])


class KnownClient(NamedTuple):
    """A client whose limit is not the usual one."""

    name: str
    since: tuple[int, ...]  # the first version that this is true of; empty: any
    limit: float | None  # seconds; ``None``: it waits for hours, or as long as it takes
    about: str


KNOWN_CLIENTS: Final = (
    KnownClient("claude-code", (1,), None, "Claude Code: `MCP_TOOL_TIMEOUT`, by default a day"),
    KnownClient("gemini-cli-mcp-client", (), 600.0, "Gemini CLI: `timeout` of the server's entry"),
    KnownClient("fastmcp", (4,), 300.0, "FastMCP: over HTTP; by a command it waits on"),
    KnownClient(
        "mcp", (), None, "the SDK for Python and older FastMCP, if a program gives no other name"
    ),
)
"""The clients that are known to wait longer, by the names that they give."""


def limit_of(label: ClientLabel) -> float | None:
    """Seconds after which a client gives a call up; ``None``: not before a person can decide."""
    for known in KNOWN_CLIENTS:
        if label.name == known.name and _version(label.version) >= known.since:
            return known.limit
    return USUAL_LIMIT


def _version(said: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", said)[:3])
