"""From how an exchange ended to what its caller gets: a value, or the exception that says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from meup_agent.errors import (
    AlreadyInProgress,
    NotSent,
    OutcomeUnknown,
    ParticipantGone,
    ProposalExpired,
    ProposalRejected,
    ProposalWithdrawn,
    Refused,
    RequestTimeout,
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

if TYPE_CHECKING:
    pass


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
