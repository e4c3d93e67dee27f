"""Pauses and shutdowns of participants, and yeses, to which a gateway holds them (PROTOCOL 3, 5).

A participant that is paused or shut down begins nothing: its requests, proposals, chats, streams
and reasonings are refused. What ends or answers something always passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from meup_agent.causes import Reason
from meup_agent.errors import InvalidPattern
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.space.journal import Fact, facts_under
from meup_agent.protocol.space.state.grants import GrantStore
from meup_agent.protocol.space.state.indexes import (
    ID_IN_USE,
    Answer,
    OpenItem,
    Refusal,
    SenderIndex,
    gateway_draft,
    over_limit,
    refuse,
    refuse_unknown,
)
from meup_agent.protocol.space.state.inflight import InFlight, call_of, is_notification
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, FrozenStruct, encode_leniently
from meup_agent.protocol.wire.membership import read_query
from meup_agent.protocol.wire.payloads import (
    ANSWERS,
    ASKED,
    HELD_KINDS,
    PAUSE,
    REQUEST_STATUS,
    RESUME,
    SHUTDOWN,
    JsonObject,
    Pause,
    build_pause,
    outlasts,
    read_control,
)
from meup_agent.protocol.wire.scoped_yes import (
    MAX_COVERED_BYTES,
    ArgumentScope,
    KeptYes,
    ScopedYes,
    YesQuery,
    YesTerms,
    named_yes,
    read_revoked,
    read_terms,
)

PAUSED: Final = "paused"
SHUT_DOWN: Final = "shut_down"

PAUSED_FACT: Final = "paused/"
SHUT_DOWN_FACT: Final = "shut_down/"

EARLY_SECONDS: Final = 1.0
"""A participant may resume itself so much before its time is over: its clock is another."""

_MICROSECONDS: Final = 1_000_000


class HeldPause(FrozenStruct):
    """A pause in force, until a time in microseconds since 1970 where it has one."""

    pause: Pause
    until: int | None

    def is_over(self, at: int) -> bool:
        """True once its time is over."""
        return self.until is not None and at >= self.until

    def seconds_left(self, at: int) -> float | None:
        """Seconds until it ends by itself; ``None``: it does not."""
        return None if self.until is None else max(0.0, (self.until - at) / _MICROSECONDS)


@dataclass(slots=True, eq=False)
class ParticipantControl:
    """The pauses and shutdowns of a space: at most one of each for a participant."""

    _grants: GrantStore
    _paused: dict[str, HeldPause] = field(default_factory=dict[str, HeldPause])
    _shut_down: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    # The addressees of what participants were asked, which they may answer.
    _asked: SenderIndex[tuple[str, ...]] = field(default_factory=SenderIndex[tuple[str, ...]])

    def restore(self, facts: Mapping[str, JsonObject]) -> None:
        """Restore the facts of before a restart."""
        for name, value in facts_under(facts, PAUSED_FACT):
            self._paused[name] = msgspec.convert(value, HeldPause)
        self._shut_down.update(facts_under(facts, SHUT_DOWN_FACT))

    def joined(self, participant: str) -> tuple[Fact, ...]:
        """End the shutdown of a participant that joins; a pause goes on."""
        if self._shut_down.pop(participant, None) is None:
            return ()
        return (Fact(SHUT_DOWN_FACT + participant, None),)

    def pause_of(self, participant: str, at: int) -> HeldPause | None:
        held = self._paused.get(participant)
        return None if held is None or held.is_over(at) else held

    def describe_pause(self, participant: str, at: int) -> JsonObject | None:
        held = self.pause_of(participant, at) if self._paused else None
        return None if held is None else build_pause(held.pause, held.seconds_left(at))

    # --- what participants send while they are held ---

    def check_held(self, envelope: Envelope, payload: JsonObject, at: int) -> Refusal | None:
        """Refuse what a participant that is paused or shut down would begin."""
        if not (self._paused or self._shut_down) or envelope.kind not in HELD_KINDS:
            return None
        if envelope.kind == kinds.MCP_REQUEST and is_notification(payload):
            return None
        return self.refuse_held(envelope, at)

    def refuse_held(self, envelope: Envelope, at: int) -> Refusal | None:
        """Refuse an envelope, whatever it is, of a participant that is paused or shut down."""
        participant = envelope.sender
        shut_down = self._shut_down.get(participant)
        if shut_down is not None:
            by = str(shut_down.get("by"))
            said = f"you were shut down by {by!r}; join the space again to go on"
            return refuse(envelope, SHUT_DOWN, said, by=by)
        held = self.pause_of(participant, at)
        if held is None:
            return None
        pause, left = held.pause, held.seconds_left(at)
        until = "until you are resumed" if left is None else f"for {left:.3g} s more"
        because = f" ({pause.reason})" if pause.reason else ""
        said = f"you are paused by {pause.by!r}{because}, {until}; begin nothing new meanwhile"
        return refuse(envelope, PAUSED, said, **build_pause(pause, left))

    def check_frame(self, participant: str, at: int) -> Refusal | None:
        if not (self._paused or self._shut_down):
            return None
        return self.refuse_held(Envelope(id="", sender=participant, kind=""), at)

    # --- control ---

    def may_answer(self, envelope: Envelope) -> bool:
        """True for an answer to what its sender was asked; it needs no capability.

        A participant announces the end of its own pause to the one that paused it.
        """
        sender = envelope.sender
        if envelope.kind not in ANSWERS:
            return False
        if envelope.kind == RESUME:
            held = self._paused.get(sender)
            return (
                held is not None
                and envelope.correlation == (held.pause.id,)
                and envelope.to in ((), (held.pause.by,))
            )
        return any(
            not to or sender in to
            for name in envelope.correlation
            for to in self._asked.under(name).values()
        )

    def check(self, envelope: Envelope, payload: JsonObject, at: int) -> Refusal | None:
        """Check that an envelope, whose sender may send it, can be carried out.

        Raises:
            InvalidEnvelope: Its payload cannot be read.
        """
        read_control(envelope, payload)
        if envelope.kind == RESUME:
            return self._check_resume(envelope, at)
        if envelope.kind not in ASKED or envelope.kind == REQUEST_STATUS:
            return None
        if not envelope.to:
            said = f"the {envelope.kind!r} names no participant; put those that it is for into 'to'"
            return refuse(envelope, "invalid_envelope", said)
        unknown = next((name for name in envelope.to if name not in self._grants), None)
        return None if unknown is None else refuse_unknown(envelope, unknown)

    def _check_resume(self, envelope: Envelope, at: int) -> Refusal | None:
        """Refuse that a participant lifts its own pause, which another made, before its time."""
        sender = envelope.sender
        held = self.pause_of(sender, at)
        if held is None or held.pause.by == sender:
            return None
        is_meant = sender in envelope.to or held.pause.id in envelope.correlation
        early = held.until is None or held.until - at > EARLY_SECONDS * _MICROSECONDS
        return self.refuse_held(envelope, at) if is_meant and early else None

    def accept(self, envelope: Envelope, payload: JsonObject, at: int) -> tuple[Fact, ...]:
        """Carry out what :meth:`check` let through; the facts that hold from now on."""
        if envelope.kind == PAUSE:
            return self._pause(envelope, payload, at)
        if envelope.kind == RESUME:
            return self._resume(envelope, payload)
        if envelope.kind == SHUTDOWN:
            fact = {"by": envelope.sender, "id": envelope.id}
            self._shut_down.update(dict.fromkeys(envelope.to, fact))
            return tuple(Fact(SHUT_DOWN_FACT + name, fact) for name in dict.fromkeys(envelope.to))
        return ()

    def remember(self, envelope: Envelope) -> None:
        # A resume, too: the one that goes on tells its status.
        if envelope.kind in ASKED or (envelope.kind == RESUME and envelope.to):
            self._asked.put(envelope.sender, envelope.id, envelope.to)

    def _pause(self, envelope: Envelope, payload: JsonObject, at: int) -> tuple[Fact, ...]:
        pause = read_control(envelope, payload)
        assert isinstance(pause, Pause)
        seconds = pause.seconds
        held = HeldPause(pause, None if seconds is None else at + round(seconds * _MICROSECONDS))
        # Else a short pause would be a way to lift a long one.
        paused = [name for name in dict.fromkeys(envelope.to) if self._replaces(name, held, at)]
        self._paused.update(dict.fromkeys(paused, held))
        fact: JsonObject = msgspec.to_builtins(held)
        return tuple(Fact(PAUSED_FACT + name, fact) for name in paused)

    def _replaces(self, participant: str, new: HeldPause, at: int) -> bool:
        """True unless another participant's pause, which ends later, is in force."""
        held = self.pause_of(participant, at)
        return held is None or not outlasts((held.pause.by, held.until), (new.pause.by, new.until))

    def _resume(self, envelope: Envelope, payload: JsonObject) -> tuple[Fact, ...]:
        sender, meant = envelope.sender, envelope.correlation
        named = [sender] if any(self._is_own(sender, name) for name in meant) else []
        # An announcement of a participant that may resume no other lifts its own pause alone.
        if self._grants[sender].allow(RESUME, payload, envelope.to):
            named += envelope.to
        facts: list[Fact] = []
        for name in dict.fromkeys(named):
            held = self._paused.get(name)
            if held is not None and (not meant or held.pause.id in meant):
                del self._paused[name]
                facts.append(Fact(PAUSED_FACT + name, None))
        return tuple(facts)

    def _is_own(self, participant: str, pause_id: str) -> bool:
        held = self._paused.get(participant)
        return held is not None and held.pause.id == pause_id


YES_FACT: Final = "yes/"

INVALID_YES: Final = "invalid_yes"
UNKNOWN_YES: Final = "unknown_yes"

MAX_YESES: Final = 200
"""Scoped yeses of a space that hold at once: a list of all of them fits in one frame."""

MAX_YESES_OF_A_GIVER: Final = 100
"""Of one participant, so that one leaves room for the others."""


_encode_sorted = msgspec.json.Encoder(order="sorted").encode


@dataclass(slots=True, eq=False)
class YesStore:
    """The scoped yeses of a space; those that hold no more are dropped when one is given."""

    _grants: GrantStore
    _open: InFlight
    _control: ParticipantControl
    _is_removed: Callable[[str], bool]
    _held: dict[str, ScopedYes] = field(default_factory=dict[str, ScopedYes])

    def restore(self, facts: Mapping[str, JsonObject]) -> None:
        """Restore the facts of before a restart; one that cannot be read holds no more."""
        for yes_id, value in facts_under(facts, YES_FACT):
            try:
                read = msgspec.convert({**value, "id": yes_id}, ScopedYes)
                ArgumentScope(read.arguments, read.others)
            except (msgspec.ValidationError, InvalidPattern):
                continue
            self._held[yes_id] = read

    # --- giving and revoking ---

    def check(self, envelope: Envelope, payload: JsonObject, at: int) -> Refusal | None:
        """Check that a yes can be given, or revoked; changes nothing.

        Raises:
            InvalidEnvelope: Its payload cannot be read, or be meant.
        """
        if envelope.kind == kinds.YES_REVOKE:
            return self._check_revocation(envelope, read_revoked(envelope, payload))
        terms = read_terms(envelope, payload)
        item = self._open.proposals.get((terms.proposer, envelope.correlation[0]))
        if item is None or not item.whole or not item.state_at(at).is_pending:
            named = f"proposal {envelope.correlation[0]!r} of {terms.proposer!r}"
            return refuse(envelope, INVALID_YES, f"no yes is given at {named}: it is not pending")
        if problem := self._problem(envelope.sender, item, terms):
            return refuse(envelope, INVALID_YES, f"this yes is not taken: {problem}")
        if envelope.id in self._held:
            return refuse(
                envelope, ID_IN_USE, f"a yes {envelope.id} is kept; send this under another id"
            )
        active = [each for each in self._held.values() if each.state_at(at) == "active"]
        mine = sum(each.by == envelope.sender for each in active)
        if mine >= MAX_YESES_OF_A_GIVER or len(active) >= MAX_YESES:
            most = MAX_YESES_OF_A_GIVER if mine >= MAX_YESES_OF_A_GIVER else MAX_YESES
            message = f"{most} yeses hold already, as many as are taken; revoke some"
            return over_limit(envelope, "max_yeses", most, message)
        return None

    def _problem(self, giver: str, item: OpenItem, terms: YesTerms) -> str:
        """The reason for which a yes cannot be given at a proposal, in words; empty: none."""
        call = payloads.read_proposal(item.envelope.payload_object)
        if call.method != payloads.TOOL_CALL:
            return "the proposal calls no tool"
        if call.target is None:
            return "the proposal does not say who should carry it out"
        if item.proposer == giver:
            return "you proposed it yourself"
        if not self._grants[giver].allow(kinds.MCP_REQUEST, *call_of(item.envelope)):
            return "your capabilities do not allow to carry the proposed call out"
        if call.beside:
            return "the proposed call has parameters that no pattern sees"
        if len(call.name) > payloads.MAX_NAME_CHARS:
            return f"the name of the tool has more than {payloads.MAX_NAME_CHARS} characters"
        if len(item.envelope.raw_payload) > MAX_COVERED_BYTES:
            return f"the proposed call has more than {MAX_COVERED_BYTES} bytes"
        if payloads.digest(call.method, call.params, call.target) != terms.digest:
            # Its proposer may use an id again, for another tool of the same form.
            return "the proposal is another call than the one of its 'digest'; look at it again"
        if not terms.compile().takes(call.arguments):
            return "its patterns do not take the call at which it is given"
        return ""

    def _check_revocation(self, envelope: Envelope, yes_id: str) -> Refusal | None:
        held = self._held.get(yes_id)
        if held is None:
            return refuse(envelope, UNKNOWN_YES, f"no yes {yes_id!r} is kept here")
        # What holds back is for each that decides.
        rejection = {"reason": str(Reason.DISAGREE)}
        grants = self._grants[envelope.sender]
        if envelope.sender == held.by or grants.allow(kinds.MCP_REJECT, rejection, ()):
            return None
        message = f"the yes {yes_id!r} is of {held.by!r}; one that may reject calls revokes it"
        return refuse(envelope, INVALID_YES, message)

    def accept(self, envelope: Envelope, payload: JsonObject, at: int) -> tuple[Fact, ...]:
        """Carry out what :meth:`check` let through; the facts that hold from now on."""
        if envelope.kind == kinds.YES_REVOKE:
            return tuple(self._drop([read_revoked(envelope, payload)]))
        terms = read_terms(envelope, payload)
        proposal = envelope.correlation[0]
        item = self._open.proposals.get((terms.proposer, proposal))
        assert item is not None  # check() said so
        call = payloads.read_proposal(item.envelope.payload_object)
        given = ScopedYes(
            id=envelope.id,
            by=envelope.sender,
            proposal=proposal,
            proposer=terms.proposer,
            target=call.target or "",
            tool=call.name,
            form=terms.form,
            given=at,
            until=at + round(terms.seconds * _MICROSECONDS),
            most=terms.most,
            arguments=terms.arguments,
            others=terms.others,
        )
        over = [each.id for each in self._held.values() if each.state_at(at) != "active"]
        return (*self._drop(over), self._keep(given))

    def removed(self, participant: str) -> tuple[Fact, ...]:
        """Drop the yeses of and for a participant that is removed.

        Who is invited under its name later may be another one.
        """
        theirs = [
            each.id
            for each in self._held.values()
            if participant in (each.by, each.proposer, each.target)
        ]
        return tuple(self._drop(theirs))

    def _keep(self, held: ScopedYes) -> Fact:
        self._held[held.id] = held
        value: JsonObject = msgspec.to_builtins(held)
        del value["id"]
        return Fact(YES_FACT + held.id, value)

    def _drop(self, ids: list[str]) -> Iterator[Fact]:
        for yes_id in ids:
            if self._held.pop(yes_id, None) is not None:
                yield Fact(YES_FACT + yes_id, None)

    # --- uses ---

    def check_use(self, request: Envelope, payload: JsonObject, at: int) -> Refusal | None:
        """Refuse a request that names a yes which does not cover it."""
        named = named_yes(payload)
        if named is None:
            return None
        held = self._held.get(named) if isinstance(named, str) else None
        state = "unknown" if held is None else held.state_at(at)
        if held is not None and state == "active":
            problem = self._use_problem(held, request, payload, at)
            if not problem:
                return None
            state = "not_covered"
        else:
            problem = {
                "unknown": "it was never given, or has been revoked",
                "expired": "its time is over",
                "used_up": "it has let through as many calls as it was given for",
            }[state]
        message = f"the yes {str(named)[:64]!r} does not let this request through: {problem}"
        return refuse(request, INVALID_YES, message, state=state)

    def _use_problem(self, held: ScopedYes, request: Envelope, payload: JsonObject, at: int) -> str:
        """The reason for which a yes does not cover a request, in words; empty: it does."""
        call = payloads.read_call(payload)
        found = self._open.find_proposed(request, call)
        if len(found) != 1 or not isinstance(found[0], OpenItem) or not found[0].whole:
            return "it carries out no single proposal that is known here"
        proposal = found[0]
        if proposal.state_at(at) is not ProposalState.PENDING:
            return f"the proposal is {proposal.state_at(at)}"
        if proposal.key == (held.proposer, held.proposal):
            return "it was given at this proposal, which its giver decides"
        if len(request.raw_payload) > MAX_COVERED_BYTES:
            return f"the call has more than {MAX_COVERED_BYTES} bytes"
        proposed = payloads.read_proposal(proposal.envelope.payload_object)
        if not _is_unchanged(proposed, call) or request.to != (proposed.target,):
            return "the request is not the call that was proposed"
        if not held.covers(proposed, proposal.proposer):
            return "the call is not one of those that it is for"
        # What its giver may do no longer, the yes does not either.
        if not self._may(held.by, payload, request.to):
            return f"{held.by!r}, who gave it, may not carry the call out"
        if self._control.check_frame(held.by, at) is not None:
            return f"{held.by!r}, who gave it, is paused"
        return ""

    def _may(self, giver: str, payload: JsonObject, to: tuple[str, ...]) -> bool:
        if giver not in self._grants or self._is_removed(giver):
            return False
        return self._grants[giver].allow(kinds.MCP_REQUEST, payload, to)

    def use(self, payload: JsonObject) -> tuple[Fact, ...]:
        """Count a request that :meth:`check_use` let through, if it names a yes."""
        named = named_yes(payload) if self._held else None
        held = self._held.get(named) if isinstance(named, str) else None
        if held is None:
            return ()
        return (self._keep(msgspec.structs.replace(held, used=held.used + 1)),)

    # --- the list ---

    def kept(self, at: int) -> list[KeptYes]:
        """Those that are kept, oldest first."""
        held = sorted(self._held.values(), key=lambda each: (each.given, each.id))
        return [KeptYes(each, each.state_at(at)) for each in held]

    def list(self, question: Envelope, payload: JsonObject, at: int) -> Answer:
        """The answer to a question: those that are kept, with their uses and states.

        Raises:
            InvalidEnvelope: It asks for something else.
        """
        query = read_query(question, payload, YesQuery, "the yeses")
        kept = [each for each in self.kept(at) if query.takes(each.yes)]
        listed = [{**each.yes.described, "state": each.state} for each in kept]
        raw = encode_leniently({"yeses": listed})

        def write(seq: int) -> Envelope:
            return gateway_draft(kinds.YES_LISTED, raw, to=question.sender, about=question.id)

        return Answer(question, write, len(raw))


def _is_unchanged(proposed: payloads.Call, call: payloads.Call) -> bool:
    """True if a request is the call that was proposed, number for number."""
    if proposed.method != call.method:
        return False
    # Not as Python compares: to it 1 and true are equal.
    bare = [_encode_sorted(payloads.without_meta(each.params)) for each in (proposed, call)]
    return bare[0] == bare[1]
