"""A call of a tool, as a request or as a proposal, and its result on the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from meup_agent.cli import exit_codes
from meup_agent.cli.arguments import (
    convert_arguments,
    did_you_mean,
    read_arguments,
    read_input_schema,
    unknown_arguments,
)
from meup_agent.cli.failures import Failure, code_for
from meup_agent.cli.options import AcceptEdits, Args, ArgsFile, OptionGroup, Owner, To, Tool, Words
from meup_agent.cli.render.escape import arguments as in_words
from meup_agent.cli.render.escape import as_json_line, compact, visible
from meup_agent.cli.render.formatting import as_text
from meup_agent.cli.render.progress import progress_line
from meup_agent.client.messages import Chat
from meup_agent.client.proposal_handle import TTL
from meup_agent.client.schema_check import checker_for
from meup_agent.errors import (
    ParticipantGone,
    ProposalRejected,
    Refused,
    RequestError,
    RequestTimeout,
    ToolError,
)
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.capability import compile_announced
from meup_agent.protocol.exchange import Wait
from meup_agent.protocol.outcomes import (
    Expiry,
    Fulfillment,
    Gone,
    Rejection,
    Responded,
    Withdrawal,
    raise_for,
    value_of,
)

if TYPE_CHECKING:
    from meup_agent.cli.arguments import GivenArguments
    from meup_agent.cli.command_session import CommandSession
    from meup_agent.cli.render.console import Stderr
    from meup_agent.client.space import Space
    from meup_agent.protocol.outcomes import Outcome
    from meup_agent.session.listeners import EnvelopeStream

LIST_SECONDS: Final = 5.0
"""Wait for a participant's list of tools; then the call goes unchecked."""

EXPLANATION_SECONDS: Final = 0.5
"""Wait for an explanation behind its rejection; none is owed (PROTOCOL 4.3)."""

MAX_CHANGES: Final = 400
MAX_NAMED: Final = 12


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call, and the way to make it."""

    participant: str
    tool: str
    given: GivenArguments
    to: tuple[str, ...] = ()
    seconds: float | None = TTL
    wait: Wait = Wait.ADDRESSED
    idempotent: bool = False
    accept_edits: bool = False
    as_proposal: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions(OptionGroup):
    """The options that name a call, and what is done with a proposal of it."""

    owner: Owner
    tool: Tool
    words: Words = None
    args: Args = None
    args_file: ArgsFile = None
    to: To = None
    accept_edits: AcceptEdits = False

    def given(self) -> GivenArguments:
        """The call's arguments as they were given."""
        return read_arguments(self.words or [], self.args, self.args_file)


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call."""

    executor: str
    result: Any
    fulfilled: Fulfillment | None = None  # None: it was requested


async def run_tool_call(session: CommandSession, wanted: ToolCall) -> None:
    """Call the tool, and print its result."""
    space = session.space
    session.require(wanted.participant)
    arguments = await _arguments(session, wanted)
    try:
        if not wanted.as_proposal and _may(space, "tools/call", _params(wanted, arguments)):
            answer = await _request(session, wanted, arguments)
        else:
            answer = await _propose(session, wanted, arguments)
        session.given_up = ""
        await _print_result(session, wanted, answer)
    except ToolError as error:
        raise Failure(f"{_name(wanted)} failed: {error}", code_for(error)) from error
    except RequestError as error:
        by = error.by or wanted.participant
        raise Failure(f"{by} answered with an error: {error}", code_for(error)) from error


# --- before the call ---


async def _arguments(session: CommandSession, wanted: ToolCall) -> dict[str, Any]:
    """The arguments, read and checked by what the tool's owner says of it."""
    async with progress_line(session.stderr.console, f"asking {wanted.participant} for its tools"):
        tools = await _tools(session.space, wanted)
    return _check_arguments(tools, wanted, session.stderr)


async def _tools(space: Space, wanted: ToolCall) -> list[dict[str, Any]] | None:
    """The owner's tools; ``None`` where we may not ask, or get no answer."""
    if not _may(space, "tools/list", {}):
        return None
    try:
        return await space.tools(wanted.participant, timeout=LIST_SECONDS)
    except (RequestError, RequestTimeout, Refused, ParticipantGone):
        return None


def _check_arguments(
    tools: list[dict[str, Any]] | None, wanted: ToolCall, stderr: Stderr
) -> dict[str, Any]:
    """The arguments, read and checked by what the tool's owner says of its tools."""
    if tools is None:
        return convert_arguments(wanted.given)
    by_name = {str(tool.get("name")): tool for tool in tools}
    if wanted.tool not in by_name:
        raise _no_such_tool(wanted, [visible(name, 64) for name in by_name])
    schema = by_name[wanted.tool].get("inputSchema")
    inputs = read_input_schema(schema)
    arguments = convert_arguments(wanted.given, inputs, checker_for(schema, _name(wanted)))
    for remark in unknown_arguments(arguments, inputs):
        stderr.note(f"{remark}; sent all the same")
    return arguments


def _no_such_tool(wanted: ToolCall, names: list[str]) -> Failure:
    """The failure that names the tools that there are."""
    hint = did_you_mean(wanted.tool, names)
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    has = f"its tools: {', '.join(names[:MAX_NAMED])}{more}" if names else "it has none"
    sentence = f"{wanted.participant} has no tool {wanted.tool!r}{hint}; {has}"
    return Failure(sentence, exit_codes.USAGE)


def _may(space: Space, method: str, params: dict[str, Any]) -> bool:
    return space.may(kinds.MCP_REQUEST, payloads.request(method, params, ""))


def _params(wanted: ToolCall, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": wanted.tool, "arguments": arguments}


def _name(wanted: ToolCall) -> str:
    return f"{wanted.participant}.{wanted.tool}"


# --- the call ---


async def _request(
    session: CommandSession, wanted: ToolCall, arguments: dict[str, Any]
) -> CallResult:
    session.given_up = f"{wanted.participant} was asked to stop {wanted.tool}"
    async with progress_line(
        session.stderr.console, f"waiting for {wanted.participant}"
    ) as waiting:
        result = await session.space.request(
            wanted.participant,
            "tools/call",
            _params(wanted, arguments),
            timeout=wanted.seconds,
            # The time that was given holds, whatever progress comes meanwhile.
            total_timeout=wanted.seconds,
            idempotent=wanted.idempotent,
            on_progress=waiting.update,
        )
    return CallResult(wanted.participant, result)


async def _propose(
    session: CommandSession, wanted: ToolCall, arguments: dict[str, Any]
) -> CallResult:
    session.remark_absence(wanted.to)
    who = ", ".join(visible(name, 64) for name in wanted.to) or "a participant"
    with session.space.watch() as envelopes:
        async with (
            progress_line(session.stderr.console, f"waiting for {who} to decide") as waiting,
            session.space.propose(
                wanted.participant,
                wanted.tool,
                arguments,
                to=wanted.to,
                ttl=wanted.seconds,
                wait=wanted.wait,
                on_progress=waiting.update,
            ) as proposal,
        ):
            session.given_up = f"proposal {proposal.id} was withdrawn"
            why = "" if wanted.as_proposal else ", since you may not call it yourself"
            said = f"{_name(wanted)}({in_words(arguments, 200)})"
            session.stderr.note(
                f"proposed {said} as {proposal.id}{why}; waiting for {who} to decide"
            )
            if not wanted.to and _no_other_may(session.space, wanted, arguments):
                session.stderr.note("no participant here may fulfill it, but one may still join")
            outcome = await proposal.outcome()
        if isinstance(outcome, Fulfillment):
            session.stderr.note(f"fulfilled by {outcome.by}")
            return CallResult(outcome.executor, outcome.result, outcome)
        if isinstance(outcome, Rejection):
            error = ProposalRejected(outcome.proposal_id, outcome.reason, outcome.by)
            explained = await _explanation(envelopes, outcome)
            await _print_outcome(session, wanted, outcome, explained)
            said = f"{error} ({explained})" if explained else str(error)
            raise Failure(said, exit_codes.REJECTED) from error
        await _print_outcome(session, wanted, outcome)
    raise_for(outcome, what=f"proposal {proposal.id}")


def _no_other_may(space: Space, wanted: ToolCall, arguments: dict[str, Any]) -> bool:
    """True if no other participant that is present may make the call, as announced."""
    payload = payloads.request("tools/call", _params(wanted, arguments), "")
    return not any(
        compile_announced(each.capabilities).allow(kinds.MCP_REQUEST, payload)
        for each in space.participants
        if each.id != space.me
    )


async def _explanation(envelopes: EnvelopeStream, rejected: Rejection) -> str:
    """The rejecting participant's explanation, where it comes at once; else empty."""
    with anyio.move_on_after(EXPLANATION_SECONDS):
        async for envelope in envelopes:
            if envelope.kind == kinds.CHAT and envelope.sender == rejected.by:
                chat = Chat(envelope)
                if chat.about == rejected.id:
                    return chat.text
    return ""


# --- its result ---

_UNDONE: dict[type[Outcome], str] = {
    Rejection: "rejected",
    Withdrawal: "withdrawn",
    Expiry: "expired",
    Gone: "gone",
}
"""Outcomes without a result, as ``--json`` names them."""


async def _print_outcome(
    session: CommandSession, wanted: ToolCall, outcome: Outcome, explanation: str = ""
) -> None:
    """Print the outcome of a proposal without a result, for programs; people read the error."""
    if not wanted.as_json:
        return
    rejected = outcome if isinstance(outcome, Rejection) else None
    document = {
        "outcome": _UNDONE[type(outcome)],
        "proposal": outcome.proposal_id,
        "by": None if rejected is None else rejected.by,
        "reason": None if rejected is None else rejected.reason,
        "explanation": explanation or None,
    }
    await session.output.write(as_json_line(document))


async def _print_result(session: CommandSession, wanted: ToolCall, answer: CallResult) -> None:
    """The result, and what in it is not as it was proposed."""
    fulfilled = answer.fulfilled
    value = value_of(fulfilled or Responded(answer.executor, answer.result))
    if wanted.as_json:
        await session.output.write(as_json_line(_document(value, answer)))
    elif text := as_text(answer.result):
        await session.output.write(text)
    else:
        session.stderr.note(f"{_name(wanted)} is done; it returned nothing")
    if fulfilled is None or fulfilled.as_proposed:
        return
    sentence = _difference(fulfilled)
    if not wanted.accept_edits:
        raise Failure(f"{sentence}; --accept-edits takes that as success", exit_codes.EDITED)
    session.stderr.note(sentence)


def _difference(fulfilled: Fulfillment) -> str:
    if not fulfilled.knows_edits:
        return "carried out, and no participant confirms that it was as proposed"
    said = "; ".join(
        f"{visible(each.path, 64)} is {compact(each.fulfilled, 64)}"
        f" instead of {compact(each.proposed, 64)}"
        for each in fulfilled.changes
    )
    said = visible(said, MAX_CHANGES) or "how is hidden by the gateway"
    return f"carried out otherwise than proposed: {said}"


def _document(value: Any, answer: CallResult) -> dict[str, Any]:
    fulfilled = answer.fulfilled
    changes = fulfilled.changes if fulfilled is not None else ()
    return {
        "outcome": "responded" if fulfilled is None else "fulfilled",
        "result": value,
        "executor": answer.executor,
        "proposal": None if fulfilled is None else fulfilled.proposal_id,
        "fulfilled_by": None if fulfilled is None else fulfilled.by,
        "as_proposed": None if fulfilled is None else fulfilled.as_proposed,
        "changes": [
            {"path": each.path, "proposed": each.proposed, "fulfilled": each.fulfilled}
            for each in changes
        ],
    }
