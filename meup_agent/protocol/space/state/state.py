"""The state of a space and its decisions (PROTOCOL 3).

Pure: no connection, no clock, no journal. A decision about a frame is one call, and what was
accepted has taken effect here when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from meup_agent.causes import Reason, read_reason
from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.capability import Capabilities
from meup_agent.protocol.dialects import BY_RPC_ID, PUBLISHED, RpcIds, decode, spoken
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.space.allowance import Allowance, RateLimiter
from meup_agent.protocol.space.journal import (
    BESIDE_MARK,
    LOCAL_MARK,
    Entry,
    Fact,
    answer_mark,
    answers_in,
    crowded_mark,
    rooms_made_in,
)
from meup_agent.protocol.space.state.control import ParticipantControl, YesStore
from meup_agent.protocol.space.state.grants import GrantStore, InviteIssuer, SpaceManager
from meup_agent.protocol.space.state.indexes import (
    BEFORE_RESTART,
    LOST,
    OVER_HTTP,
    Acceptance,
    AcceptedEnvelope,
    Answer,
    Broadcast,
    Consequence,
    Deduplicator,
    Discard,
    Disconnect,
    FrameVerdict,
    Notice,
    OpenItem,
    Refusal,
    Repetition,
    draft_refusal,
    gateway_draft,
    over_limit,
    refuse,
)
from meup_agent.protocol.space.state.inflight import (
    TRACKED_KINDS,
    InFlight,
    call_of,
    end_item,
    end_orphaned,
    end_revoked,
    is_notification,
    list_proposals,
    list_waiting,
)
from meup_agent.protocol.space.state.rules import (
    AMBIGUOUS_EXECUTOR,
    InboundFrame,
    Rules,
    complete,
    decode_inbound,
    usable_id,
    with_field,
)
from meup_agent.protocol.space.state.streams import (
    STREAM_KINDS,
    AbsenceTracker,
    JoinDrafts,
    JoinState,
    StreamStore,
    WelcomeWriter,
    presence_fact,
)
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    Envelope,
    check_depth,
    rfc3339,
)
from meup_agent.protocol.wire.membership import (
    ARRIVED,
    ASIDE,
    DIALECT,
    NEW,
    OBSERVING,
    ProposalQuery,
    read_query,
)
from meup_agent.protocol.wire.payloads import (
    CONTROL_KINDS,
    MANAGEMENT_KINDS,
    PAUSE,
    RESUME,
    SHUTDOWN,
    JsonObject,
)
from meup_agent.protocol.wire.scoped_yes import YES_KINDS
from meup_agent.protocol.wire.streams import StreamInfo

DROPPED_KINDS: Final = frozenset({"system/heartbeat", "system/register"})
"""Kinds that TypeScript clients send to a gateway and that have no reader (PROTOCOL 2)."""


LASTING_KINDS: Final = MANAGEMENT_KINDS | YES_KINDS | {PAUSE, RESUME, SHUTDOWN}
"""The kinds of which something holds from then on: a fact is kept beside the envelope."""

MAX_LASTING_BYTES: Final = 64 * 1024
"""Bytes of such an envelope: a journal has to take it, and its facts, whole."""

NO_RESUME: Final = JoinState(can_resume=False)
"""The state of a newcomer that gets no numbers."""


class SpaceState:
    """The participants of a space, and every decision about them; drafts have no id or time."""

    def __init__(
        self,
        participants: Mapping[str, Capabilities] | None = None,
        *,
        allowance: Allowance | None = None,
        now: Callable[[], int] = lambda: 0,
        announce_withdrawals: bool = False,
        invites: InviteIssuer | None = None,
        new_id: Callable[[], str] = str,
        takes_published: bool = False,
    ) -> None:
        self._new_id = new_id
        self._takes_published = takes_published
        # Of members that were taken to speak one of the published versions, and speak the other.
        self._spoken: dict[str, str] = {}
        self.open = InFlight(announces=announce_withdrawals)
        self._allowance = allowance or Allowance()
        self.limiter = RateLimiter(self._allowance)
        self._shallower = self._allowance.max_depth < MAX_DEPTH
        self._now = now
        self.grants = GrantStore(participants or {})
        # In the order in which they came.
        self._present: dict[str, str] = {}
        # Those among them that have connections beside alone, so that none answers.
        self._aside: set[str] = set()
        # The numbers of the connections beside.
        self._beside: set[int] = set()
        # The participants of those among them that have come back.
        self._returned: dict[int, str] = {}
        self.streams = StreamStore(self._present, self._allowance, new_id, now())
        self._welcomes = WelcomeWriter(self.grants, self._present, self._aside, self.streams)
        self.management = SpaceManager(self.grants, self._present, invites)
        self._absences = AbsenceTracker()
        self.control = ParticipantControl(self.grants)
        self.yeses = YesStore(self.grants, self.open, self.control, self.management.is_kicked)
        self._rules = Rules(
            self.grants,
            self.management,
            self.open,
            self._allowance,
            self._absences,
            self.control,
            self.streams,
            self.yeses,
            self._present,
            self._aside,
            self._beside,
            self._returned,
        )
        self._deduplicator = Deduplicator()
        # Only where a dialect is spoken in which a response names its request by a JSON-RPC id.
        self._rpc_ids: RpcIds | None = None

    def __contains__(self, participant: object) -> bool:
        return participant in self._present

    @property
    def present(self) -> tuple[str, ...]:
        """The participants in the space, in the order in which they came."""
        return tuple(self._present)

    def restore(self, facts: Mapping[str, JsonObject]) -> list[str]:
        """Restore the facts that hold in a journal; the ids of grants that hold no more."""
        self._absences.restore(facts)
        self.control.restore(facts)
        self.yeses.restore(facts)
        return self.management.restore(facts)

    def restart(self, at: int) -> None:
        """Let everybody be away: the gateway was restarted, and one that comes back resumes."""
        for participant in (*self._present, *self._absences.here):
            self._absences.left(participant, at)
        self._present.clear()
        self._aside.clear()
        for participant in self.open.participants:
            self._absences.never_seen(participant, at)

    def register_dialect(self, dialect: str) -> None:
        """Record that a dialect is spoken here, from now on.

        In one of them a response names its request by an id that only the request itself tells, so
        requests are remembered from the first speaker on. What it answers of those that came
        before passes with the JSON-RPC id for a correlation, as it came.
        """
        if dialect == BY_RPC_ID and self._rpc_ids is None:
            self._rpc_ids = RpcIds()

    def join(
        self,
        participant: str,
        join_state: JoinState = NO_RESUME,
        *,
        at: int | None = None,
        dialect: str = "",
        beside: int | None = None,
    ) -> JoinDrafts:
        """Add a participant, or another connection of one that is there.

        A newer connection that answers is announced as a ``join`` without a ``leave`` before it.
        The participant did not go away, so no time limit for an absent one starts to run. But
        what went to the older connection may have been lost with it, and a ``join`` is what makes
        the others repeat what must not be missed (PROTOCOL 4.14). One ``beside`` is announced only
        where its participant was not there, and no process takes its place.
        """
        at = self._now() if at is None else at
        welcome = partial(self._draft_welcome, participant, participant, reader=dialect)
        then = self.streams.joined(participant, is_new=join_state.is_new, beside=beside)
        if beside is not None:
            self._beside.add(beside)
            if join_state.resumed:
                self._returned[beside] = participant
            if participant in self._present:
                return JoinDrafts(welcome(join_state.welcome_fields), None)
        else:
            self._spoken.pop(participant, None)
        is_new = join_state.is_new and beside is None
        self._arrive(participant, dialect, at, is_new=is_new, aside=beside is not None)
        if is_new:
            then += (*self.expire(at), *self._end_orphaned(participant, at))
        self._welcomes.joined(participant)
        you = self._welcomes.describe(participant)
        arrived = join_state.presence_fields(beside=beside is not None)
        return JoinDrafts(
            welcome(join_state.welcome_fields),
            gateway_draft(kinds.SYSTEM_PRESENCE, {"event": "join", "participant": you, **arrived}),
            (
                presence_fact(participant, at, is_here=True),
                *(self.control.joined(participant) if beside is None else ()),
            ),
            tuple(then),
        )

    def _arrive(
        self, participant: str, dialect: str, at: int, *, is_new: bool, aside: bool
    ) -> None:
        """Take a participant in; what an earlier process of it had open is nobody's now."""
        if is_new:
            self.open.tool_owners.outdate(participant)
            self.open.orphan(participant)
        self._absences.joined(participant, at)
        self._present[participant] = dialect
        (self._aside.add if aside else self._aside.discard)(participant)

    def _step_aside(self, participant: str, dialect: str) -> None:
        """Note that a participant has connections beside alone, of a dialect."""
        self._present[participant] = dialect
        self._aside.add(participant)
        self.open.tool_owners.outdate(participant)

    def _depart(self, participant: str, at: int) -> None:
        self._present.pop(participant, None)
        self._aside.discard(participant)
        self._absences.left(participant, at)
        self.open.tool_owners.outdate(participant)

    def _end_orphaned(self, participant: str, at: int) -> list[Broadcast]:
        """End what the process of a participant had open that is gone, as if it had said so."""
        self.open.at = at
        ended = list(end_orphaned(self.open, participant, at))
        self._charge(participant, ended, at)
        return ended

    def _charge(self, participant: str, ended: Iterable[Broadcast], at: int) -> None:
        """Count what the gateway says in place of a participant's process as if that said it."""
        for each in ended:
            self.limiter.consume(participant, at, 0)
            if each.draft.kind == kinds.MCP_WITHDRAW:
                self.limiter.count_withdrawal(participant, at)

    def observe(
        self, participant: str, join_state: JoinState = NO_RESUME, *, dialect: str = ""
    ) -> Envelope:
        """The draft of an observer's welcome, which is announced to no member (PROTOCOL 3)."""
        more = {OBSERVING: True, **join_state.welcome_fields}
        return self._draft_welcome(participant, "", more, dialect)

    def _draft_welcome(
        self, participant: str, left_out: str, more: Mapping[str, Any], reader: str
    ) -> Envelope:
        paused = self.control.describe_pause(participant, self._now())
        return self._welcomes.write(participant, left_out, more, reader, paused)

    def described(self, reader: str = "") -> list[JsonObject]:
        return [self._welcomes.describe(name, reader) for name in self._present]

    def left_after(self, participant: str, accepted: int) -> int | None:
        return self._absences.left_after(participant, accepted)

    def leave(self, participant: str, at: int | None = None) -> tuple[Consequence, ...]:
        """Remove a participant; the drafts for the others, its presence first."""
        at = self._now() if at is None else at
        self._depart(participant, at)
        self._welcomes.left(participant)
        presence = gateway_draft(
            kinds.SYSTEM_PRESENCE, {"event": "leave", "participant": {"id": participant}}
        )
        left = Broadcast(presence, facts=(presence_fact(participant, at, is_here=False),))
        return (left, *self.streams.left(participant, at))

    def beside_left(self, participant: str, beside: int, at: int) -> None:
        """Note that a connection beside has ended, and is asked nothing any more."""
        self._beside.discard(beside)
        self._returned.pop(beside, None)
        self.streams.stopped(participant, at, beside)

    def stop_answering(self, participant: str, dialect: str, at: int) -> tuple[Consequence, ...]:
        """Note that a participant has connections beside alone, of a dialect; what others hear."""
        self._step_aside(participant, dialect)
        self.streams.stopped(participant, at)
        self._welcomes.joined(participant)
        return (self._announce_update(participant),)

    def _announce_update(self, participant: str) -> Broadcast:
        update = {"event": "update", "participant": self._welcomes.describe(participant)}
        return Broadcast(gateway_draft(kinds.SYSTEM_PRESENCE, update))

    def decide(
        self,
        participant: str,  # as its token told; the sender that the frame names is compared to it
        frame: bytes,
        dialect: str,
        *,
        at: int | None = None,
        repeats: bool = False,
        waits: bool = True,
        answers: bool = False,
        beside: int | None = None,
        is_local: bool = False,
    ) -> FrameVerdict:
        """Decide about a frame; an accepted one has taken effect here.

        A sender that ``repeats`` may send it again, and is told its first number then. Clients that
        do not resume count their ids anew when they start, and mean what they send twice. One that
        ``waits``, on a connection, is read later if it exceeds a rate; elsewhere it is refused.
        Where it ``answers`` the sender alone, a token can be told that is away. What a connection
        ``beside`` begins does not end with the process that answers for its participant; what one
        in the gateway's own process proposes, which ``is_local``, ends with that.
        """
        at = self._now() if at is None else at
        inbound = self._check_form(participant, frame, dialect, at)
        if not isinstance(inbound, InboundFrame):
            return inbound
        envelope = inbound.envelope
        if envelope.kind == kinds.LIST_PROPOSALS:
            return self._list_proposals(inbound, dialect)
        if envelope.kind == kinds.YES_LIST:
            return self._list_yeses(inbound)
        if repeats:
            receipt = self._deduplicator.find(envelope, at)
            if receipt is not None:
                # Not asked whether it could be accepted now: a grant cannot be made twice, and what
                # was allowed may have been revoked since.
                return Repetition(envelope, receipt)
        refused = self._check_new(inbound, answers=answers)
        if refused is None and not waits:
            refused = self._check_pace(inbound)
        if refused is not None:
            return refused
        addressed = self._address(inbound, dialect)
        if isinstance(addressed, Refusal):
            return addressed
        # Also of a sender that does not repeat: the journal does not tell one from the other.
        receipt = self._deduplicator.remember(addressed.envelope, at)
        beside = beside if waits else OVER_HTTP
        return self._accept(addressed, receipt, beside=beside, is_local=is_local)

    def decide_observed(
        self, participant: str, frame: bytes, dialect: str, at: int
    ) -> Answer | Refusal:
        """Answer the question of an observer, which may send nothing else (PROTOCOL 3)."""
        try:
            inbound = decode_inbound(frame, dialect, at)
        except InvalidEnvelope as invalid:
            about = invalid.envelope_id
        else:
            about = inbound.envelope.id
            if inbound.envelope.kind == kinds.LIST_PROPOSALS:
                refused = self._rules.check_sender(participant, inbound)
                return refused or self._list_proposals(inbound, dialect)
        message = (
            "an observer asks for proposals, and says nothing else: connect with MEUP-Beside, or"
            " with neither header, to take part"
        )
        return draft_refusal(participant, OBSERVING, message, about=about)

    def _list_proposals(self, inbound: InboundFrame, dialect: str) -> Answer | Refusal:
        """The proposals that a member, or an observer, asks for; it needs no capability."""
        question = inbound.envelope
        try:
            query = read_query(question, inbound.payload, ProposalQuery, "its proposals")
        except InvalidEnvelope as invalid:
            return refuse(question, invalid.problem, str(invalid))
        dialect = self._dialect_of(question.sender, dialect)
        may = self.grants[question.sender].allow
        return list_proposals(self.open, self._absences, question, query, dialect, inbound.at, may)

    def waiting_for(self, participant: str) -> list[OpenItem]:
        may = self.grants[participant].allow if participant in self.grants else None
        if participant and may is None:
            return []
        return list_waiting(self.open, participant, may, self._now())

    def _list_yeses(self, inbound: InboundFrame) -> Answer | Refusal:
        """The scoped yeses that a member asks for; it needs no capability."""
        try:
            return self.yeses.list(inbound.envelope, inbound.payload, inbound.at)
        except InvalidEnvelope as invalid:
            return refuse(inbound.envelope, invalid.problem, str(invalid))

    def _address(self, inbound: InboundFrame, dialect: str) -> InboundFrame | Refusal:
        """Fill in ``to`` of a fulfillment, so that one participant carries it out."""
        request = inbound.envelope
        if request.kind != kinds.MCP_REQUEST or request.to or not request.correlation:
            return inbound
        executors = self._rules.find_executors(inbound)
        if isinstance(executors, Refusal):
            return executors
        if not executors:
            return inbound
        frame = with_field(request.frame, "to", executors)
        if len(frame) > MAX_FRAME_BYTES:
            message = "the request has no room for its executor; name one participant in 'to'"
            return refuse(request, AMBIGUOUS_EXECUTOR, message, executors=list(executors))
        dialect = self._dialect_of(request.sender, dialect)
        addressed = decode_inbound(frame, dialect, inbound.at)
        # The executor may have rejected the proposal itself.
        return self._rules.check_named(addressed) or addressed

    def route_frame(self, participant: str, frame: bytes, at: int) -> StreamInfo | Refusal:
        """The stream for which a participant sends a frame; else why it goes no further."""
        held = self.control.check_frame(participant, at)
        return held or self.streams.route(participant, frame, at)

    def _check_form(
        self, participant: str, frame: bytes, dialect: str, at: int
    ) -> InboundFrame | Refusal | Discard:
        """Check that a frame can be from its sender; changes nothing that others could notice."""
        try:
            inbound = self._decode(participant, frame, dialect, at)
            if self._shallower:
                named = usable_id(inbound.envelope.id)
                check_depth(frame, self._allowance.max_depth, envelope_id=named)
        except InvalidEnvelope as invalid:
            deep = {"limit": "max_depth", "max": self._allowance.max_depth}
            return draft_refusal(
                participant,
                invalid.problem,
                str(invalid),
                about=invalid.envelope_id,
                **(deep if invalid.problem == "too_deep" else {}),
            )
        if inbound.envelope.kind in DROPPED_KINDS:
            return Discard(inbound.envelope.kind)
        self.register_dialect(dialect)
        if inbound.envelope.kind == kinds.MCP_RESPONSE and self._rpc_ids is not None:
            envelope = self._rpc_ids.heard(inbound.envelope, inbound.payload)
            inbound = msgspec.structs.replace(inbound, envelope=envelope)
        return self._rules.check_sender(participant, inbound) or inbound

    def _decode(self, participant: str, frame: bytes, dialect: str, at: int) -> InboundFrame:
        """Decode a frame, and fill in what it leaves out; that alone takes a second look."""
        dialect = self._dialect_of(participant, dialect)
        try:
            inbound = decode_inbound(frame, dialect, at)
        except InvalidEnvelope as invalid:
            if invalid.problem != "invalid_envelope":
                raise
            if self._takes_published and self._changes_version(participant, frame, dialect):
                return self._decode(participant, frame, dialect, at)
            completed = complete(frame, self._defaults(participant, dialect, at))
            if completed is None:
                raise
            return decode_inbound(completed, dialect, at)
        if inbound.envelope.ts is None and dialect in PUBLISHED:
            completed = complete(frame, {"ts": rfc3339(at)})
            # One that is as large as it may be goes without.
            if completed is not None and len(completed) <= MAX_FRAME_BYTES:
                return decode_inbound(completed, dialect, at)
        return inbound

    def _dialect_of(self, participant: str, dialect: str) -> str:
        return self._spoken.get(participant, dialect) if dialect in PUBLISHED else dialect

    def _changes_version(self, participant: str, frame: bytes, dialect: str) -> bool:
        """Note that a member speaks the other published version than it was taken to speak."""
        if dialect not in PUBLISHED:
            return False
        try:
            said = spoken(decode(frame).protocol)
        except InvalidEnvelope:
            return False
        if said is None or said == dialect or said not in PUBLISHED:
            return False
        self._spoken[participant] = said
        return True

    def _defaults(self, participant: str, dialect: str, at: int) -> dict[str, object]:
        """Values of the fields that a sender may leave out."""
        return {
            "protocol": dialect,
            "id": self._new_id(),
            **({"ts": rfc3339(at)} if dialect in PUBLISHED else {}),
            "from": participant,
            "payload": {},
        }

    def _check_new(self, inbound: InboundFrame, *, answers: bool) -> Refusal | None:
        """Check that a frame that does not come again may be accepted."""
        refused = self._rules.check_capability(inbound)
        if refused is not None:
            return refused
        envelope = inbound.envelope
        if envelope.kind in LASTING_KINDS and len(envelope.frame) > MAX_LASTING_BYTES:
            return over_limit(
                envelope,
                "max_lasting_bytes",
                MAX_LASTING_BYTES,
                f"the {envelope.kind!r} has {len(envelope.frame)} bytes; of what holds from then on"
                f" at most {MAX_LASTING_BYTES} are taken",
            )
        try:
            if envelope.kind in MANAGEMENT_KINDS:
                return self.management.check(envelope, inbound.payload, answers=answers)
            if envelope.kind in CONTROL_KINDS:
                return self.control.check(envelope, inbound.payload, inbound.at)
            if envelope.kind in STREAM_KINDS:
                return self.streams.check(envelope, inbound.payload)
            if envelope.kind in YES_KINDS:
                return self.yeses.check(envelope, inbound.payload, inbound.at)
        except InvalidEnvelope as invalid:
            return refuse(envelope, invalid.problem, str(invalid))
        return None

    def _check_pace(self, inbound: InboundFrame) -> Refusal | None:
        """Refuse a withdrawal that comes too fast; on a connection it is read later."""
        envelope = inbound.envelope
        if envelope.kind != kinds.MCP_WITHDRAW:
            return None
        over = self.limiter.check_withdrawal(envelope.sender, inbound.at)
        if over is None:
            return None
        message = f"more than {over.most:g} withdrawals a second are taken later; say it again"
        refused = over_limit(envelope, over.limit, over.most, message)
        return msgspec.structs.replace(refused, retry_after=over.seconds)

    def _accept(
        self,
        inbound: InboundFrame,
        receipt: AcceptedEnvelope,
        *,
        beside: int | None,
        is_local: bool,
    ) -> Acceptance:
        envelope, payload, at = inbound.envelope, inbound.payload, inbound.at
        if envelope.kind in MANAGEMENT_KINDS:
            return self._manage(envelope, payload, at, receipt)
        if envelope.kind == kinds.MCP_WITHDRAW:
            then = self._withdraw(inbound)
            changes = self.open.pop_changes()
            return Acceptance(envelope, at, then=then, receipt=receipt, changes=changes)
        if envelope.kind in STREAM_KINDS:
            closes, told = self.streams.accept(envelope, payload, at, beside=beside)
            then = () if told is None else (told,)
            return Acceptance(envelope, at, then=then, receipt=receipt, closes=closes)
        facts: tuple[Fact, ...] = ()
        if envelope.kind in CONTROL_KINDS:
            facts = self.control.accept(envelope, payload, at)
        elif envelope.kind in YES_KINDS:
            facts = self.yeses.accept(envelope, payload, at)
        elif envelope.kind in TRACKED_KINDS:
            facts = self._marks(inbound, beside=beside, is_local=is_local)
        begun = self._fold(envelope, payload, at, facts, beside)
        changes = self.open.pop_changes()
        return Acceptance(envelope, at, facts, receipt=receipt, begun=begun, changes=changes)

    def _marks(
        self, inbound: InboundFrame, *, beside: int | None, is_local: bool
    ) -> tuple[Fact, ...]:
        """The marks of an accepted envelope, findings of its decision that it does not say.

        Of a request that names a scoped yes, its count as well.
        """
        envelope = inbound.envelope
        marks = [BESIDE_MARK] if beside is not None and envelope.kind in kinds.BEGINNINGS else []
        if is_local and envelope.kind == kinds.MCP_PROPOSAL:
            marks.append(LOCAL_MARK)
        if envelope.kind == kinds.MCP_RESPONSE:
            answered = self._rules.answered_proposals(envelope, inbound.at)
            if answered and not payloads.is_refusal(inbound.payload):
                marks += [answer_mark(each.envelope) for each in answered]
        elif envelope.kind == kinds.MCP_PROPOSAL and not (
            self._rules.has_place(envelope.sender, inbound.at)
            or self.open.is_open(envelope.sender, envelope.id, inbound.at)
        ):
            gone_until = self._absences.abandoned_until(envelope.sender, inbound.at)
            marks.append(crowded_mark(gone_until))
        elif envelope.kind == kinds.MCP_REQUEST and not is_notification(inbound.payload):
            marks += self.yeses.use(inbound.payload)
        return tuple(marks)

    def apply(self, entry: Entry) -> None:
        """Fold an entry of the journal: it takes effect as it did when it was decided.

        The facts that hold at the end come by :meth:`restore`.
        """
        envelope = entry.envelope
        payload = envelope.payload_object
        self.register_dialect(envelope.protocol)
        self._deduplicator.remember(envelope, entry.at, entry.seq)
        if envelope.kind == kinds.SYSTEM_PRESENCE:
            self._apply_presence(payload, entry.at)
        beside = BEFORE_RESTART if BESIDE_MARK in entry.facts else None
        if LOCAL_MARK in entry.facts:
            beside = LOST
        begun = self._fold(envelope, payload, entry.at, entry.facts, beside)
        if begun is not None:
            begun.seq = entry.seq

    def _apply_presence(self, payload: JsonObject, at: int) -> None:
        described = payloads.as_object(payload.get("participant"))
        participant, dialect = described.get("id"), described.get(DIALECT, "")
        if not isinstance(participant, str):
            return
        aside = ASIDE in described
        if payload.get("event") == "join":
            self.register_dialect(dialect)
            is_new = payload.get(ARRIVED) == NEW
            self._arrive(participant, dialect, at, is_new=is_new, aside=aside)
        elif payload.get("event") == "update" and aside and participant in self._present:
            self._step_aside(participant, dialect)
        elif payload.get("event") == "leave":
            self._depart(participant, at)

    def _fold(
        self,
        envelope: Envelope,
        payload: JsonObject,
        at: int,
        facts: tuple[Fact, ...],
        beside: int | None,
    ) -> OpenItem | None:
        """Let an accepted envelope take effect, live or read from the journal; what it began."""
        if envelope.kind in CONTROL_KINDS:
            self.control.remember(envelope)
        if facts:
            for proposer, proposal in answers_in(facts):
                self.open.answered(proposer, proposal, envelope, payload, at)
            for gone_until in rooms_made_in(facts):
                self.open.drop_abandoned(envelope.sender, at, gone_until)
        if envelope.kind == kinds.MCP_REQUEST and self._rpc_ids is not None:
            self._rpc_ids.heard(envelope, payload)
        if envelope.kind not in TRACKED_KINDS:
            return None
        if envelope.kind == kinds.MCP_REQUEST and payload.get("method") == kinds.PROGRESS:
            self._note_told(envelope, payload)
        return self.open.track(envelope, payload, at, beside=beside)

    def _note_told(self, progress: Envelope, payload: JsonObject) -> None:
        """Keep what a participant that may carry a proposal out says of it while it waits."""
        item = self.open.told_about(progress)
        if item is not None and progress.sender in self.grants:
            call, to = call_of(item.envelope)
            if self.grants[progress.sender].allow(kinds.MCP_REQUEST, call, to):
                params = payloads.as_object(payload.get("params"))
                item.note_told(progress.sender, payloads.as_text(params.get("message")))

    def _withdraw(self, inbound: InboundFrame) -> tuple[Consequence, ...]:
        """End what a withdraw names; the announcements of what it ended, where they are wanted."""
        withdraw, payload = inbound.envelope, inbound.payload
        sender, then = withdraw.sender, list[Consequence]()
        orphaned = self.open.orphaned_requests(withdraw)
        self.limiter.count_withdrawal(sender, inbound.at)
        for proposal in dict.fromkeys(withdraw.correlation):
            state = self.open.withdraw(sender, proposal, payload, inbound.at, said_by=sender)
            if state is ProposalState.WITHDRAWN:
                reason = read_reason(payload.get("reason"))
                then.append(_announce(kinds.SYSTEM_WITHDRAWN, proposal, sender, reason))
            elif state is ProposalState.EXPIRED:
                then.append(_announce_expired(proposal, sender))
        cancels = list[Broadcast]()
        for request in orphaned:
            ended = list(end_item(self.open, request))
            self._charge(request.envelope.sender, ended, inbound.at)
            cancels += ended
        announced = then if self.open.announces else []
        return (*announced, *cancels)

    def expire(self, at: int) -> list[Consequence]:
        """End the proposals that have expired; the announcements, where these are wanted."""
        if not self.open.announces:
            return []
        return [
            msgspec.structs.replace(
                _announce_expired(item.envelope.id, item.envelope.sender),
                changes=self.open.pop_changes(),
            )
            for item in self.open.expire(at)
        ]

    def _manage(
        self,
        envelope: Envelope,
        payload: JsonObject,
        at: int,
        receipt: AcceptedEnvelope,
    ) -> Acceptance:
        """Let a management envelope take effect, at once and for all."""
        self.open.at = at
        done = self.management.accept(envelope, payload)
        then: list[Consequence] = [*done.then, *self.expire(at)]
        kicked = (done.kicked,) if done.kicked else ()
        welcomes, more, facts = self._follow_changes(done.changed, kicked, at)
        return Acceptance(envelope, at, (*done.facts, *facts), (*then, *more), welcomes, receipt)

    def reconfigure(self, participants: Mapping[str, Capabilities], at: int) -> list[Consequence]:
        """Take over the participants of a configuration that was read again (PROTOCOL 7)."""
        self.open.at = at
        expired = self.expire(at)
        gone = self.management.gone
        done = self.management.reconfigure(participants)
        leaving = tuple(each.participant for each in done.then if isinstance(each, Disconnect))
        welcomes, then, facts = self._follow_changes(done.changed, leaving, at)
        told: list[Consequence] = []
        if facts or done.facts:
            # No envelope asked for it, so what holds from now on stands with the first update.
            update = self._announce_update((*done.changed, *leaving)[0])
            told.append(msgspec.structs.replace(update, facts=(*done.facts, *facts)))
        # Also of those who are away: a reviewer takes back what they have voted.
        told += [self._announce_update(each) for each in leaving if each not in gone]
        return [*welcomes, *expired, *told, *then, *done.then]

    def _follow_changes(
        self, changed: Iterable[str], leaving: tuple[str, ...], at: int
    ) -> tuple[tuple[Notice, ...], list[Consequence], tuple[Fact, ...]]:
        """Consequences of other capabilities and removals: welcomes, then the rest; facts."""
        told = [each for each in changed if each in self._present and each not in leaving]
        then: list[Consequence] = [*map(self._announce_update, told)]
        facts: list[Fact] = []
        for participant in dict.fromkeys((*changed, *leaving)):
            then += self._end_revoked(participant, at)
        for participant in leaving:
            then += self.streams.removed(participant)
            facts += self.yeses.removed(participant)
        welcomes = tuple(
            Notice(each, self._draft_welcome(each, each, {}, self._present[each])) for each in told
        )
        return welcomes, then, tuple(facts)

    def end_recovered(self, at: int) -> list[Consequence]:
        """End what may not go on after a restart.

        Its process was gone, and the end was not kept, or its process was the gateway's. Or the
        configuration allows less.
        """
        self.open.at = at
        self.open.orphan_lost()
        then: list[Consequence] = []
        for participant in sorted(self.open.participants):
            then += end_orphaned(self.open, participant, at)
            then += self._end_revoked(participant, at)
        return then

    def _end_revoked(self, participant: str, at: int) -> Iterator[Consequence]:
        """End what a participant has open and may do no longer."""
        may = partial(self._may_still, participant)
        yield from end_revoked(self.open, participant, may, at)
        yield from self.streams.end_revoked(participant, may)

    def _may_still(
        self, participant: str, kind: str, payload: JsonObject, to: tuple[str, ...]
    ) -> bool:
        if participant not in self.grants or self.management.is_kicked(participant):
            return False
        return self.grants[participant].allow(kind, payload, to)


def _announce(kind: str, proposal: str, by: str, reason: str) -> Broadcast:
    """The announcement of the end of a proposal; ``by`` is its proposer."""
    said = {"proposal_id": proposal, "by": by, "reason": reason}
    return Broadcast(gateway_draft(kind, said, about=proposal))


def _announce_expired(proposal: str, proposer: str) -> Broadcast:
    return _announce(kinds.SYSTEM_EXPIRED, proposal, proposer, str(Reason.TIMEOUT))
