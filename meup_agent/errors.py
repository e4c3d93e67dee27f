"""Every exception that this package raises.

Whose fault it was decides the branch::

    MeupError
    ├── UsageError                the caller's mistake: change the program or its settings
    │   ├── HandlerDefinitionError    a decorator on a function that cannot work
    │   ├── ConfigurationError        a setting or a configuration file is wrong
    │   ├── InvalidPattern            a capability pattern that does not compile
    │   ├── NotExpressible            what a dialect or JSON has no words for
    │   ├── IllegalStep               a step that a lifecycle table does not have
    │   ├── ObservingOnly             a verb in a space that is only observed
    │   ├── AlreadyInProgress         another fulfillment is on its way
    │   ├── AlreadyDecided            the proposal is no longer pending
    │   ├── AmbiguousProposal         several proposals have the id
    │   ├── OwnerUnknown              a name that not exactly one participant has
    │   │   └── OwnerChanged              one that its participant has no more
    │   ├── NotOffered                a decision that an inbox does not offer
    │   └── VoteRefused               a vote that does not count
    ├── PeerError                 another participant's mistake, or its answer
    │   ├── InvalidEnvelope           a frame that is not a valid envelope
    │   ├── InvalidArguments          arguments that a tool does not take
    │   ├── RequestError              a request was answered with a JSON-RPC error
    │   ├── ToolError                 a tool ran and reported a failure
    │   ├── ProposalEdited            it was carried out otherwise than proposed
    │   ├── ProposalRejected          a rejection that counts came
    │   ├── ProposalWithdrawn         the proposal was taken back
    │   ├── ProposalExpired           no decision or result in time
    │   ├── RequestTimeout            no response in time
    │   ├── Refused                   the gateway did not let the envelope through
    │   ├── StreamEnded               a stream that we write was ended by another, or lost
    │   ├── ReasoningCancelled        a line of thought was stopped
    │   └── ParticipantGone           everyone who could answer has left
    ├── RejectMessage             our own refusal of a message, raised by a middleware
    └── ConnectionFailed          the connection's
        ├── TransportError            one connection
        │   ├── CannotConnect
        │   ├── HandshakeRefused
        │   └── TransportClosed
        ├── SessionEnded              this participant will not be connected again
        │   ├── TokenRefused
        │   ├── NoSuchSpace
        │   ├── Kicked
        │   ├── TakenOver
        │   ├── RemoteShutdown
        │   ├── CannotJoinBeside
        │   ├── CannotObserve
        │   └── WrongParticipant
        ├── NotSent                   certainly not sent
        └── OutcomeUnknown            sent; whether it was carried out is not known

Beside the tree stands :class:`HandlerCancelled`, which is not an error: as any cancellation, it is
to be let pass.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

MAX_SAID_CHARS = 500
"""Characters of what others said that an error repeats."""


def printable(said: str) -> str:
    """Words of others, on one line, with every character escaped that does not print as itself."""
    if said.isprintable():  # as nearly all are
        return said
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in said
    )


def list_names(names: Sequence[str], most: int) -> str:
    """Names of others, in quotation marks and printable, and the number of those left out."""
    shown = ", ".join(repr(printable(name[:64])) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def system_reason(error: OSError) -> str:
    """The system's words for why it refused, as they stand within a sentence."""
    return (error.strerror or "unknown reason").lower()


@contextmanager
def explain_os_error(said: str, advice: str = "") -> Generator[None]:
    """Make one sentence of it where the system refuses what a block does: its reason, in brackets.

    Raises:
        ConfigurationError: It refused; ``said`` stands before the reason, ``advice`` behind it.
    """
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{said} ({system_reason(error)}){advice}") from None


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, at any depth, in their order; another exception is its own."""
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves_of(each)
    else:
        yield error


class MeupError(Exception):
    """The root of this package's exceptions."""


class RejectMessage(MeupError):
    """Raised by a middleware to refuse a message.

    A request that is handled is answered with the error ``refused``, a proposal is rejected, and of
    another message nothing more becomes. What the agent was about to send is not sent, and its
    caller gets this.

    Attributes:
        reason: The reason code, for example ``Reason.BUSY``.
        explain: Longer words for the sender; ``None``: none.
    """

    def __init__(self, reason: str, explain: str | None = None) -> None:
        super().__init__(f"{reason}: {explain}" if explain else str(reason))
        self.reason = str(reason)
        self.explain = explain


# --- the caller's mistake ------------------------------------------------------------------


class UsageError(MeupError):
    """The calling program, or its settings, must be changed."""


class HandlerDefinitionError(UsageError, TypeError):
    """A decorator was put on a function that cannot work as that kind of handler."""


class ConfigurationError(UsageError, ValueError):
    """A setting is missing or wrong; the message says where, which, and what was expected."""


class InvalidPattern(UsageError, ValueError):
    """A capability pattern does not compile (PROTOCOL 7).

    Attributes:
        place: The pattern's place in the capability, for example ``payload.params.name``.
    """

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place


class NotExpressible(UsageError, ValueError):
    """Something cannot be said: a dialect has no words for it (PROTOCOL 1), or JSON no form."""


class IllegalStep(UsageError):
    """A lifecycle table has no such step; nothing was changed."""


class ObservingOnly(UsageError):
    """The space was joined with ``observe=True``, and observers say nothing."""


class AlreadyInProgress(UsageError):
    """Another fulfilling request is out, so ours was not sent or is cancelled (PROTOCOL 4.4).

    Attributes:
        by: The participant that fulfills the proposal; perhaps ourselves, in another process.
    """

    def __init__(self, proposal_id: str, by: str) -> None:
        super().__init__(
            f"proposal {proposal_id} is already being fulfilled by {by!r}; leave it to them"
        )
        self.proposal_id = proposal_id
        self.by = by


class AlreadyDecided(UsageError):
    """The proposal is not pending any more, so the decision was not sent.

    Attributes:
        state: Its state instead: ``fulfilled``, ``rejected``, ``withdrawn`` or ``expired``.
    """

    def __init__(self, proposal_id: str, state: str) -> None:
        super().__init__(f"proposal {proposal_id} is {state}; there is nothing left to decide")
        self.proposal_id = proposal_id
        self.state = state


class NotOffered(UsageError):
    """The inbox does not offer this decision of this proposal, so it was not sent."""


class AmbiguousProposal(UsageError, LookupError):
    """An id names more than one proposal, and nothing tells which is meant; nothing was sent.

    Attributes:
        proposal_id: The id.
        proposers: The proposers who used it, oldest first; one who used it again stands twice.
    """

    def __init__(self, proposal_id: str, proposers: Sequence[str]) -> None:
        listed = ", ".join(repr(printable(name)) for name in proposers)
        super().__init__(
            f"{printable(proposal_id)!r} is the id of {len(proposers)} proposals, of {listed}; "
            "name the proposer, or hand over the record of the one that was read"
        )
        self.proposal_id = proposal_id
        self.proposers = tuple(proposers)


class OwnerUnknown(UsageError, LookupError):
    """A tool, prompt or resource was named without its participant, and not exactly one has it.

    Attributes:
        owners: The participants that have it.
    """

    def __init__(self, what: str, owners: Sequence[str], *, before: str | None = None) -> None:
        listed = list_names(owners, 8)
        said = (
            f"{len(owners)} participants have the {what}: {listed}"
            if owners
            else (f"no participant that can be asked has the {what}")
        )
        if before is not None:
            had = repr(printable(before))
            said = f"the {what} was that of {had}, which has it no more, but {listed or 'none'} has"
        super().__init__(f"{said}; say which participant is meant")
        self.owners = tuple(owners)


class OwnerChanged(OwnerUnknown):
    """A participant had what is named, and has it no more; ``find(…, renew=True)`` takes another.

    Attributes:
        owner: The participant that had it.
    """

    def __init__(self, what: str, owner: str, owners: Sequence[str]) -> None:
        super().__init__(what, owners, before=owner)
        self.owner = owner


class VoteRefused(UsageError):
    """A vote that does not count; the votes are as they were before it (PROTOCOL 5)."""


# --- another participant's mistake, or its answer ------------------------------------------


class PeerError(MeupError):
    """Another participant's mistake, or an answer that is not a result."""


class InvalidEnvelope(PeerError, ValueError):
    """A frame is not a valid envelope.

    Attributes:
        problem: Short code: ``too_large``, ``invalid_utf8``, ``too_deep``, ``invalid_json`` or
            ``invalid_envelope``.
        envelope_id: The id of the envelope, where it could be read, for the answer's correlation.
    """

    def __init__(self, problem: str, message: str, *, envelope_id: str | None = None) -> None:
        super().__init__(message)
        self.problem = problem
        self.envelope_id = envelope_id


class InvalidArguments(PeerError, ValueError):
    """A tool was called with arguments that it does not take (JSON-RPC −32602).

    Attributes:
        problems: One entry an argument: ``{"argument": name, "problem": sentence}``.
    """

    def __init__(self, message: str, problems: Sequence[dict[str, str]] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class RequestError(PeerError):
    """A request was answered with a JSON-RPC error; a handler may raise it to answer with one.

    Attributes:
        code: The JSON-RPC code, for example −32601; a string where a peer sends one.
        message: The peer's message.
        data: Whatever the peer added.
        by: The participant that answered; ``None`` for one that a handler raises itself.
    """

    def __init__(
        self, code: int | str, message: str, data: Any = None, *, by: str | None = None
    ) -> None:
        super().__init__(f"{message} (code {code})")
        self.code = code
        self.message = message
        self.data = data
        self.by = by


class ToolError(PeerError):
    """A tool ran and reported a failure (a result with ``isError``).

    Attributes:
        result: The whole MCP ``CallToolResult``, as JSON values.
    """

    def __init__(self, message: str, result: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result: dict[str, Any] = result or {}


class ProposalEdited(PeerError):
    """A proposal was carried out otherwise than proposed; ``accept_edits=True`` takes its result.

    Where the fulfiller tells the outcome and not whether it changed something, as gateways that
    hide the request make possible, it counts as changed, since it may have been.

    Attributes:
        by: The participant that fulfilled it.
        changes: The differences, each with ``path``, ``proposed``, ``fulfilled``.
        value: The value that the tool returned.
        certain: It is known that something was changed.
    """

    def __init__(
        self,
        proposal_id: str,
        by: str,
        changes: Sequence[Any],
        value: Any,
        *,
        certain: bool = True,
    ) -> None:
        said = "; ".join(
            f"{change.path}: {change.fulfilled!r} instead of {change.proposed!r}"
            for change in changes
        )
        how = said[:MAX_SAID_CHARS] or "how is hidden by the gateway"
        what = f" otherwise than proposed: {how}" if certain else ", perhaps not as it was proposed"
        super().__init__(
            f"proposal {proposal_id} was fulfilled by {by!r}{what}; "
            "pass accept_edits=True to take its result"
        )
        self.proposal_id = proposal_id
        self.by = by
        self.changes = tuple(changes)
        self.value = value
        self.certain = certain


class ProposalRejected(PeerError):
    """A proposal was rejected by a participant whose rejection counts (PROTOCOL 4.5).

    Attributes:
        reason: The reason code, for example ``unsafe``.
        by: The participant that rejected it.
        explanation: Their words, as far as they had come: they follow the rejection, within a
            second where it was made with words. :meth:`ProposalHandle.explanation` waits for more.
    """

    def __init__(self, proposal_id: str, reason: str, by: str, explanation: str = "") -> None:
        said = f" ({printable(explanation[:MAX_SAID_CHARS])})" if explanation else ""
        super().__init__(f"proposal {proposal_id} was rejected by {by!r}: {reason}{said}")
        self.explanation = explanation
        self.proposal_id = proposal_id
        self.reason = reason
        self.by = by


class ProposalWithdrawn(PeerError):
    """A proposal was withdrawn while a caller waited for its outcome."""

    def __init__(self, proposal_id: str, reason: str, text: str = "") -> None:
        why = f" ({printable(text)})" if text else ""
        super().__init__(f"proposal {proposal_id} was withdrawn: {reason}{why}")
        self.proposal_id = proposal_id
        self.reason = reason


class ProposalExpired(PeerError, TimeoutError):
    """A proposal had no outcome before its time was up; it was withdrawn, if it had left at all.

    Attributes:
        proposal_id: The proposal's id.
        begun_by: The participant that had begun to fulfill it; empty: none was seen to.
    """

    def __init__(
        self,
        proposal_id: str,
        *,
        sent: bool = True,
        begun_by: str = "",
        missing: str = "",
        failed: str = "",
    ) -> None:
        why = "; ".join(filter(None, (missing or "no participant decided it in time", failed)))
        why = why if sent else "it could not be sent in time"
        if begun_by:
            why = f"{begun_by!r} had begun to fulfill it, and it was not done in time"
        super().__init__(f"proposal {proposal_id} expired: {why}")
        self.proposal_id = proposal_id
        self.begun_by = begun_by


class RequestTimeout(PeerError, TimeoutError):
    """No response came before the deadline; the request was cancelled, if it was no ``initialize``.

    The deadline counts from the last progress, up to ten times the timeout in all.
    """


class Refused(PeerError):
    """The gateway refused an envelope (``system/error``).

    Attributes:
        error: The gateway's code, for example ``capability_violation``.
        details: The whole payload of the error.
    """

    def __init__(self, error: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.error = error
        self.details: dict[str, Any] = details or {}


class StreamEnded(PeerError):
    """A stream that we write has ended, and takes no more frames.

    Attributes:
        reason: The reason code, for example ``complete`` (another participant ended it),
            ``revoked``, or ``disconnected`` (the gateway no longer had it after a reconnect).
        by: The participant that ended it, or the gateway.
    """

    def __init__(self, reason: str, by: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.by = by


class ReasoningCancelled(PeerError):
    """A line of thought of ours was stopped, by a participant that may or since its time was over.

    Attributes:
        reason: The reason code, for example ``timeout``.
        by: The participant that stopped it; our own name where its time was over.
    """

    def __init__(self, reason: str, by: str, text: str = "") -> None:
        because = f"{reason}: {text}" if text else reason
        super().__init__(f"the reasoning was stopped by {by!r}: {printable(because)}")
        self.reason = reason
        self.by = by


class ParticipantGone(PeerError):
    """Everyone that an exchange was addressed to has been absent too long (PROTOCOL 4.6)."""


# --- the connection's -----------------------------------------------------------------------


class ConnectionFailed(MeupError):
    """The connection failed; no program was wrong."""


class TransportError(ConnectionFailed):
    """One connection could not be made, or ended."""


class CannotConnect(TransportError):
    """Nothing answered at the address, or TLS or the handshake failed."""


class HandshakeRefused(TransportError):
    """The gateway answered the handshake with an HTTP status instead of a connection.

    Attributes:
        status: The HTTP status, for example 401.
        retry_after: Seconds to wait, where the gateway said so.
        body: The gateway's words, at most a few hundred characters, safe to print.
    """

    def __init__(self, status: int, retry_after: float | None = None, body: str = "") -> None:
        body = printable(body)
        said = f": {body}" if body else ""
        super().__init__(f"the gateway refused the connection with status {status}{said}")
        self.status = status
        self.retry_after = retry_after
        self.body = body


class TransportClosed(TransportError):
    """The connection has ended.

    Attributes:
        code: The WebSocket close code; 1006 where there was none.
        reason: The closing side's words, safe to print.
    """

    def __init__(self, code: int, reason: str = "") -> None:
        reason = printable(reason)
        said = f": {reason}" if reason else ""
        super().__init__(f"the connection is closed (code {code}{said})")
        self.code = code
        self.reason = reason


class SessionEnded(ConnectionFailed):
    """This participant's presence in the space is over and will not be dialled again."""


class TokenRefused(SessionEnded):
    """The gateway does not know the token (401, 4401), or refuses it with a reason (403)."""


class NoSuchSpace(SessionEnded):
    """The gateway has no such space (404, 4404), or no gateway is at the path (404)."""


class Kicked(SessionEnded):
    """The participant was removed from the space (4403)."""


class TakenOver(SessionEnded):
    """A newer connection of the same participant took over (4409)."""


class RemoteShutdown(SessionEnded):
    """Another participant shut us down (``participant/shutdown``), and what ran has ended.

    Attributes:
        by: The participant that did.
        reason: Its reason.
    """

    def __init__(self, by: str, reason: str = "") -> None:
        because = f": {printable(reason)}" if reason else ""
        super().__init__(f"{by!r} shut this participant down{because}")
        self.by = by
        self.reason = reason


class CannotObserve(SessionEnded):
    """The gateway knows no observers: joining would take the participant's connection over."""


class CannotJoinBeside(SessionEnded):
    """The gateway knows no connection beside: joining would take the participant's one over."""


class WrongParticipant(SessionEnded):
    """The gateway takes us for another participant than we say we are.

    Attributes:
        asked: The name that we gave.
        given: The name that the gateway gave us.
    """

    def __init__(self, asked: str, given: str, where: str) -> None:
        super().__init__(
            f"the gateway {where} takes us for {given!r}, not for {asked!r}; "
            f"use the token of {asked!r}, or leave the participant out"
        )
        self.asked = asked
        self.given = given


class NotSent(ConnectionFailed):
    """An envelope was certainly not sent; trying again is safe."""


class OutcomeUnknown(ConnectionFailed):
    """A request was sent, and its response can no longer arrive: it may have been carried out.

    Or it was cancelled by another process under our name.
    """


class HandlerCancelled(BaseException):
    """Raised in a worker thread by ``ctx.check_cancelled()``; let it pass, like a cancellation."""
