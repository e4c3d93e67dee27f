"""The proposals of a space with their decisions, folded from its journal.

The entries of a journal come in, one by one and in their order. A
:class:`~meup_agent.protocol.proposals.ProposalFold` decides, as in every participant, what
each does to a proposal; :class:`Audit` writes it down: a :class:`AuditRecord` of each proposal,
with every step and the decision, and a :class:`SpaceOperation` for each grant, revocation,
invitation and kick. Both go out as records or as JSON values.
:class:`SettledRecords` hands over what a long journal is done with, and lets go of it. An audit
decides nothing itself, sends nothing, and has no clock: time is that of the entries.

``meup audit`` and the gateway's ``/proposals`` read it.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

import msgspec

from meup_agent.causes import USED_AGAIN, read_reason
from meup_agent.protocol.dialects import as_broadcast
from meup_agent.protocol.proposals import (
    MAX_NAMED,
    UNPERMITTED,
    FulfillingRequest,
    ProposalEntry,
    ProposalFold,
    ProposalKey,
    ProposalState,
    ProposalStore,
    find_answered,
    find_referenced,
    last_moment,
)
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.state.grants import GrantEffect
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, FrozenStruct, moment_of, rfc3339
from meup_agent.protocol.wire.payloads import (
    Call,
    Change,
    JsonObject,
    ToldRule,
    as_text,
    read_call,
    read_response,
    read_told_rule,
)
from meup_agent.protocol.wire.ttl_map import Tombstones

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


class Decision(FrozenStruct):
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
    answer: JsonObject | None = None

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
        said["timeline"] = [_step_as_json(step) for step in proposal.steps]
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


def _step_as_json(step: Step) -> JsonObject:
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


class SpaceOperation(FrozenStruct):
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
    details: JsonObject = {}  # noqa: RUF012  # a struct copies it


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


def _whom(payload: JsonObject) -> str:
    return next((name for key in _WHOM if (name := as_text(payload.get(key), MAX_TEXT))), "")


def _grant(envelope: Envelope, payload: JsonObject) -> str:
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


# --- proposal index ---
# The proposals that an audit keeps, and the index by which later envelopes find them.

_STEP_BYTES: Final = 500
# What a step takes besides its words, as a round figure.

MAX_RELEASED: Final = 50_000
"""Released proposals whose id is still known: more than are said again after a reconnect."""

T = TypeVar("T")


class Named(NamedTuple):
    """An envelope of a proposal's chain, by its id."""

    id: str
    seq: int
    sender: str
    proposal: AuditRecord


class AuditIndex:
    """The proposals of an audit, each with its chain; of too many, decided ones go first."""

    def __init__(self, proposal_store: ProposalStore, *, limit: int | None, max_bytes: int) -> None:
        self._proposal_store = proposal_store
        self._limit = limit
        self._max_bytes = max_bytes
        self._bytes = 0
        self._proposals: dict[int, AuditRecord] = {}
        self._current: dict[ProposalKey, AuditRecord] = {}
        self._by_record: dict[int, AuditRecord] = {}
        self._names: dict[str, list[Named]] = {}
        self._requests: dict[str, list[tuple[AuditRecord, FulfillmentAudit]]] = {}
        self._released: OrderedDict[str, None] = OrderedDict()  # ids

    @property
    def proposals(self) -> list[AuditRecord]:
        """Every proposal, oldest first."""
        return list(self._proposals.values())

    # --- finding them ---

    def latest(self, key: ProposalKey) -> AuditRecord | None:
        return self._current.get(key)

    def find(self, record: ProposalEntry | None) -> AuditRecord | None:
        # Each is kept as long as its record, so that no other record can have its number.
        return None if record is None else self._by_record.get(id(record))

    def find_referenced(self, envelope: Envelope) -> list[Named]:
        """The envelope that one refers to: its sender's own, otherwise the latest.

        A withdraw of several proposals stands there once for each.
        """
        found = [named for name in envelope.correlation for named in self._names.get(name, ())]
        if not found:
            return []
        best = max(found, key=lambda named: (named.sender == envelope.sender, named.seq))
        return [named for named in found if (named.id, named.seq) == (best.id, best.seq)]

    def find_requests(self, name: str) -> Iterable[tuple[AuditRecord, FulfillmentAudit]]:
        return reversed(self._requests.get(name, ()))

    # --- what happens to them ---

    def begin(self, record: ProposalEntry, entry: Entry) -> AuditRecord:
        """Keep a proposal from its beginning on."""
        first = _step(entry, StepKind.PROPOSED, record.state)
        proposal = AuditRecord(record, first)
        self._proposals[id(proposal)] = self._current[record.key] = proposal
        self._by_record[id(record)] = proposal
        self._append(proposal, first)
        self.grow(proposal, len(entry.envelope.raw_payload))
        return proposal

    def add(
        self,
        proposal: AuditRecord,
        entry: Entry,
        what: StepKind,
        *,
        about: str = "",
        reason: str | None = None,
        text: str = "",
        ignored: Ignored | None = None,
        rule: ToldRule | None = None,
    ) -> Step:
        """Append a step to a proposal."""
        step = _step(entry, what, proposal.state)
        step.about, step.reason, step.text = about, reason or "", text[:MAX_TEXT]
        step.ignored, step.rule = ignored, rule
        self._append(proposal, step)
        return step

    def add_renewal(
        self, proposal: AuditRecord, entry: Entry, until: int, ignored: Ignored | None
    ) -> None:
        """Append a renewal; several in a row are one step, with the latest deadline."""
        last = proposal.steps[-1]
        if last.what is StepKind.RENEWED and ignored is None is last.ignored:
            last.times, last.until = last.times + 1, until
            return
        self.add(proposal, entry, StepKind.RENEWED, ignored=ignored).until = until

    def add_expiry(self, proposal: AuditRecord) -> Step:
        """Append that a proposal expired, which no envelope says: after its last, or in its time.

        It is later where a request that was out held it up, and was cancelled or refused then.
        """
        record = proposal.record
        assert record.expires_at is not None
        at = max(last_moment(record.expires_at), *(step.at for step in proposal.steps))
        seq = proposal.steps[-1].seq  # whatever else was said in the space meanwhile
        step = Step(seq, at, StepKind.EXPIRED, "", "", (), record.state, until=at)
        step.reason = record.reason or ""
        self._append(proposal, step)
        return step

    def add_request(self, proposal: AuditRecord, item: FulfillmentAudit) -> None:
        """Write down a request that carries a proposal out."""
        proposal.fulfillments.append(item)
        self.grow(proposal, len(item.request.envelope.raw_payload))
        for name in item.request.names:
            self._requests.setdefault(name, []).append((proposal, item))

    def grow(self, proposal: AuditRecord, size: int) -> None:
        """Count bytes that a proposal takes more."""
        proposal.size += size
        self._bytes += size

    def _append(self, proposal: AuditRecord, step: Step) -> None:
        if len(proposal.steps) >= MAX_STEPS:
            proposal.omitted += 1
            return
        proposal.steps.append(step)
        size = 0 if step.rule is None else _STEP_BYTES * (1 + len(step.rule.votes))
        self.grow(proposal, _STEP_BYTES + len(step.text) + len(step.reason) + size)
        if not step.id:  # no envelope said it
            return
        self._names.setdefault(step.id, []).append(Named(step.id, step.seq, step.by, proposal))

    # --- forgetting them ---

    def release(self, proposal: AuditRecord) -> None:
        """Forget a proposal of which nothing more is wanted, all but its id.

        Proposals and their ends are said again after a reconnect (PROTOCOL 4.14); without the id
        they would count as new ones, and as decisions about something unknown.
        """
        self._forget(proposal)
        released = self._released
        released.pop(proposal.id, None)
        released[proposal.id] = None
        while len(released) > MAX_RELEASED:
            released.popitem(last=False)

    def was_released(self, *names: str) -> bool:
        return any(name in self._released for name in names)

    def make_room(self, coming: int) -> None:
        """Forget proposals until so many more have room, and no more bytes than are kept."""
        if self._limit is None:
            return
        most = self._limit - coming
        while self._proposals and (len(self._proposals) > most or self._bytes > self._max_bytes):
            found = self._proposals.values()
            decided = (item for item in found if item.decision is not None)
            self._forget(next(decided, None) or next(iter(found)))

    def _forget(self, proposal: AuditRecord) -> None:
        del self._proposals[id(proposal)], self._by_record[id(proposal.record)]
        self._bytes -= proposal.size
        key = proposal.record.key
        if self._current.get(key) is proposal:
            del self._current[key]
            self._proposal_store.forget(key)
        for step in proposal.steps:
            _drop(self._names, step.id, lambda named: named.proposal is proposal)
        for item in proposal.fulfillments:
            for name in item.request.names:
                _drop(self._requests, name, lambda pair: pair[0] is proposal)


def decide(proposal: AuditRecord, step: Step) -> None:
    """Write down that a step decided a proposal; of one that expired, no participant did."""
    by = "" if proposal.state is ProposalState.EXPIRED else step.by
    proposal.decision = Decision(by, step.at, step, proposal.record.reason or "")


def _step(entry: Entry, what: StepKind, state: ProposalState) -> Step:
    envelope = entry.envelope
    return Step(
        entry.seq, entry.at, what, envelope.sender, envelope.id, envelope.to, state, until=entry.at
    )


def _drop(index: dict[str, list[T]], name: str, is_dropped: Callable[[T], bool]) -> None:
    kept = [each for each in index.pop(name, []) if not is_dropped(each)]
    if kept:
        index[name] = kept


# --- the audit ---

MAX_OPERATIONS: Final = 10_000
"""Operations that are kept, where proposals are bounded."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes that proposals and what was said about them take, where they are bounded."""


class Audit:
    """The proposals of a space, and the operations on it; without a limit, all of them."""

    def __init__(self, *, limit: int | None = None, max_bytes: int = MAX_BYTES) -> None:
        self._store = ProposalStore(count=sys.maxsize, seconds=math.inf, size=None)
        # This package's gateway checks who says what, so its own word counts (PROTOCOL 5).
        self._fold = ProposalFold(self._store, Tombstones())
        self._index = AuditIndex(self._store, limit=limit, max_bytes=max_bytes)
        self._most_operations = None if limit is None else MAX_OPERATIONS
        self._operations: list[SpaceOperation] = []
        self._acceptances = ToolAcceptances()
        self.latest = 0  # the number of the last entry that was taken
        # Decisions about proposals that are not in these entries: they are older.
        self.unknown = 0

    @property
    def proposals(self) -> list[AuditRecord]:
        """Every proposal, oldest first."""
        return self._index.proposals

    def release(self, proposal: AuditRecord) -> None:
        """Forget a proposal whose reader is done; what is said of it later does not count."""
        self._index.release(proposal)

    def pop_operations(self) -> list[SpaceOperation]:
        """The operations since the last call, oldest first, which are forgotten by it."""
        taken, self._operations = self._operations, []
        return taken

    def latest_of(self, proposer: str, proposal: str) -> AuditRecord | None:
        """The latest proposal of a proposer under an id; ``None``: none is known."""
        return self._index.latest(ProposalKey(proposer, proposal))

    def find_referenced(self, envelope: Envelope) -> list[AuditRecord]:
        return [named.proposal for named in self._index.find_referenced(envelope)]

    def named(self, wanted: str, *, proposer: str | None = None) -> list[AuditRecord]:
        """The proposals with an id, or, if none has it, with ids that begin so; of all, or one."""
        theirs = [item for item in self.proposals if proposer in (None, item.proposer)]
        exact = [item for item in theirs if item.id == wanted]
        return exact or [item for item in theirs if item.id.startswith(wanted)]

    def pass_time(self, at: int) -> None:
        """Let proposals expire up to a time of the gateway's clock, in microseconds since 1970.

        Entries tell their time themselves; a caller with the gateway's clock says what it is now.
        """
        for record in self._store.expire(at):
            proposal = self._index.find(record)
            if proposal is not None and proposal.decision is None:
                decide(proposal, self._index.add_expiry(proposal))

    def add(self, entry: Entry) -> None:
        """Take the next entry of the space's journal in."""
        self.pass_time(entry.at)
        self.latest = entry.seq
        envelope = entry.envelope
        self._index.make_room(1 if envelope.kind == kinds.MCP_PROPOSAL else 0)
        match envelope.kind:
            case kinds.MCP_REQUEST:  # most are
                call = payloads.read_call(envelope.payload)
                if call.method == kinds.CANCELLED:
                    self._record_cancel(entry, call)
                elif call.method == kinds.PROGRESS:
                    self._record_progress(entry, call)
                elif not call.is_notification:
                    self._record_request(entry, call)
                if call.method == kinds.ACCEPT_TOOLS:
                    self._acceptances.note_request(entry)
            case kinds.MCP_RESPONSE:
                self._record_response(entry)
                self._add_operation(self._acceptances.read_answer(entry))
            case kinds.MCP_PROPOSAL:
                self._record_proposal(entry)
            case kinds.MCP_WITHDRAW:
                self._record_withdrawal(entry)
            case kinds.MCP_REJECT:
                self._record_rejection(entry)
            case kinds.MCP_RENEW:
                self._record_renewal(entry)
            case kinds.MCP_REPORT:
                self._record_report(entry)
            case kinds.CHAT:
                self._record_chat(entry)
            case _:
                self._add_operation(read_operation(entry))

    # --- proposals ---

    def _record_proposal(self, entry: Entry) -> None:
        # In a journal each is as its sender wrote it, and of no sender a dialect is told; and each
        # entry is a message, however often its id was used.
        envelope = as_broadcast(entry.envelope) or entry.envelope
        known = self._index.latest(ProposalKey(envelope.sender, envelope.id))
        record = self._fold.propose(envelope, seconds(entry), entry.at, is_new=True).record
        assert record is not None
        if known is not None and known.decision is None:
            # Its proposer began to count anew, and will not ask for the older one.
            reason = known.record.reason
            step = self._index.add(known, entry, StepKind.WITHDREW, reason=reason, text=USED_AGAIN)
            decide(known, step)
        proposal = self._index.begin(record, entry)
        if not record.state.is_pending:  # its withdrawal was there before it
            decide(proposal, proposal.first)

    def _record_withdrawal(self, entry: Entry) -> None:
        envelope, now, payload = entry.envelope, seconds(entry), entry.envelope.payload_object
        proposer, is_known = payloads.on_behalf_of(envelope.sender, payload), False
        for name in envelope.correlation[:MAX_NAMED]:
            key = ProposalKey(proposer, name)
            folded = self._fold.withdraw(key, payload, now, entry.at)
            proposal = self._index.latest(key)
            if proposal is None and len(named := self._store.under(name, now)) == 1:
                proposal = self._index.find(named[0])
            if proposal is None:
                continue
            why, is_known = IGNORED_DROPS.get(folded.dropped), True
            step = self._index.add(
                proposal,
                entry,
                StepKind.WITHDREW,
                reason=read_reason(payload.get("reason")),
                ignored=why if proposal.decision is None else Ignored.LATE,
            )
            if proposal.decision is None and not proposal.state.is_pending:
                decide(proposal, proposal.accepted_rejection or step)
        if not is_known and not self._index.was_released(*envelope.correlation):
            self.unknown += 1

    def _record_renewal(self, entry: Entry) -> None:
        # The gateway takes no renewal that is too late.
        folded = self._fold.renew(entry.envelope, seconds(entry), None)
        proposal = self._index.find(folded.record)
        if proposal is not None:
            until = payloads.read_renewal(entry.envelope.payload_object)
            why = IGNORED_DROPS.get(folded.dropped)
            self._index.add_renewal(proposal, entry, until or entry.at, why)

    def _record_report(self, entry: Entry) -> None:
        folded = self._fold.report(entry.envelope, seconds(entry))
        proposal = self._index.find(folded.record)
        if proposal is not None:
            report, why = proposal.record.report, IGNORED_DROPS.get(folded.dropped)
            said = "" if report is None else str(report)
            self._index.add(proposal, entry, StepKind.REPORTED, text=said, ignored=why)

    def _record_rejection(self, entry: Entry) -> None:
        envelope = entry.envelope
        folded = self._fold.reject(envelope, seconds(entry))
        proposal, why = self._index.find(folded.record), IGNORED_DROPS.get(folded.dropped)
        if proposal is None:
            if not self._index.was_released(*envelope.correlation):
                self.unknown += 1
            return
        if why is None and not proposal.state.is_pending:
            why = Ignored.LATE
        payload = envelope.payload_object
        reason, rule = read_reason(payload.get("reason")), read_told_rule(payload)
        self._index.add(proposal, entry, StepKind.REJECTED, reason=reason, ignored=why, rule=rule)

    # --- the requests that carry proposals out ---

    def _record_request(self, entry: Entry, call: Call) -> None:
        """Record a request, which may name a proposal."""
        envelope = entry.envelope
        if not envelope.correlation:
            return
        folded = self._fold.request(envelope, call, seconds(entry))
        proposal, fulfillment = self._index.find(folded.record), folded.fulfillment
        if proposal is None or fulfillment is None:
            why = None if folded.doubt is None else Ignored.AMBIGUOUS
            self._record_reference(entry, call, why)
        elif self._find_item(folded.record, fulfillment) is not None:
            self._index.add(proposal, entry, StepKind.REQUESTED, ignored=Ignored.AGAIN)
        else:
            late = proposal.decision is not None
            step = self._index.add(
                proposal,
                entry,
                StepKind.REQUESTED,
                ignored=Ignored.LATE if late else None,
                rule=read_told_rule(call.params),
            )
            self._index.add_request(proposal, FulfillmentAudit(fulfillment, step, proposal.record))

    def _record_reference(self, entry: Entry, call: Call, why: Ignored | None) -> None:
        """Record a request that only refers to a proposal: it decides nothing."""
        said = f"{call.method} {call.name}".rstrip()
        for record in find_referenced(entry.envelope, self._store, seconds(entry)):
            proposal = self._index.find(record)
            if proposal is not None:
                self._index.add(proposal, entry, StepKind.REFERRED, text=said, ignored=why)

    def _record_cancel(self, entry: Entry, call: Call) -> None:
        """Record the cancel of a request."""
        envelope = entry.envelope
        request_id = call.params.get("requestId")
        names = (str(request_id), *envelope.correlation[:MAX_NAMED])
        requester = payloads.on_behalf_of(envelope.sender, call.params)
        found = self._find_request(names, requester)
        was_live = found is not None and found[1].request.live
        if isinstance(request_id, int | str) and not isinstance(request_id, bool):
            self._fold.cancel(requester, names, seconds(entry))
        if found is None:
            return
        proposal, item = found
        is_late = item.cancelled is not None or (item.response is not None and not was_live)
        step = self._index.add(
            proposal,
            entry,
            StepKind.CANCELLED,
            about=item.id,
            text=payloads.as_text(call.params.get("reason")),
            ignored=Ignored.LATE if is_late else None,
        )
        if not is_late:
            item.cancelled = step

    def _find_request(
        self, names: Iterable[str], sender: str
    ) -> tuple[AuditRecord, FulfillmentAudit] | None:
        """The fulfilling request that its sender calls by one of these names."""
        found = (pair for name in names for pair in self._index.find_requests(name))
        return next((pair for pair in found if pair[1].by == sender), None)

    def _record_progress(self, entry: Entry, call: Call) -> None:
        """Record progress of a request."""
        envelope = entry.envelope
        answered = find_answered(envelope, self._store, seconds(entry))
        found = self._find_item(*(answered or (None, None)))
        if found is None:
            token = call.params.get(payloads.PROGRESS_TOKEN)
            known = self._index.find_requests(token) if isinstance(token, str) else ()
            answering = (pair for pair in known if pair[1].request.may_answer(envelope.sender))
            found = next(answering, None)
        if found is None:
            return
        proposal, item = found
        item.progress += 1
        for step in reversed(proposal.steps):
            if step.what is StepKind.PROGRESSED and (step.about, step.by) == (
                item.id,
                envelope.sender,
            ):
                step.times += 1
                step.until = entry.at
                return
        self._index.add(proposal, entry, StepKind.PROGRESSED, about=item.id)

    def _record_response(self, entry: Entry) -> None:
        """Record an answer to a request."""
        envelope, payload = entry.envelope, entry.envelope.payload
        folded = self._fold.answer(envelope, payload, seconds(entry))
        found = self._find_item(folded.record, folded.fulfillment)
        if found is None:
            for about in self._index.find_referenced(envelope)[:1]:
                self._index.add(
                    about.proposal, entry, StepKind.RESPONDED, ignored=Ignored.NOT_THEIRS
                )
            return
        proposal, item = found
        result, error = read_response(payload)
        step = self._index.add(proposal, entry, StepKind.RESPONDED, about=item.id)
        earlier, is_refusal = item.response, payloads.is_refusal(payload)
        if earlier is not None:
            # Of several executors, each may refuse, and one that does not still decides.
            if not item.was_refused or (is_refusal and step.by == earlier.by):
                step.ignored = Ignored.AGAIN
                return
            if is_refusal:
                step.ignored = Ignored.REFUSED
                return
        item.response = step
        item.is_error = payloads.is_failure(payload)
        if len(envelope.raw_payload) <= MAX_RESULT_BYTES:
            self._index.grow(proposal, len(envelope.raw_payload))
            item.answer = {"result": result} if error is None else {"error": error}
        if is_refusal:
            step.ignored = Ignored.REFUSED
        elif proposal.decision is not None or proposal.state.is_pending:
            step.ignored = Ignored.LATE
        else:
            decide(proposal, item.step)

    def _find_item(
        self, record: ProposalEntry | None, request: FulfillingRequest | None
    ) -> tuple[AuditRecord, FulfillmentAudit] | None:
        proposal = self._index.find(record)
        found = () if proposal is None else ((proposal, each) for each in proposal.fulfillments)
        return next((pair for pair in found if pair[1].request is request), None)

    # --- what is said besides ---

    def _record_chat(self, entry: Entry) -> None:
        envelope = entry.envelope
        said = payloads.chat_text(envelope.payload_object)
        for found in self._index.find_referenced(envelope):
            about = "" if found.id == found.proposal.id else found.id
            self._index.add(found.proposal, entry, StepKind.SAID, about=about, text=said)

    def _add_operation(self, operation: SpaceOperation | None) -> None:
        if operation is None:
            return
        self._operations.append(operation)
        most = self._most_operations
        if most is not None and len(self._operations) > most:
            del self._operations[0]


LOOK_AHEAD: Final = 4_000
"""Envelopes after its decision until a proposal is settled; as many keep the order in which they
were proposed. They are read in a third of a second."""


class SettledRecords:
    """The settled proposals of an audit that is being fed, oldest first but for long open ones."""

    def __init__(
        self,
        audit: Audit,
        look_ahead: int = LOOK_AHEAD,
        keep: Callable[[AuditRecord], bool] | None = None,
    ) -> None:
        self._audit = audit
        self._look_ahead = look_ahead
        self._keep = keep
        # Of each proposal, how many envelopes had been taken when it was seen first, and decided.
        self._begun: dict[int, int] = {}
        self._decided: dict[int, int] = {}

    def pop(self, taken: int) -> Iterator[AuditRecord]:
        """The proposals that are settled after so many envelopes; the audit forgets them."""
        until = taken - self._look_ahead
        waits = False
        for proposal in self._audit.proposals:
            if self._keep is not None and self._keep(proposal):
                continue
            key = id(proposal)
            begun = self._begun.setdefault(key, taken)
            if proposal.decision is None:
                waits = waits or begun > until
            elif self._decided.setdefault(key, taken) > until:
                # Those that were open for long and end one after the other must not hold up all.
                waits = waits or begun > until - self._look_ahead
            elif not waits:
                del self._begun[key], self._decided[key]
                self._audit.release(proposal)
                yield proposal
