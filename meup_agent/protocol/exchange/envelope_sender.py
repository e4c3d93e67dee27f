"""What this participant says, and what it must be ready to say again (PROTOCOL 4.14)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import msgspec

from meup_agent.protocol.envelope import Envelope, draft
from meup_agent.protocol.exchange.effects import Effect, Priority, Send
from meup_agent.protocol.exchange.ttl_map import TTLMap, size_of

SECONDS = 300.0
"""How long an ending is said again to those it concerns."""

COUNT = 1000
"""Endings that are remembered."""

SIZE = 16 * 1024 * 1024
"""Bytes of the endings that are remembered."""

OWN_IDS = 10_000
"""Ids of our own that are remembered, to tell an echo from a forgery."""

OWN_ID_SECONDS = 600.0
"""How long an echo may take; longer than any reconnect that is still useful."""


class _Ending(msgspec.Struct, frozen=True):
    draft: Envelope
    priority: Priority
    concerned: frozenset[str]
    repeated: bool = False


class EnvelopeSender:
    """Makes this participant's envelopes.

    Args:
        new_id: Draws an id that nobody used before.
        wall_clock: Tells the time of day in UTC; without it nothing is dated.
        effects: Where what is to be sent is put.
    """

    def __init__(
        self,
        new_id: Callable[[], str],
        wall_clock: Callable[[], datetime] | None,
        effects: list[Effect],
    ) -> None:
        self.new_id = new_id
        self._wall_clock = wall_clock
        self.me = ""
        self.anew = False
        """What is said again is another envelope: our gateway delivers none a second time."""
        self._effects = effects
        self._endings: TTLMap[str, _Ending] = TTLMap(count=COUNT, seconds=SECONDS, size=SIZE)
        self._copies: TTLMap[str, str] = TTLMap(count=COUNT, seconds=SECONDS)
        self._own: TTLMap[str, bool] = TTLMap(count=OWN_IDS, seconds=OWN_ID_SECONDS)
        self._siblings: TTLMap[str, bool] = TTLMap(count=OWN_IDS, seconds=OWN_ID_SECONDS)

    def send(
        self,
        kind: str,
        payload: Any,
        *,
        now: float,
        priority: Priority,
        to: Iterable[str] = (),
        correlation: Iterable[str] = (),
        concerned: Iterable[str] | None = None,
    ) -> Envelope:
        """Send something.

        Args:
            kind: The kind.
            payload: The payload.
            now: The time.
            priority: Its place in the outbox.
            to: Whom it is for.
            correlation: What it refers to.
            concerned: It is said again when one of these joins; empty: when anybody does;
                ``None``: never.
        """
        envelope = draft(
            kind,
            payload,
            id=self.new_id(),
            sender=self.me,
            to=tuple(to),
            correlation=tuple(correlation),
            ts=self._time_of_day(),
        )
        self.transmit(envelope, priority, now)
        if concerned is not None:
            ending = _Ending(envelope, priority, frozenset(concerned))
            self._endings.put(envelope.id, ending, now, size=size_of(envelope))
        return envelope

    def date(self, envelope: Envelope) -> Envelope:
        """The envelope with the time of day, which it keeps when it is sent again."""
        ts = None if envelope.ts is not None else self._time_of_day()
        return envelope if ts is None else envelope.replace(ts=ts)

    def _time_of_day(self) -> str | None:
        if self._wall_clock is None:
            return None
        # UTC, whose offset is written as six characters: a slice costs less than a search.
        return self._wall_clock().isoformat(timespec="milliseconds")[:-6] + "Z"

    def transmit(
        self, envelope: Envelope, priority: Priority, now: float, *, again: bool = False
    ) -> None:
        """Send an envelope that is ready."""
        self._own.put(envelope.id, True, now)
        self._effects.append(Send(envelope, priority, again))

    def note_sent(self, envelope_id: str, now: float) -> None:
        """An envelope has left: its echo may take as long as any, however long it waited."""
        self._own.put(envelope_id, True, now)

    def is_own(self, envelope_id: str, now: float) -> bool:
        """Whether an envelope in our name is ours."""
        return self._own.get(envelope_id, now) is not None

    def note_sibling(self, envelope_id: str, now: float) -> None:
        """Another process of ours has said something."""
        self._siblings.put(envelope_id, True, now)

    def is_from_sibling(self, names: Iterable[str], now: float) -> bool:
        """Whether one of these envelopes is of another process of ours."""
        return any(self._siblings.get(name, now) is not None for name in names)

    def resend_to(self, participants: Iterable[str], now: float) -> None:
        """Send what concerns these participants once more, under the same ids."""
        joined = frozenset(participants)
        for ending in list(self._endings.values(now)):
            if joined and (not ending.concerned or ending.concerned & joined):
                self._send_again(ending, now)

    def _send_again(self, ending: _Ending, now: float) -> None:
        said = ending.draft
        if self.anew:
            said = said.replace(id=self.new_id())
            self._copies.put(said.id, ending.draft.id, now)
        self.transmit(said, ending.priority, now, again=True)

    def forget(self, envelope_id: str) -> Envelope | None:
        """Do not say an ending again; what it was, if it is remembered."""
        ending = self._endings.pop(self._copies.peek(envelope_id) or envelope_id)
        return None if ending is None else ending.draft

    def resend_once(self, envelope_id: str, now: float) -> bool:
        """Send one ending again that was said in vain; only once, or there may be no end to it."""
        ending = self._endings.get(envelope_id, now)
        if ending is None or ending.repeated:
            return False
        said = msgspec.structs.replace(ending, repeated=True)
        self._endings.put(envelope_id, said, now, size=size_of(ending.draft))
        self.transmit(ending.draft, ending.priority, now, again=True)
        return True

    def resend(self, envelope_id: str, now: float) -> bool:
        """Send one ending once more; ``False`` if it is no longer remembered."""
        ending = self._endings.get(envelope_id, now)
        if ending is None:
            return False
        self._send_again(ending, now)
        return True
