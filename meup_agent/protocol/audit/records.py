"""The records of an audit: proposals with their steps, and operations on the space."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from meup_agent.protocol.proposals.lifecycle import UNPERMITTED, ProposalState
from meup_agent.protocol.proposals.record import FulfillingRequest, ProposalEntry
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.state.grants import GrantEffect
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, moment_of, rfc3339
from meup_agent.protocol.wire.payloads import (
    Change,
    JsonObject,
    ToldRule,
    as_text,
    read_call,
    read_response,
)

# --- the records of an audit ---

MAX_STEPS: Final = 1_000
"""Steps that are kept of one proposal. Any participant may talk about it without end; what belongs
to its lifecycle has a few dozen steps at the most."""

MAX_TEXT: Final = 2_000
"""Characters of a text that are kept."""

MAX_RESULT_BYTES: Final = 4_096
"""Bytes of a response that are kept; of a longer one only what it was."""


_MICROSECONDS: Final = 1_000_000


def seconds(entry: Entry) -> float:
    """The time at which an entry was accepted, in seconds since 1970 (UTC)."""
    return entry.at / _MICROSECONDS


class StepKind(StrEnum):
    """The kinds of steps."""

    PROPOSED = "proposed"
    REQUESTED = "requested"  # the real request was made
    CANCELLED = "cancelled"  # the request was cancelled
    PROGRESSED = "progressed"
    RESPONDED = "responded"
    REJECTED = "rejected"
    WITHDREW = "withdrew"
    EXPIRED = "expired"
    """Its time was over by the gateway's clock, with no request out; no envelope says that."""
    RENEWED = "renewed"
    REPORTED = "reported"  # its executor told what came of a permit
    SAID = "said"  # a chat about it
    REFERRED = "referred"
    """A request that names the proposal and asks for something else: it does not carry it out."""


class Ignored(StrEnum):
    """Reasons why a step changed nothing."""

    LATE = "late"  # it was decided before
    AGAIN = "again"  # the same was said before
    NOT_THEIRS = "not_theirs"  # only another participant may send this (PROTOCOL 5)
    OWN_PROPOSAL = "own_proposal"
    """A participant rejected its own proposal, which it can only withdraw."""
    AMBIGUOUS = "ambiguous"
    """It does not tell which of several proposals it means, so it means none (PROTOCOL 4.4)."""
    REFUSED = "refused"  # an executor did not carry it out, and says so
    FORGED = "forged"
    """A participant sent it in the gateway's name; this package's gateway accepts none."""


IGNORED_DROPS: Final[Mapping[str, Ignored]] = {
    "late_withdraw": Ignored.LATE,
    "withdraw_by_another": Ignored.NOT_THEIRS,
    "late_renew": Ignored.LATE,
    "late_report": Ignored.LATE,
    "report_by_another": Ignored.NOT_THEIRS,
    "renew_by_another": Ignored.NOT_THEIRS,
    "duplicate": Ignored.AGAIN,
    "duplicate_proposal": Ignored.AGAIN,
    "duplicate_reject": Ignored.AGAIN,
    "reject_of_own_proposal": Ignored.OWN_PROPOSAL,
    "forged_system": Ignored.FORGED,
}
"""The reasons why readers of a space leave an envelope out, where a record tells them."""


class Step(msgspec.Struct):
    """One envelope about a proposal, in the gateway's order."""

    seq: int
    at: int  # when the gateway accepted it, in microseconds since 1970 (UTC)
    what: StepKind
    by: str
    id: str
    to: tuple[str, ...]  # its addressees; empty: all participants
    state: ProposalState  # where the proposal stood after it
    # The id of the request, reject or other envelope that it is about, where that is not the
    # proposal itself.
    about: str = ""
    reason: str = ""  # the reason code, where there is one
    text: str = ""
    # The reason why it changed nothing; empty if it did, or had nothing to change.
    ignored: Ignored | None = None
    rule: ToldRule | None = None  # the rule by which a request or rejection says to be made
    times: int = 1  # count of envelopes; progress and renewals are gathered into one step
    until: int = 0  # when it was said the last time; of a renewal, the deadline that it gave


class Decision(msgspec.Struct, frozen=True):
    """The decision that brought a proposal to its final state."""

    # The participant that fulfilled or rejected it, its proposer, who withdrew it, or the gateway,
    # where its proposer may not make it any more; empty where it expired.
    by: str
    at: int  # when they did, in microseconds since 1970 (UTC)
    step: Step  # the step that said so; of a fulfilled proposal, its request
    reason: str = ""  # the reason code; empty where it was fulfilled


class FulfillmentAudit(msgspec.Struct):
    """A request that carries a proposal out."""

    request: FulfillingRequest
    step: Step
    record: ProposalEntry  # the proposal that it carries out
    progress: int = 0
    cancelled: Step | None = None  # when it was taken back
    # The answer that came first; a refusal only as long as it is the only answer.
    response: Step | None = None
    is_error: bool = False  # the answer was an error, or a result that says that it failed
    # ``{"result": …}`` or ``{"error": …}``; none yet, or larger than MAX_RESULT_BYTES: ``None``
    answer: dict[str, Any] | None = None

    @property
    def was_refused(self) -> bool:
        """True if it was only refused so far: of several executors one may still run it."""
        return self.response is not None and self.response.ignored is Ignored.REFUSED

    @property
    def id(self) -> str:
        return self.request.envelope.id

    @property
    def by(self) -> str:
        return self.request.by

    @property
    def to(self) -> tuple[str, ...]:
        """The executors."""
        return self.request.envelope.to

    @property
    def changes(self) -> tuple[Change, ...]:
        """Its differences from the proposal, compared anew at each reading."""
        fulfilled, to = payloads.read_call(self.request.envelope.payload), self.request.executors
        return payloads.changes(self.record.call, fulfilled, to[0] if len(to) == 1 else None)


class AuditRecord(msgspec.Struct):
    """One proposal, from its beginning."""

    record: ProposalEntry  # the proposal as every participant knows it (PROTOCOL 4.2)
    first: Step
    # The proposal first; at most MAX_STEPS.
    steps: list[Step] = []
    # The requests that carry it out, in the gateway's order.
    fulfillments: list[FulfillmentAudit] = []
    decision: Decision | None = None  # its end; ``None`` while it is pending
    omitted: int = 0  # steps beyond those that are kept
    size: int = 0  # bytes that all this takes, as a round figure

    @property
    def id(self) -> str:
        """The proposal's id, which another proposer may have used, too."""
        return self.record.key.id

    @property
    def proposer(self) -> str:
        return self.record.key.proposer

    @property
    def state(self) -> ProposalState:
        """Its state; ``rejected`` once its proposer took a rejection for an answer (4.5)."""
        return self.record.state

    @property
    def call(self) -> payloads.Call:
        """The call that is proposed, decoded anew at each reading."""
        return self.record.call

    @property
    def rejections(self) -> list[Step]:
        """The rejections, in order; of each participant, the first."""
        return [
            step
            for step in self.steps
            if step.what is StepKind.REJECTED and step.ignored in (None, Ignored.LATE)
        ]

    @property
    def answered(self) -> FulfillmentAudit | None:
        items = (item for item in self.fulfillments if item.response is not None)
        return next((item for item in items if not item.was_refused), None)

    @property
    def has_failed(self) -> bool:
        """True if the answer that came is an error, or a permit's report tells of none that ran."""
        answered, report = self.answered, self.record.report
        if report is not None:
            return report.has_failed
        return answered is not None and answered.is_error

    @property
    def ran_anyway(self) -> bool:
        """True if its agent tells that the call ran, though no permit was given."""
        return self.record.report is not None and self.state in UNPERMITTED

    @property
    def changes(self) -> tuple[Change, ...]:
        """The edits of the fulfillment that was answered, or else of the one in progress."""
        live = (item for item in self.fulfillments if item.request.live)
        chosen = self.answered or next(live, None)
        return () if chosen is None else chosen.changes

    @property
    def accepted_rejection(self) -> Step | None:
        """The rejection that its proposer took for an answer; ``None`` if it is not rejected."""
        if self.state is not ProposalState.REJECTED:
            return None
        by = self.record.decided_by
        return next((step for step in self.rejections if step.by == by), None)

    def explanation(self, step: Step | None) -> str:
        """The chats of a rejection's or withdrawal's sender about it (PROTOCOL 4.3)."""
        if step is None:
            return ""
        return "\n".join(
            said.text
            for said in self.steps
            if said.what is StepKind.SAID and said.about == step.id and said.by == step.by
        )

    def is_past(self, now: float) -> bool:
        """True if it is pending beyond its time by a reader's clock: a hint, and no state."""
        expires_at = self.record.expires_at
        return self.state.is_pending and expires_at is not None and expires_at / 1_000_000 < now


def proposal_as_json(proposal: AuditRecord, *, timeline: bool = False) -> JsonObject:
    """A proposal with its state, its decision and its edits; with its timeline, every step, too."""
    call, decision, expires_at = proposal.call, proposal.decision, proposal.record.expires_at
    said: JsonObject = {
        "id": proposal.id,
        "proposer": proposal.proposer,
        "client": call.client,
        "seq": proposal.first.seq,
        "at": rfc3339(proposal.first.at),
        "to": list(proposal.first.to),
        "target": call.target,
        "method": call.method,
        "params": {name: value for name, value in call.params.items() if name != "_meta"},
        "expires_at": None if expires_at is None else moment_of(expires_at).isoformat(),
        "state": proposal.state.value,
        "in_progress_by": proposal.record.in_progress_by,
        "decision": None,
        "changes": [msgspec.structs.asdict(change) for change in proposal.changes],
        "report": None,
        "fulfillments": [_fulfillment(item) for item in proposal.fulfillments],
        "rejections": [
            {
                "by": step.by,
                "at": rfc3339(step.at),
                "id": step.id,
                "reason": step.reason,
                "explanation": proposal.explanation(step),
                "rule": _rule(step),
            }
            for step in proposal.rejections
        ],
    }
    if proposal.record.report is not None:
        said["report"] = msgspec.to_builtins(proposal.record.report)
    if decision is not None:
        said["decision"] = {
            "by": decision.by or None,
            "at": rfc3339(decision.at),
            "reason": decision.reason or None,
            "explanation": proposal.explanation(decision.step),
            "rule": _rule(decision.step),
        }
    if timeline:
        said["timeline"] = [_step(step) for step in proposal.steps]
        said["omitted"] = proposal.omitted
    return said


def _fulfillment(item: FulfillmentAudit) -> JsonObject:
    return {
        "id": item.id,
        "by": item.by,
        "to": list(item.to),
        "seq": item.step.seq,
        "at": rfc3339(item.step.at),
        "changes": [msgspec.structs.asdict(change) for change in item.changes],
        "progress": item.progress,
        "cancelled_at": None if item.cancelled is None else rfc3339(item.cancelled.at),
        "cancelled_because": None if item.cancelled is None else item.cancelled.text,
        "responded_at": None if item.response is None else rfc3339(item.response.at),
        "responded_by": None if item.response is None else item.response.by,
        "is_error": item.is_error,
        "answer": item.answer,
        "rule": _rule(item.step),
    }


def _rule(step: Step) -> JsonObject | None:
    return None if step.rule is None else step.rule.document


def _step(step: Step) -> JsonObject:
    said: JsonObject = {
        "seq": step.seq,
        "at": rfc3339(step.at),
        "what": step.what.value,
        "by": step.by or None,
        "id": step.id or None,
        "to": list(step.to),
        "about": step.about or None,
        "reason": step.reason or None,
        "text": step.text or None,
        "state": step.state.value,
        "ignored": None if step.ignored is None else step.ignored.value,
    }
    if step.rule is not None:
        said["rule"] = step.rule.document
    if step.times > 1 or step.what is StepKind.RENEWED:
        said["times"], said["until"] = step.times, rfc3339(step.until)
    return said


# --- operations on a space ---
# Grants and what these rest on, invitations, kicks, acceptances, scoped yeses.

OPERATIONS: Final = {
    "capability/grant": "grant",
    "capability/revoke": "revoke",
    "capability/grant-ack": "grant_ack",
    "space/invite": "invite",
    "space/kick": "kick",
    kinds.YES_GIVE: "yes",
    kinds.YES_REVOKE: "revoke_yes",
}
"""Operations by kind."""

MAX_OPERATION_BYTES: Final = 16 * 1024
"""Bytes of a payload that is kept whole; of a larger one only what it was."""

MAX_ASKED: Final = 1_000
"""Acceptances of tools without an answer that are followed."""

_WHOM: Final = ("recipient", "participant_id", "participant", "proposer")


class SpaceOperation(msgspec.Struct, frozen=True):
    """One operation on the space."""

    seq: int
    at: int  # when the gateway accepted it, in microseconds since 1970 (UTC)
    what: str  # of :data:`OPERATIONS`, or ``accept_tools``
    by: str
    id: str  # the envelope's id; of a grant, what revocations name it by
    whom: str = ""
    grant: str = ""  # the grant that a revocation or an acknowledgement names
    reason: str = ""
    # Of a grant: the grants to its granter that it rests on; none: the configuration.
    rests_on: tuple[str, ...] = ()
    # The grants that are in force no more by it: the one that it names, and those that rested on
    # that.
    ended: tuple[str, ...] = ()
    # The payload; empty if it has more than MAX_OPERATION_BYTES.
    details: dict[str, Any] = {}


def read_operation(entry: Entry) -> SpaceOperation | None:
    """The operation of an entry, if it is one; its effect on grants is told by its facts."""
    envelope = entry.envelope
    what = OPERATIONS.get(envelope.kind)
    if what is None:
        return None
    payload = envelope.payload_object
    if envelope.kind == kinds.YES_GIVE:
        payload = {**payload, "proposal": next(iter(envelope.correlation), "")}
    effect = GrantEffect.of(entry)
    return SpaceOperation(
        seq=entry.seq,
        at=entry.at,
        what=what,
        by=envelope.sender,
        id=envelope.id,
        whom=_whom(payload),
        grant=_grant(envelope, payload),
        reason=as_text(payload.get("reason"), MAX_TEXT),
        rests_on=effect.rests_on,
        ended=effect.ended,
        details=payload if len(envelope.raw_payload) <= MAX_OPERATION_BYTES else {},
    )


def _whom(payload: dict[str, Any]) -> str:
    return next((name for key in _WHOM if (name := as_text(payload.get(key), MAX_TEXT))), "")


def _grant(envelope: Envelope, payload: dict[str, Any]) -> str:
    named = as_text(payload.get("grant_id"), MAX_TEXT)
    if named or envelope.kind != "capability/grant-ack":
        return named
    return envelope.correlation[0] if envelope.correlation else ""


class ToolAcceptances:
    """Follows acceptances of tools until the bridge that was asked has answered (PROTOCOL 5)."""

    def __init__(self) -> None:
        self._asked: OrderedDict[tuple[str, str], Entry] = OrderedDict()

    def note_request(self, entry: Entry) -> None:
        """Note a request to accept tools, which may be refused."""
        envelope = entry.envelope
        self._asked[envelope.id, envelope.sender] = entry
        if len(self._asked) > MAX_ASKED:
            self._asked.popitem(last=False)

    def read_answer(self, confirmed: Entry) -> SpaceOperation | None:
        """The acceptance that a response confirms, if it does."""
        answer = confirmed.envelope
        for name in answer.correlation if self._asked else ():
            for asker in answer.to:
                entry = self._asked.get((name, asker))
                if entry is None or entry.envelope.to != (answer.sender,):
                    continue
                del self._asked[name, asker]
                if read_response(answer.payload)[1] is not None:
                    return None
                params = read_call(entry.envelope.payload).params
                return SpaceOperation(
                    seq=confirmed.seq,
                    at=confirmed.at,
                    what="accept_tools",
                    by=asker,
                    id=name,
                    whom=answer.sender,
                    details={"digest": as_text(params.get("digest"), MAX_TEXT)},
                )
        return None


def operation_as_json(operation: SpaceOperation) -> JsonObject:
    """An operation as a JSON value."""
    return {
        "operation": operation.what,
        "id": operation.id,
        "seq": operation.seq,
        "at": rfc3339(operation.at),
        "by": operation.by,
        "whom": operation.whom or None,
        "grant": operation.grant or None,
        "reason": operation.reason or None,
        "rests_on": list(operation.rests_on),
        "ended": list(operation.ended),
        "details": operation.details,
    }
