"""From how an exchange ended to what its caller gets: a value, or the exception that says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast

from meup_agent.errors import (
    AlreadyInProgress,
    NotSent,
    OutcomeUnknown,
    ParticipantGone,
    ProposalExpired,
    ProposalRejected,
    ProposalWithdrawn,
    Refused,
    RequestError,
    RequestTimeout,
    ToolError,
)
from meup_agent.protocol.outcomes import (
    Ending,
    Expiry,
    Fulfillment,
    GatewayRefused,
    Gone,
    LostRace,
    Outcome,
    Rejection,
    Responded,
    Unknown,
    Unsent,
    Withdrawal,
)
from meup_agent.protocol.payloads import WRAPPED, as_object, objects_in

if TYPE_CHECKING:
    from meup_agent.protocol.payloads import JsonObject


def outcome_of(ending: Ending) -> Outcome:
    """How a proposal ended.

    Raises:
        Refused: The gateway did not let it through.
        NotSent: It never left.
        OutcomeUnknown: It was sent, and no answer can arrive.
    """
    if isinstance(ending, Fulfillment | Rejection | Withdrawal | Expiry | Gone):
        return ending
    raise_for(ending)


def raise_for(ending: Ending, *, what: str = "the request", explanation: str = "") -> NoReturn:
    """Raise the exception for an ending that has no value.

    Args:
        ending: How it ended.
        what: What ended.
        explanation: Words for a rejection.
    """
    match ending:
        case Rejection():
            raise ProposalRejected(ending.proposal_id, ending.reason, ending.by, explanation)
        case Withdrawal():
            raise ProposalWithdrawn(ending.proposal_id, ending.reason)
        case Expiry():
            raise ProposalExpired(ending.proposal_id, sent=ending.sent, begun_by=ending.begun_by)
        case Gone():
            absent = ", ".join(ending.participants)
            why = f"{absent} left the space" if absent else "no participant that may is present"
            raise ParticipantGone(f"{what} cannot be answered: {why}")
        case GatewayRefused():
            raise Refused(ending.error, ending.message, ending.details)
        case Unsent():
            raise NotSent(f"{what} was not sent: {ending.why}")
        case Unknown():
            raise OutcomeUnknown(f"{what} was sent, and its outcome is not known: {ending.why}")
        case LostRace():
            raise AlreadyInProgress("", ending.by)
        case Fulfillment() | Responded():
            raise AssertionError("an ending with a value is no error")


def response_of(ending: Ending, *, what: str, cancelled: bool = True) -> Responded:
    """The response to a request of ours.

    Args:
        ending: How it ended.
        what: The request.
        cancelled: Whether it was cancelled at its deadline, as all are but ``initialize``.

    Raises:
        RequestTimeout: None came in time.
        ConnectionFailed: See :func:`raise_for`.
        PeerError: See :func:`raise_for`.
    """
    match ending:
        case Responded():
            return ending
        case Expiry(sent=False):
            raise RequestTimeout(f"{what} could not be sent before its deadline")
        case Withdrawal():
            raise OutcomeUnknown(f"{what} was given up: {ending.cause}")
        case Expiry() if cancelled:
            raise RequestTimeout(f"{what} got no response before its deadline, and was cancelled")
        case Expiry():
            raise RequestTimeout(
                f"{what} got no response before its deadline; it is never cancelled, so it may"
                " still be carried out"
            )
        case _:
            raise_for(ending, what=what)


def result_of(answer: Responded | Fulfillment) -> Any:
    """The result of a request.

    Raises:
        RequestError: It was answered with an error.
    """
    if answer.error is not None:
        error = answer.error
        raise RequestError(
            error.get("code", 0),
            str(error.get("message", "no message")),
            error.get("data"),
            by=answer.by if isinstance(answer, Responded) else answer.executor,
        )
    return answer.result


def tool_value(answer: Responded | Fulfillment) -> Any:
    """What a tool returned: its structured content, else its content (MCP ``CallToolResult``).

    A plain value that one of our own tools wrapped to have a structure is unwrapped again.

    Raises:
        RequestError: The call was answered with an error.
        ToolError: The tool ran and failed.
    """
    result = result_of(answer)
    if not isinstance(result, dict):
        return result
    body = cast("JsonObject", result)
    if body.get("isError") is True:
        raise ToolError(text_of(body) or "the tool failed without a message", body)
    structured = body.get("structuredContent")
    if structured is None:
        return body.get("content", body)
    if as_object(body.get("_meta")).get(WRAPPED) is True and isinstance(structured, dict):
        return cast("JsonObject", structured).get("result")
    return structured


def text_of(result: JsonObject) -> str:
    """The text blocks of a tool's result, joined by line ends."""
    blocks = objects_in(result.get("content"))
    return "\n".join(str(block["text"]) for block in blocks if "text" in block)
