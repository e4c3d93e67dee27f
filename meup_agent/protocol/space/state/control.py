"""Pauses and shutdowns of participants, to which the gateway holds them (PROTOCOL 3, control).

A participant that is paused or shut down begins nothing: its requests, proposals, chats, streams
and reasonings are refused. What ends or answers something always passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from meup_agent.protocol.space.journal import Fact, facts_under
from meup_agent.protocol.space.state.grants import GrantStore
from meup_agent.protocol.space.state.indexes import SenderIndex
from meup_agent.protocol.space.state.inflight import is_notification
from meup_agent.protocol.space.state.verdicts import Refusal, refuse, refuse_unknown
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.control_payloads import (
    ANSWERS,
    ASKED,
    HELD_KINDS,
    PAUSE,
    REQUEST_STATUS,
    RESUME,
    SHUTDOWN,
    Pause,
    build_pause,
    outlasts,
    read_control,
)
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.payloads import JsonObject

PAUSED: Final = "paused"
SHUT_DOWN: Final = "shut_down"

PAUSED_FACT: Final = "paused/"
SHUT_DOWN_FACT: Final = "shut_down/"

EARLY_SECONDS: Final = 1.0
"""A participant may resume itself so much before its time is over: its clock is another."""

_MICROSECONDS: Final = 1_000_000


class HeldPause(msgspec.Struct, frozen=True):
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
        fact: dict[str, Any] = msgspec.to_builtins(held)
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
