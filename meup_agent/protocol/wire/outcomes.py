"""The endings of an exchange of our own, and who could carry it out."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, ClassVar, Final, NoReturn, cast

import msgspec

from meup_agent.causes import Cause
from meup_agent.errors import (
    MAX_SAID_CHARS,
    AlreadyInProgress,
    MeupError,
    NotSent,
    OutcomeUnknown,
    ParticipantGone,
    ProposalEdited,
    ProposalExpired,
    ProposalRejected,
    ProposalWithdrawn,
    Refused,
    RequestError,
    RequestTimeout,
    ToolError,
    printable,
)
from meup_agent.protocol.capability import Capabilities, compile_announced
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import FrozenStruct, is_object
from meup_agent.protocol.wire.payloads import (
    GRANT,
    UNKNOWN_PARTICIPANT,
    WRAPPED,
    Change,
    JsonObject,
    as_object,
    objects_in,
)

# --- callers ---
# The participants that may call a tool, as announced, and those that could if it were granted.

MAX_LOOKED_AT: Final = 100
"""Participants that are looked at for those that could call a tool: a person reads few names."""

MAX_SUGGESTED: Final = 4
"""Participants that are named."""

MAX_SHOWN_NAME: Final = 64
"""Characters of a name in the sentence."""

_NOT_PLAIN: Final = re.compile(r"[*?\[\]{}]|^[!/$]")
_DECIDES: Final = {"reason": "other"}


class MissingCaller(FrozenStruct):
    """The lack of a participant that may make a call.

    Attributes:
        call: The call, as ``participant.tool``.
        capability: The capability that would allow it.
        could: Present participants that decide proposals, and could make it if that were granted.
        may_grant: Present participants that may grant capabilities.
    """

    call: str
    capability: JsonObject
    could: tuple[str, ...] = ()
    may_grant: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A sentence with what to do about it."""
        could = ", ".join(_shown(name) for name in self.could) or "a participant that decides"
        granted = printable(json.dumps(self.capability, ensure_ascii=False))
        by = " or ".join(_shown(name) for name in self.may_grant)
        how = f", which {by} may do" if by else ""
        return f"nobody here may call {self.call}; {could} could, if granted {granted}{how}"


def capability_for(method: str, name: str) -> JsonObject:
    """The capability that allows one call, with whatever arguments."""
    payload: JsonObject = {"method": _exactly(method)}
    if name:
        payload["params"] = {"name": _exactly(name)}
    return {"kind": kinds.MCP_REQUEST, "payload": payload}


def find_missing(
    call: payloads.Call,
    participants: Iterable[tuple[str, Sequence[object]]],
    *,
    me: str,
) -> MissingCaller:
    """Describe who could make a call that no present participant may make.

    A participant that rejects is one that decides; where none does, one that makes other calls.
    """
    capability = capability_for(call.method, call.name)
    grant = {"recipient": me, "capabilities": [capability]}
    rejects: list[str] = []
    calls: list[str] = []
    grants: list[str] = []
    for name, capabilities in islice(participants, MAX_LOOKED_AT):
        may = compile_announced(capabilities)
        if may.allow(GRANT, grant):
            grants.append(name)
        if name in (me, call.target):
            continue
        if may.allow(kinds.MCP_REJECT, _DECIDES, (me,)):
            rejects.append(name)
        elif _makes_calls(may):
            calls.append(name)
    owner = "" if call.target is None else f"{_shown(call.target)}."
    return MissingCaller(
        owner + _shown(call.name or call.method),
        capability,
        tuple((rejects or calls)[:MAX_SUGGESTED]),
        tuple(grants[:MAX_SUGGESTED]),
    )


class Allowed(StrEnum):
    """The arguments with which a participant may call a tool."""

    ANY = "any"
    SOME = "some"
    NONE = "none"


def allowed_arguments(
    capabilities: Sequence[object], tool: str, owner: str | None = None
) -> Allowed:
    """The arguments with which announced capabilities allow the call of a tool.

    Without its owner, a capability that limits addressees allows some.
    """
    to = () if owner is None else (owner,)
    params: JsonObject = {"name": tool, "arguments": {}}
    payload = {"method": payloads.TOOL_CALL, "params": params}
    if compile_announced(capabilities).allow(kinds.MCP_REQUEST, payload, to):
        return Allowed.ANY
    wider = [_without_arguments(each, limits_to=owner is not None) for each in capabilities]
    some = compile_announced(wider).allow(kinds.MCP_REQUEST, payload, to)
    return Allowed.SOME if some else Allowed.NONE


def _without_arguments(pattern: object, *, limits_to: bool) -> object:
    """A capability without what it says of a tool's arguments, and perhaps of addressees."""
    members = dict(payloads.as_object(pattern))
    if not limits_to:
        members.pop("to", None)
    payload = payloads.as_object(members.get("payload"))
    params = payload.get("params")
    if is_object(params):
        kept = {name: value for name, value in params.items() if name != "arguments"}
        members["payload"] = {**payload, "params": kept}
    return members


def _makes_calls(may: Capabilities) -> bool:
    """True if a capability is about calls of tools, whichever."""
    for pattern in may.patterns:
        payload = payloads.as_object(payloads.as_object(pattern).get("payload"))
        about = {name: value for name, value in payload.items() if name == "method"}
        kind = {"kind": payloads.as_object(pattern).get("kind"), "payload": about}
        if compile_announced([kind]).allow(kinds.MCP_REQUEST, {"method": payloads.TOOL_CALL}):
            return True
    return False


def _exactly(name: str) -> str:
    """The pattern that matches a name and nothing else."""
    return f"/^{re.escape(name)}$/" if _NOT_PLAIN.search(name) else name


def _shown(name: str) -> str:
    return printable(name[:MAX_SHOWN_NAME])


# --- outcomes ---

EXPLANATION_TIMEOUT: Final = 5.0
"""Wait for an explanation: it follows its reject at once, where there is one."""

Explain = Callable[["Rejection", float | None], Awaitable[str]]
"""Waits for the explanation of a rejection, so many seconds at the most."""


class _Undone:
    """Ends of a proposal without a result."""

    __slots__ = ()

    word: ClassVar[str]

    def result(self, *, accept_edits: bool = False) -> NoReturn:
        """Raise the exception for this outcome, as :meth:`Space.call` does.

        Args:
            accept_edits: As of :meth:`Fulfillment.result`; it changes nothing here.

        Raises:
            ProposalExpired: It was not decided, or not done, in time.
            ProposalWithdrawn: It was withdrawn meanwhile.
            ParticipantGone: Every participant that could decide has left.
        """
        ending = cast("Withdrawal | Expiry | Gone", self)
        raise_for(ending, what=f"proposal {ending.proposal_id}")


class _CallAnswer:
    """Ends of a call that was answered."""

    __slots__ = ()

    word: ClassVar[str]
    response: Any
    error: JsonObject | None

    @property
    def content(self) -> list[JsonObject]:
        """The blocks of MCP content; empty where the answer has none."""
        return objects_in(as_object(self.response).get("content"))

    @property
    def is_error(self) -> bool:
        """True if it failed: a JSON-RPC error, or a tool's result with ``isError``."""
        return self.error is not None or as_object(self.response).get("isError") is True

    @property
    def value(self) -> Any:
        """The tool's structured content, else its content; ``None`` if the call failed."""
        return None if self.is_error else value_of(cast("Responded | Fulfillment", self))


class Responded(_CallAnswer, FrozenStruct):
    """A request that was answered.

    Attributes:
        by: The participant that answered.
        response: The MCP result as JSON values, as it came; ``None`` if the answer was an error.
        error: The JSON-RPC error as JSON values; ``None`` if there was a result.
    """

    word: ClassVar[str] = "responded"
    by: str
    response: Any = None
    error: JsonObject | None = None

    def result(self, *, accept_edits: bool = False) -> Any:
        """The tool's structured content, else its content.

        Args:
            accept_edits: As of :meth:`Fulfillment.result`; a request has no edits.

        Raises:
            RequestError: It was answered with an error.
            ToolError: The tool ran and failed.
        """
        return value_of(self)


class Fulfillment(_CallAnswer, FrozenStruct):
    """A proposal that was carried out, with its response.

    Attributes:
        proposal_id: The proposal.
        by: The participant that fulfilled it.
        executor: The participant that carried it out and answered.
        response: The MCP result as JSON values, as it came; ``None`` if the answer was an error.
        error: The JSON-RPC error as JSON values; ``None`` if there was a result.
        changes: Differences of what was carried out from what was proposed, as far as they were
            seen.
        relayed: The fulfiller told it, because the gateway hid the fulfilling request from us
            (PROTOCOL 2): then ``changes`` is empty, and ``executor`` is empty unless the
            fulfiller says that nothing was changed.
        relay_says_edited: The fulfiller's word for having changed something; ``None``: it does
            not say, or nothing was relayed.
    """

    word: ClassVar[str] = "fulfilled"
    proposal_id: str
    by: str
    executor: str
    response: Any = None
    error: JsonObject | None = None
    changes: tuple[Change, ...] = ()
    relayed: bool = False
    relay_says_edited: bool | None = None

    def result(self, *, accept_edits: bool = False) -> Any:
        """The tool's structured content, else its content.

        Args:
            accept_edits: Also what was carried out otherwise than proposed, or perhaps so, is a
                result.

        Raises:
            ProposalEdited: It was carried out otherwise than proposed, or it is unknown whether it
                was; the error has the result.
            RequestError: The call was answered with an error.
            ToolError: The tool ran and failed.
        """
        value = value_of(self)
        if not self.as_proposed and not accept_edits:
            raise ProposalEdited(
                self.proposal_id, self.by, self.changes, value, certain=self.knows_edits
            )
        return value

    @property
    def edited(self) -> bool:
        """True if something other than the proposal was carried out, as far as we know."""
        return bool(self.changes) or self.relay_says_edited is True

    @property
    def knows_edits(self) -> bool:
        """True if it is known whether it was :attr:`edited`; a relay may leave that open."""
        return not self.relayed or self.relay_says_edited is not None

    @property
    def as_proposed(self) -> bool:
        """True if the proposed call was carried out, and that is known."""
        return self.knows_edits and not self.edited


@dataclass(frozen=True, slots=True)
class Rejection(_Undone):
    """A rejection of a proposal.

    Attributes:
        proposal_id: The proposal.
        reason: The reason code.
        by: The participant that rejected it.
        id: The id of the reject; an explanation that follows correlates to it.
        counts: It ended the proposer's wait (PROTOCOL 4.5), as every rejection that is an outcome.
    """

    word: ClassVar[str] = "rejected"
    proposal_id: str
    reason: str
    by: str
    id: str = ""
    counts: bool = False
    _explain: Explain | None = field(default=None, repr=False, compare=False)
    _words: str = field(default="", repr=False, compare=False)  # those that had come with it

    async def explanation(self, timeout: float | None = EXPLANATION_TIMEOUT) -> str:
        """Wait for the words that explain it, which follow as a chat (PROTOCOL 4.3).

        Args:
            timeout: Seconds to wait; most rejections have no explanation.

        Returns:
            The words of the participant that rejected it, as a stranger wrote them, at most 4,000
            characters; empty where none have come, or the proposal is not ours.
        """
        return "" if self._explain is None else await self._explain(self, timeout)

    def result(self, *, accept_edits: bool = False) -> NoReturn:
        """Raise :exc:`ProposalRejected`, with the words that had come with the rejection.

        Args:
            accept_edits: As of :meth:`Fulfillment.result`; it changes nothing here.
        """
        raise ProposalRejected(self.proposal_id, self.reason, self.by, self._words)


def with_explain(rejection: Rejection, explain: Explain, words: str) -> Rejection:
    """The same rejection, with words that had come, and a function that waits for more."""
    return replace(rejection, _explain=explain, _words=words)


class Withdrawal(_Undone, FrozenStruct):
    """A withdrawal of a proposal, or the end of the wait for a request by its own participant.

    Attributes:
        proposal_id: The proposal or request.
        by: Its proposer; in another process under the same name, perhaps.
        cause: The reason, with the chain that led to it.
    """

    word: ClassVar[str] = "withdrawn"
    proposal_id: str
    by: str
    cause: Cause

    @property
    def reason(self) -> str:
        """The reason code."""
        return self.cause.code


class Explanation(FrozenStruct):
    """Words that explain a rejection of a proposal of ours, or a withdrawal of another's.

    Attributes:
        proposal_ids: The proposals; one, except where several were withdrawn together.
        by: The participant that rejected or withdrew, and explains.
        about: The id of its reject or withdraw.
        text: Its words, at most 4,000 characters, as a stranger wrote them.
        of_withdrawal: It explains a withdrawal; otherwise a rejection.
    """

    proposal_ids: tuple[str, ...]
    by: str
    about: str
    text: str
    of_withdrawal: bool


class FailedFulfillment(FrozenStruct):
    """A fulfillment that was tried, and came to nothing, so that the proposal was pending again.

    Attributes:
        by: The participant that tried to fulfill the proposal.
        cause: The end of its request: the participant that ended it, the reason, and its words, as
            a stranger wrote them.
        refused: The executor refused it (and ``cause`` is its word), so that nothing was carried
            out. Otherwise ``by``, or the gateway for it, cancelled it, and it may have been begun.
    """

    by: str
    cause: Cause
    refused: bool = False

    def __str__(self) -> str:
        """A clause about it, safe to print."""
        ended, why = (
            ("refused", self.cause.text) if self.refused else ("cancelled", str(self.cause))
        )
        said = f": {printable(why[:MAX_SAID_CHARS])}" if why else ""
        return f"{self.by!r} had tried to fulfill it, which {self.cause.by!r} {ended}{said}"


class Expiry(_Undone, FrozenStruct):
    """A deadline that passed; what was sent was withdrawn or cancelled.

    Attributes:
        proposal_id: The proposal or request.
        sent: ``False``: it never left, so no participant can have carried it out.
        begun_by: The participant that had begun to fulfill the proposal; empty: none was seen to.
        missing: Of a broadcast proposal, where none present might fulfill it: which capability is
            missing, and which participants could fulfill it with that.
        failed: The last fulfillment of the proposal that failed before; ``None``: none was seen to.
    """

    word: ClassVar[str] = "expired"
    proposal_id: str
    sent: bool = True
    begun_by: str = ""
    missing: MissingCaller | None = None
    failed: FailedFulfillment | None = None


class Gone(_Undone, FrozenStruct):
    """An absence, for too long, of all participants that could answer (PROTOCOL 4.6).

    Attributes:
        proposal_id: The proposal or request.
        participants: The absent ones; empty: a broadcast proposal, and none present that may
            fulfill it.
        missing: In that case: which capability is missing, and which participants could fulfill it
            with that.
        failed: The participants that are present and may fulfill it, and whose handlers failed; no
            other one is left that may decide it.
    """

    word: ClassVar[str] = "gone"
    proposal_id: str
    participants: tuple[str, ...] = ()
    missing: MissingCaller | None = None
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The reason in words."""
        if self.participants:
            return f"{', '.join(self.participants)} left the space"
        if self.failed:
            return (
                f"the handler of {', '.join(self.failed)} failed, and no other may decide it here"
            )
        return str(self.missing or "no participant that may is present")


class GatewayRefused(FrozenStruct):
    """A refusal by the gateway."""

    error: str
    message: str
    details: JsonObject = {}  # noqa: RUF012  # a struct copies it

    @classmethod
    def read(cls, payload: JsonObject, what: str, names: Iterable[str] = ()) -> GatewayRefused:
        """The refusal of what we sent, as a ``system/error`` tells it.

        Where we meant a participant that does not exist, it suggests the nearest of ``names``. The
        gateway suggests none: it knows more of them than its reader may (PROTOCOL 3).
        """
        code, said = payload.get("error"), payload.get("message")
        code = code if isinstance(code, str) and code else "error"
        unknown = payload.get("participant_id") if code == UNKNOWN_PARTICIPANT else None
        if isinstance(unknown, str):
            from difflib import get_close_matches  # loaded where a name is wrong

            if near := get_close_matches(unknown, names, 1):
                said = f"there is no participant {unknown!r}; did you mean {near[0]!r}?"
        words = f" ({said})" if isinstance(said, str) and said else ""
        return cls(code, f"the gateway refused {what}: {code}{words}", payload)


class Unsent(FrozenStruct):
    """An end before it was sent: it certainly did not leave."""

    why: str


class Unknown(FrozenStruct):
    """An unknown outcome: it was sent, and an answer can no longer arrive."""

    why: str


class LostRace(FrozenStruct):
    """A fulfilling request of ours that came second in the gateway's order (PROTOCOL 4.4)."""

    by: str


class Unwanted(FrozenStruct):
    """A fulfilling request of ours that was looked at again as it was to leave, and did not."""

    error: MeupError


class ReportedOutcome(StrEnum):
    """The ends of a call that was permitted, and the one step before."""

    COMPLETED = "completed"
    FAILED = "failed"
    NOT_RUN = "not_run"
    """Its program did not run it, though it might have: it had hung up, say."""
    TAKEN = "taken"
    """No end: its program was away, and has come back for its permit."""


MAX_REPORTED_CHARS: Final = 2_000
"""Characters of the output of a call that are told: its beginning, for people."""


class PermitReport(FrozenStruct, omit_defaults=True):
    """The outcome of a permitted call, as its executor reports it (PROTOCOL 4.20).

    Attributes:
        outcome: How it ended.
        exit_code: The exit code of its program; ``None``: it has none, or none is known.
        output: The beginning of what it returned or wrote, at most 2,000 characters.
        cut: There was more.
    """

    outcome: ReportedOutcome
    exit_code: int | None = None
    output: Annotated[str, msgspec.Meta(max_length=MAX_REPORTED_CHARS)] = ""
    cut: bool = False

    @classmethod
    def of(
        cls, outcome: ReportedOutcome, output: str, exit_code: int | None = None
    ) -> PermitReport:
        """A report with as much of an output as is told."""
        cut = len(output) > MAX_REPORTED_CHARS
        return cls(outcome, exit_code, output[:MAX_REPORTED_CHARS], cut)

    def __str__(self) -> str:
        """The end in words, with the output, which is a stranger's text."""
        if not self.is_end:
            return "its agent, which was away, has come back for the permit"
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        output = f": {self.output}{'…' if self.cut else ''}" if self.output else ""
        return f"{self.outcome.replace('_', ' ')}{code}{output}"

    @property
    def is_end(self) -> bool:
        """True unless what came of the call is still to be told."""
        return self.outcome is not ReportedOutcome.TAKEN

    @property
    def has_failed(self) -> bool:
        """True where the call was not run, or did not end well."""
        return self.outcome in (ReportedOutcome.FAILED, ReportedOutcome.NOT_RUN)

    @property
    def has_run(self) -> bool:
        """True if the call was run, however it ended."""
        return self.outcome in (ReportedOutcome.COMPLETED, ReportedOutcome.FAILED)


def read_report(payload: JsonObject) -> PermitReport | None:
    """The report of a payload; ``None`` if it cannot be read as one."""
    try:
        return msgspec.convert(payload, PermitReport)
    except msgspec.ValidationError:
        return None


Outcome = Fulfillment | Rejection | Withdrawal | Expiry | Gone
"""The end of a proposal for the caller that waits for it."""

CallOutcome = Outcome | Responded
"""The end of a call that was a request or a proposal, as our capabilities were."""

Ending = Outcome | Responded | GatewayRefused | Unsent | Unknown | LostRace | Unwanted
"""The end of any exchange of our own."""


def result_of(answer: Responded | Fulfillment) -> Any:
    """The MCP result of a request; RequestError if it was answered with an error."""
    if answer.error is not None:
        error = answer.error
        raise RequestError(
            error.get("code", 0),
            str(error.get("message", "no message")),
            error.get("data"),
            by=answer.by if isinstance(answer, Responded) else answer.executor,
        )
    return answer.response


def value_of(answer: Responded | Fulfillment) -> Any:
    """The value that a tool returned: its structured content, else its content.

    A plain value that one of our own tools wrapped to have a structure is unwrapped again. What is
    no result of a tool is the value itself.

    Raises:
        RequestError: The call was answered with an error.
        ToolError: The tool ran and failed.
    """
    result = result_of(answer)
    if not is_object(result):
        return result
    if result.get("isError") is True:
        blocks = objects_in(result.get("content"))
        texts = [str(block["text"]) for block in blocks if "text" in block]
        raise ToolError("\n".join(texts) or "the tool failed without a message", result)
    structured = result.get("structuredContent")
    if structured is None:
        return result.get("content", result)
    if as_object(result.get("_meta")).get(WRAPPED) is True and is_object(structured):
        return structured.get("result")
    return structured


def outcome_of(ending: Ending) -> Outcome:
    """The outcome of a proposal; raises for any other ending, as :func:`raise_for` does."""
    if isinstance(ending, Fulfillment | Rejection | Withdrawal | Expiry | Gone):
        return ending
    raise_for(ending)


def raise_for(ending: Ending, *, what: str = "the request") -> NoReturn:
    """Raise the exception for an ending that has no value."""
    match ending:
        case Rejection():
            ending.result()
        case Withdrawal():
            raise ProposalWithdrawn(ending.proposal_id, ending.reason, ending.cause.text)
        case Expiry():
            raise ProposalExpired(
                ending.proposal_id,
                sent=ending.sent,
                begun_by=ending.begun_by,
                missing=str(ending.missing or ""),
                failed=str(ending.failed or ""),
            )
        case Gone():
            raise ParticipantGone(f"{what} cannot be answered: {ending}")
        case GatewayRefused():
            raise Refused(ending.error, ending.message, ending.details)
        case Unsent():
            raise NotSent(f"{what} was not sent: {ending.why}")
        case Unknown():
            raise OutcomeUnknown(f"{what} was sent, and its outcome is not known: {ending.why}")
        case LostRace():
            raise AlreadyInProgress("", ending.by)
        case Unwanted():
            raise ending.error
        case Fulfillment() | Responded():
            raise AssertionError("an ending with a value is not an error")


def response_of(ending: Ending, *, what: str, cancelled: bool = True) -> Responded:
    """The response to a request of ours; raises for any other ending."""
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
