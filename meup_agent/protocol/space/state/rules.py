"""The rules by which a space refuses a frame or an envelope (PROTOCOL 3).

An approval names a proposal by its id, so no participant gets a second proposal under an id that
another uses. And an approval that comes too late ends here, whatever executor would have carried
it out.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.dialects import (
    NAMING_EXECUTORS,
    choose_executors,
    decode,
    decode_header,
    decode_known,
)
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.space.allowance import Allowance
from meup_agent.protocol.space.state.control import ParticipantControl, YesStore
from meup_agent.protocol.space.state.grants import KICKED, REMOVED, GrantStore, SpaceManager
from meup_agent.protocol.space.state.indexes import (
    ID_IN_USE,
    OVER_HTTP,
    KnownItem,
    OpenItem,
    Refusal,
    draft_refusal,
    over_limit,
    refuse,
    refuse_unknown,
)
from meup_agent.protocol.space.state.inflight import InFlight, call_of, is_notification
from meup_agent.protocol.space.state.streams import AbsenceTracker, StreamStore
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, FrozenStruct, fits_double
from meup_agent.protocol.wire.outcomes import MAX_REPORTED_CHARS, read_report
from meup_agent.protocol.wire.payloads import (
    ANSWERS,
    GRANT_ACK,
    JsonObject,
    proposal_problem,
    request_problem,
)
from meup_agent.protocol.wire.scoped_yes import YES_KINDS

# --- inbound ---
# Decoding of a frame from a member, the checks of its form, and what is filled in (PROTOCOL 3).
#
# Of what a sender leaves out, all that is missing, or null, or an empty text, is filled in; what
# is there and wrong stays wrong. An envelope that lacks nothing is not completed: the decoder
# finds out first.

MAX_ID_CHARS: Final = 256
"""Characters of an id, a name or a kind: these are remembered, logged and sent back in errors,
and the longest in use (a prefix and a UUID) have some 60."""

MAX_NAMED: Final = 64
"""Ids in ``to`` or in the correlation: a message for more participants than this is one for all."""

_NOTHING: Final = (b"null", b'""')

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_all = msgspec.json.Decoder().decode

_NO_PAYLOAD: Final = object()


class InboundFrame(FrozenStruct):
    """An envelope that a member sent, with all of it decoded."""

    envelope: Envelope  # the header, and the frame as it came
    payload: JsonObject
    at: int  # the time at which it came, in microseconds since 1970 (UTC), read once for a frame

    @property
    def kind_as_sent(self) -> str:
        """The kind in the sender's own writing, for example ``mcp.request``; for errors."""
        return decode_header(self.envelope.frame).kind


def decode_inbound(frame: bytes, dialect: str, at: int) -> InboundFrame:
    """Decode a member's frame and check its form.

    All of it is decoded, although only the header is needed: what is delivered must be readable at
    every receiver, down to numbers that no float holds, and the header's decoder does not look at
    what it skips. That is the payload alone, unless there are fields that no dialect knows.

    Raises:
        InvalidEnvelope: It is not an envelope of that dialect, or lacks what every envelope has.
    """
    envelope = decode_known(frame, dialect)
    payload: Any
    if envelope is None:
        envelope = decode(frame, dialect)
        fields = _values(frame, envelope)
        payload = fields.get("payload", _NO_PAYLOAD)
    else:
        raw = envelope.raw_payload
        payload = _values(raw, envelope) if raw else _NO_PAYLOAD
    problem = _problem(envelope, payload)
    if problem is None and envelope.kind == kinds.MCP_PROPOSAL:
        problem = proposal_problem(payload, envelope.raw_payload) or None
    elif problem is None and envelope.kind == kinds.MCP_REQUEST:
        problem = request_problem(payload) or None
    if problem is not None:
        raise InvalidEnvelope("invalid_envelope", problem, envelope_id=usable_id(envelope.id))
    return InboundFrame(envelope, payload, at)


def _values(raw: bytes, envelope: Envelope) -> Any:
    """The JSON values of a part of a frame; InvalidEnvelope if some reader would not take it."""
    try:
        values = _decode_all(raw)
        if not fits_double(raw, values):
            raise ValueError("an integer is beyond the range of a double")
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidEnvelope(
            "invalid_json",
            f"the frame is not JSON that every reader understands: {error}",
            envelope_id=usable_id(envelope.id),
        ) from None
    return values


def is_name(text: str) -> bool:
    """True for a text that can be an id or a kind: not empty, not too long, all printable."""
    return 0 < len(text) <= MAX_ID_CHARS and text.isprintable()


def usable_id(envelope_id: str | None) -> str | None:
    """The id of a refused envelope, if an answer can refer to it."""
    return envelope_id if envelope_id and is_name(envelope_id) else None


def _problem(envelope: Envelope, payload: object) -> str | None:
    """The first problem of an envelope, in one sentence; ``None`` if there is none."""
    if not envelope.protocol:
        return "the envelope has no 'protocol'"
    if not isinstance(payload, dict):
        if payload is _NO_PAYLOAD:
            return "the envelope has no 'payload'"
        return "the envelope's 'payload' is not an object"
    if not is_name(envelope.id):
        return _unfit("id")
    if envelope.kind not in kinds.KINDS and not is_name(envelope.kind):
        return _unfit("kind")
    for member, names in (("to", envelope.to), ("correlation", envelope.correlation)):
        if len(names) > MAX_NAMED:
            return f"the envelope's {member!r} names {len(names)}; at most {MAX_NAMED} are taken"
        for name in names:
            if not is_name(name):
                return _unfit(member)
    return None


def _unfit(field: str) -> str:
    return (
        f"the envelope's {field!r} must hold 1 to {MAX_ID_CHARS} printable characters for each name"
    )


def with_field(frame: bytes, name: str, value: object) -> bytes:
    return msgspec.json.encode({**_decode_fields(frame), name: value})


def complete(frame: bytes, defaults: Mapping[str, object]) -> bytes | None:
    """A frame with the fields that it lacks; ``None`` if it lacks none, or is not an object."""
    try:
        given = _decode_fields(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return complete_fields(frame, given, defaults)


def complete_fields(
    frame: bytes, given: Mapping[str, msgspec.Raw], defaults: Mapping[str, object]
) -> bytes | None:
    """As :func:`complete`, of a frame whose fields are known."""
    lacking: JsonObject = {
        name: value for name, value in defaults.items() if _is_left_out(name, given)
    }
    if not lacking:
        return None
    kept = {name: value for name, value in given.items() if name not in lacking}
    if len(kept) == len(given) and given:
        # Unchanged, byte for byte.
        return msgspec.json.encode(lacking)[:-1] + b"," + frame.lstrip()[1:]
    return msgspec.json.encode({**lacking, **kept})


def _is_left_out(name: str, given: Mapping[str, msgspec.Raw]) -> bool:
    if name not in given:
        return True
    value = bytes(given[name]).strip()
    # An empty text is not a payload, but none that was left out.
    return value in _NOTHING and not (name == "payload" and value != b"null")


# --- rules ---

IDENTITY_MISMATCH: Final = "identity_mismatch"
RESERVED_KIND: Final = "reserved_kind"
CAPABILITY_VIOLATION: Final = "capability_violation"
NOT_PROPOSER: Final = "not_proposer"
NOT_PENDING: Final = "not_pending"
NOT_RENEWED: Final = "not_renewed"
NOT_REPORTED: Final = "not_reported"
SEVERAL_PROPOSALS: Final = "several_proposals"
RESERVED_KEY: Final = "reserved_key"
AMBIGUOUS_EXECUTOR: Final = "ambiguous_executor"
NOT_ANSWERING: Final = "not_answering"

MAX_TOLD_EXECUTORS: Final = 20
"""Participants that a refused fulfillment is told of: any may list a tool."""

ALWAYS_ALLOWED_METHODS: Final = frozenset({kinds.CANCELLED, kinds.PROGRESS})
"""Notifications that are routed whatever the capabilities (PROTOCOL 3)."""

_MAX_QUOTED_CHARS: Final = 64

_OF_REQUESTS: Final = (
    payloads.PROPOSER,
    payloads.ASKED_IN_REQUEST,
    payloads.ASKED_IN_PROPOSAL,
    payloads.YES,
)
_OF_MEMBERS = frozenset(kinds.MEMBER_KINDS)
_FOR_ANY_NAME: Final = kinds.DECISIONS | {kinds.MCP_RESPONSE}

ABANDONED_CHECK_SECONDS: Final = 1.0
"""Interval of the check for abandoned proposals, for a participant that has no room for another."""

_ABANDONED_CHECK_MICROSECONDS: Final = round(ABANDONED_CHECK_SECONDS * 1_000_000)


@dataclass(slots=True, eq=False)
class Rules:
    """The rules for senders, capabilities and ids."""

    _grants: GrantStore
    _management: SpaceManager
    _open: InFlight
    _allowance: Allowance
    _absences: AbsenceTracker
    _control: ParticipantControl
    _streams: StreamStore
    _yeses: YesStore
    _present: Mapping[str, str]
    _aside: Collection[str]
    _beside: Container[int]
    _returned: Mapping[int, str]
    _checked_at: dict[str, int] = field(default_factory=dict[str, int])

    def check_sender(self, participant: str, arrival: InboundFrame) -> Refusal | None:
        """Refuse an envelope that cannot be from its sender, whatever it may send."""
        envelope = arrival.envelope
        if envelope.sender != participant:
            return draft_refusal(
                participant,
                IDENTITY_MISMATCH,
                f"you are {participant!r}, and the envelope says that it is from"
                f" {envelope.sender!r}; send as yourself",
                about=envelope.id,
            )
        if self._management.is_kicked(participant):
            return refuse(envelope, KICKED, REMOVED)
        # Of the gateway alone, in either writing, known or not (PROTOCOL 4.10).
        if envelope.kind not in _OF_MEMBERS and (
            envelope.kind.startswith(("system/", "system.")) or envelope.kind in kinds.GATEWAY_KINDS
        ):
            return refuse(
                envelope, RESERVED_KIND, f"{arrival.kind_as_sent!r} comes only from the gateway"
            )
        return None

    def check_capability(self, arrival: InboundFrame) -> Refusal | None:
        """Refuse an envelope that its sender may not send, or that must not take effect."""
        envelope = arrival.envelope
        participant = envelope.sender
        if not self._may(participant, arrival):
            return refuse(
                envelope,
                CAPABILITY_VIOLATION,
                f"none of your capabilities allows this {arrival.kind_as_sent!r}",
                attempted_kind=arrival.kind_as_sent,
                your_capabilities=list(self._grants[participant].patterns),
            )
        held = self._control.check_held(envelope, arrival.payload, arrival.at)
        refused = held or self._check_addressees(arrival)
        if refused is not None:
            return refused
        if envelope.kind in kinds.DECISIONS and not envelope.correlation:
            return refuse(
                envelope,
                "invalid_envelope",
                f"the {arrival.kind_as_sent!r} names no proposal; put the proposal's id into its"
                " correlation",
            )
        if envelope.kind == kinds.MCP_WITHDRAW:
            return self._check_proposer(envelope)
        if envelope.kind == kinds.MCP_RENEW:
            return self._check_renewal(arrival)
        if envelope.kind == kinds.MCP_REPORT:
            return self._check_report(arrival)
        if envelope.kind == kinds.MCP_REQUEST and not is_notification(arrival.payload):
            return self._check_id(envelope) or self.check_named(arrival)
        if envelope.kind == kinds.MCP_PROPOSAL:
            return (
                self._check_id(envelope)
                or _check_keys(envelope, arrival.payload)
                or self._check_room(envelope, arrival.at)
            )
        return None

    def _check_addressees(self, arrival: InboundFrame) -> Refusal | None:
        """Refuse what begins for a participant that the space never had (PROTOCOL 3).

        No participant would answer, and its sender would wait for one that might come. What ends or
        answers something passes: it concerns others as well, who would not hear of the end.
        """
        envelope, payload = arrival.envelope, arrival.payload
        names = envelope.to
        if envelope.kind == kinds.MCP_PROPOSAL:
            target = payloads.read_proposal(payload).target
            names = (*names, target) if target else names
        unknown = next((each for each in names if not self._is_known(each)), None)
        if unknown is None or envelope.kind in _FOR_ANY_NAME:
            return None
        if envelope.protocol in NAMING_EXECUTORS:
            return None  # their own gateways let it pass
        if envelope.kind == kinds.MCP_REQUEST and is_notification(payload):
            return None
        return refuse_unknown(envelope, unknown)

    def _is_known(self, name: str) -> bool:
        return name in self._grants or name in kinds.GATEWAY_NAMES or self._absences.is_away(name)

    def _may(self, participant: str, arrival: InboundFrame) -> bool:
        """True if a member may send an envelope, by its capabilities or whatever they are."""
        envelope, payload = arrival.envelope, arrival.payload
        if envelope.kind == kinds.MCP_PROPOSAL:
            payload = payloads.unwrapped(payload)
        if self._grants[participant].allow(envelope.kind, payload, envelope.to):
            return True
        if envelope.kind == kinds.MCP_REQUEST:
            return payloads.called(payload)[0] in ALWAYS_ALLOWED_METHODS
        if envelope.kind in (kinds.MCP_RENEW, kinds.MCP_REPORT):
            return True  # whoever may propose something may say until when, and what came of it
        if envelope.kind in YES_KINDS:
            return True  # a yes is worth what its giver may carry out
        if envelope.kind == kinds.STREAM_CLOSE:
            return self._streams.may_close(envelope, payload)
        if envelope.kind == GRANT_ACK:
            return self._management.may_acknowledge(participant, envelope.correlation)
        if envelope.kind in ANSWERS:
            return self._control.may_answer(envelope)
        if envelope.kind != kinds.MCP_RESPONSE:
            return False
        asked = self._open.was_asked(participant, envelope.correlation)
        return asked or bool(self.answered_proposals(envelope, arrival.at))

    def answered_proposals(self, response: Envelope, at: int) -> list[OpenItem]:
        """The open proposals that a response of the published dialects decides by itself.

        Agents there approve so: they make the call in a request of their own, and answer the
        proposal with its result. So it counts only from a participant that may make the call.
        """
        if response.protocol not in NAMING_EXECUTORS:
            return []
        grants = self._grants[response.sender]
        return [
            item
            for name in response.correlation
            for item in self._open.proposals.under(name)
            if item.whole
            and item.state_at(at).is_pending
            and item.envelope.sender != response.sender
            and response.concerns(item.envelope.sender)
            and grants.allow(kinds.MCP_REQUEST, *call_of(item.envelope))
        ]

    def _check_renewal(self, arrival: InboundFrame) -> Refusal | None:
        """Only the proposer renews, and only what is pending, within bounds (PROTOCOL 4.17)."""
        renewal = arrival.envelope
        until = payloads.read_renewal(arrival.payload)
        if until is None or len(renewal.correlation) != 1:
            return refuse(
                renewal,
                "invalid_envelope",
                "a renewal names one proposal in its correlation, and its later deadline in"
                " 'expires_at', an RFC 3339 time with its zone",
            )
        problem = self._open.renewal_problem(renewal, until, arrival.at)
        message = f"proposal {renewal.correlation[0]!r} gets no more time: {problem}"
        return self._check_proposer(renewal) or (
            refuse(renewal, NOT_RENEWED, message) if problem else None
        )

    def _check_report(self, arrival: InboundFrame) -> Refusal | None:
        """Only its proposer tells what came of a permit, and once (PROTOCOL 4.20)."""
        report = arrival.envelope
        if read_report(arrival.payload) is None or len(report.correlation) != 1:
            return refuse(
                report,
                "invalid_envelope",
                "a report names one proposal in its correlation, and has its 'outcome'"
                " (completed, failed, not_run or taken), perhaps 'exit_code', and at most"
                f" {MAX_REPORTED_CHARS} characters of 'output'",
            )
        problem = self._open.report_problem(report)
        message = f"of proposal {report.correlation[0]!r} nothing is to be reported: {problem}"
        return self._check_proposer(report) or (
            refuse(report, NOT_REPORTED, message) if problem else None
        )

    def _check_proposer(self, withdraw: Envelope) -> Refusal | None:
        """Only the proposer withdraws; unknown and late withdraws pass (PROTOCOL 3, 4.1)."""
        for proposal in withdraw.correlation:
            proposers = self._open.proposals.known(proposal)
            if proposers and withdraw.sender not in proposers:
                return refuse(
                    withdraw,
                    NOT_PROPOSER,
                    f"proposal {proposal} is not yours; only its proposer withdraws, renews or"
                    " reports it",
                )
        return None

    def _check_id(self, envelope: Envelope) -> Refusal | None:
        """Refuse an id that another participant uses, or counts."""
        sender, envelope_id = envelope.sender, envelope.id
        named = owner_by_name(envelope_id)
        owner = self._open.find_other_owner(envelope_id, sender)
        if owner is not None:
            # Else a newcomer finds the ids that its client counts taken for good.
            if named == sender and not self._open.opened_by(envelope_id):
                return None
            why = f"{owner!r} has begun something under the id {envelope_id!r}"
        elif not named or named == sender or named not in self._grants:
            return None
        elif sender in self._open.opened_by(envelope_id):
            return None  # begun before the space knew the other: it may be said again
        else:
            why = f"the id {envelope_id!r} is kept for {named!r}, who counts its own so"
        return refuse(envelope, ID_IN_USE, f"{why}; send this under another id")

    def check_named(self, arrival: InboundFrame) -> Refusal | None:
        """Refuse a request that none would answer, or may carry out."""
        request = arrival.envelope
        refused = self._check_proposals(arrival) if request.correlation else None
        refused = refused or self._yeses.check_use(request, arrival.payload, arrival.at)
        return refused or self._check_answering(arrival)

    def _check_answering(self, arrival: InboundFrame) -> Refusal | None:
        """Refuse a request that no connection of its addressees answers (PROTOCOL 3).

        What is asked about an exchange of theirs is for the connection that began it, and so is a
        permit; what else carries a proposal out is for the one that answers, whatever it names.
        """
        request = arrival.envelope
        if not request.to:
            return None
        names: tuple[str, ...] = ()
        found: list[KnownItem] = []
        if request.correlation:
            found = self._open.find_proposed(request, payloads.read_call(arrival.payload))
        if any(each.asks_permit for each in found):
            names = request.correlation
        elif not found:
            meta = payloads.meta_of(arrival.payload)
            names = payloads.exchanges_of(request.correlation, meta)
        for each in request.to:
            if self._answers(each, request, names):
                return None
        return refuse(
            request,
            NOT_ANSWERING,
            f"no connection of {' or '.join(map(repr, request.to))} answers this: start its agent,"
            " or ask while the connection is there that made the call in question",
        )

    def _answers(self, participant: str, request: Envelope, names: tuple[str, ...]) -> bool:
        """True if a participant may answer what belongs to exchanges; one that is away may come."""
        if not names:
            return participant not in self._aside
        for item in self._open.begun(participant, names):
            if item.beside is not None:
                return item.beside in self._beside or self._may_be_back(participant, item.beside)
        asked_about = names[len(request.correlation) :]
        is_unknown = bool(asked_about) and not self._open.has_begun(participant, asked_about)
        return not is_unknown and participant not in self._aside

    def _may_be_back(self, participant: str, beside: int) -> bool:
        """True if one of its connections came back later, and so may be the one that was lost."""
        return beside != OVER_HTTP and any(
            number > beside for number, who in self._returned.items() if who == participant
        )

    def _check_proposals(self, arrival: InboundFrame) -> Refusal | None:
        """Refuse a request that names a decided proposal, or more than one (PROTOCOL 4.4).

        Edited arguments that readers would read differently are refused as those of a proposal.
        """
        request = arrival.envelope
        named = self._open.named(request.correlation)
        if len(named) > 1:
            return refuse(
                request,
                SEVERAL_PROPOSALS,
                f"the request names {len(named)} proposals, and a request fulfills one; name that"
                " one alone in its correlation",
            )
        for name, proposals in named.items():
            meant = payloads.meta_of(arrival.payload).get(payloads.PROPOSER)
            found = [each for each in proposals if each.proposer == meant] or proposals
            pending = [each for each in found if each.state_at(arrival.at).is_pending]
            if pending:
                problem = payloads.value_problem(arrival.payload.get("params"), request.raw_payload)
                if problem:
                    return refuse(request, "invalid_envelope", problem)
                return _check_declined(request, name, pending)
            proposer, state = found[0].proposer, found[0].state_at(arrival.at)
            return refuse(
                request,
                NOT_PENDING,
                f"proposal {name!r} of {proposer!r} is {state}, so nothing"
                " may be carried out for it; leave its id out of a request that only refers to it",
                state=str(state),
            )
        return None

    def find_executors(self, arrival: InboundFrame) -> tuple[str, ...] | Refusal:
        """The executors of a request without ``to``, of which there is one (PROTOCOL 4.4).

        Each participant that has the tool would carry it out, and one approval is for one run.
        Empty: it carries out no proposal that is known.
        """
        request = arrival.envelope
        if is_notification(arrival.payload):
            return ()
        call = payloads.read_call(arrival.payload)
        found = self._open.find_proposed(request, call)
        if not found:
            return ()
        named = {choose_executors(each.addressees, request.sender) for each in found}
        if len(named) == 1 and (executors := named.pop()):
            return executors
        method, tool = found[0].called
        parties = {request.sender, *(each.proposer for each in found)}
        others = [name for name in self._present if name not in parties and name not in self._aside]
        has, owners = bool(tool) and method == payloads.TOOL_CALL, self._open.tool_owners
        able = [name for name in others if has and owners.has(name, tool)]
        if not able:
            able = [name for name in others if not has or owners.may_have(name, tool)]
        return (able[0],) if len(able) == 1 else _ambiguous_executor(request, tool or method, able)

    def _check_room(self, proposal: Envelope, at: int) -> Refusal | None:
        """Bound the open proposals of a participant by what others can be asked to look at."""
        most, proposer = self._allowance.max_open_proposals, proposal.sender
        # One that is open may be sent again, or in place of the other.
        if self._open.is_open(proposer, proposal.id, at) or self._has_room(proposer, at):
            return None
        message = f"you have {most} open proposals, as many as are taken; withdraw some"
        return over_limit(proposal, "max_open_proposals", most, message)

    def _has_room(self, participant: str, at: int) -> bool:
        """True if a participant may propose more; looks for abandoned ones before it says no."""
        if self.has_place(participant, at):
            return True
        since = at - self._checked_at.get(participant, -_ABANDONED_CHECK_MICROSECONDS)
        if 0 <= since < _ABANDONED_CHECK_MICROSECONDS:
            return False
        gone_until = self._absences.abandoned_until(participant, at)
        found = self._open.abandoned(participant, at, gone_until)
        if not found:
            self._checked_at[participant] = at
        return bool(found)

    def has_place(self, participant: str, at: int) -> bool:
        return self._open.count(participant, at) < self._allowance.max_open_proposals


def _ambiguous_executor(request: Envelope, what: str, able: list[str]) -> Refusal:
    """A refusal that names the participants of which one has to be chosen."""
    told = able[:MAX_TOLD_EXECUTORS]
    more = f" and {len(able) - len(told)} more" if len(able) > len(told) else ""
    names = ", ".join(map(repr, told)) + more if told else "no participant that is present"
    return refuse(
        request,
        AMBIGUOUS_EXECUTOR,
        f"the request has no 'to', and who carries {what[:_MAX_QUOTED_CHARS]!r} out is not certain;"
        f" name one participant there: {names} may have it",
        executors=told,
    )


def _check_declined(request: Envelope, name: str, pending: list[KnownItem]) -> Refusal | None:
    """Refuse a request for what its sender, or who is to carry it out, has rejected.

    What a participant has decided holds for each of its processes, of which one that has just
    started has heard nothing (PROTOCOL 4.4).
    """
    for each in pending:
        deciders, executor = each.addressees
        # Who carries it out if the request says nothing; with several deciders, anybody may.
        named = (executor,) if executor else deciders if len(deciders) == 1 else ()
        for participant in (request.sender, *(request.to or named)):
            if participant in each.declined:
                return refuse(
                    request,
                    NOT_PENDING,
                    f"proposal {name!r} of {each.proposer!r} was rejected by {participant!r}"
                    f" ({each.declined[participant]}), who neither approves nor carries it out"
                    " afterwards; leave it to others, or ask for a new proposal",
                    state=str(ProposalState.REJECTED),
                )
    return None


def owner_by_name(envelope_id: str) -> str:
    """The owner of an id of the form ``<participant>-<number>``; empty for any other id."""
    if "-" not in envelope_id:  # as ours are
        return ""
    name, _, number = envelope_id.rpartition("-")
    return name if number.isdecimal() and number.isascii() else ""


def _check_keys(proposal: Envelope, payload: JsonObject) -> Refusal | None:
    """Refuse the keys by which a request tells to what it belongs, also in a wrapper."""
    inner = payloads.as_object(payload.get(payloads.WRAPPER))
    found = {key for body in (payload, inner) for key in payloads.meta_of(body)}
    key = next((each for each in _OF_REQUESTS if each in found), None)
    if key is None:
        return None
    return refuse(
        proposal,
        RESERVED_KEY,
        f"{key!r} in '_meta' says to which exchange a request belongs, and who fulfills a proposal"
        " may repeat its '_meta', so a proposal must not have it; leave it out",
        key=key,
    )
