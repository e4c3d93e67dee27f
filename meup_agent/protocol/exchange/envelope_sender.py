"""Our own envelopes: made and sent, told from forgeries, and sent again (PROTOCOL 4.14)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import msgspec

from meup_agent.protocol import kinds
from meup_agent.protocol.envelope import Envelope, draft
from meup_agent.protocol.exchange.effects import Effect, Priority, Send
from meup_agent.protocol.ttl_map import TTLMap, size_of

RESEND_SECONDS = 300.0
"""Time for which what may have to be sent again after a reconnect is kept."""

RESEND_COUNT = 1000
"""Withdrawals, cancellations, rejections and responses kept to send again after a reconnect."""

RESEND_SIZE = 16 * 1024 * 1024
"""Bytes of them."""

MAX_COPIES = 8
"""Copies of a rejection or withdraw that its words name: those that missed it know a copy alone."""

OWN_IDS = 10_000
"""Ids of our own that are remembered, to tell an echo from a forgery."""

OWN_ID_SECONDS = 600.0
"""Time that an echo may take; longer than any reconnect that is still useful."""


_BEGINNINGS = frozenset({kinds.MCP_REQUEST, kinds.MCP_PROPOSAL})


class Resendable(msgspec.Struct, frozen=True):
    """An envelope that may have to be sent again."""

    envelope: Envelope
    priority: Priority
    concerned: frozenset[str]  # the participants that need it when they join; empty: each that does
    repeated: bool = False  # it was sent once more because the gateway had thrown us out
    words: Envelope | None = None  # the chat that explains it
    copies: tuple[str, ...] = ()  # the ids under which it was sent again, the latest ones

    @property
    def copies_named(self) -> tuple[str, ...]:
        """The ids under which it may be known, the first one first."""
        return (self.envelope.id, *self.copies)


class ResendBuffer:
    """Envelopes that end or answer something; one sent again is found by its first id, too."""

    def __init__(self) -> None:
        self._kept: TTLMap[str, Resendable] = TTLMap(
            count=RESEND_COUNT, seconds=RESEND_SECONDS, size=RESEND_SIZE
        )
        self._copies: TTLMap[str, str] = TTLMap(count=RESEND_COUNT, seconds=RESEND_SECONDS)

    def put(self, item: Resendable, now: float) -> None:
        """Keep an envelope."""
        words = 0 if item.words is None else size_of(item.words)
        self._kept.put(item.envelope.id, item, now, size=size_of(item.envelope) + words)

    def put_copy(self, copy_id: str, item: Resendable, now: float) -> None:
        """Note under which id an envelope was sent again."""
        self._copies.put(copy_id, item.envelope.id, now)
        copies = (*item.copies, copy_id)[-MAX_COPIES:]
        self.put(msgspec.structs.replace(item, copies=copies), now)

    def get(self, envelope_id: str, now: float) -> Resendable | None:
        """The envelope that was sent first under an id, if it is still kept."""
        return self._kept.get(envelope_id, now)

    def pop(self, envelope_id: str) -> Envelope | None:
        """Forget an envelope, by its own id or a copy's; the envelope, if it was kept."""
        item = self._kept.pop(self._copies.peek(envelope_id) or envelope_id)
        return None if item is None else item.envelope

    def find_concerning(self, participants: frozenset[str], now: float) -> list[Resendable]:
        """The envelopes that concern one of these participants, oldest first."""
        kept = self._kept.values(now)
        return [item for item in kept if not item.concerned or item.concerned & participants]


class EnvelopeSender:
    """Makes this participant's envelopes and sends them, also again; without a clock, undated."""

    def __init__(
        self,
        new_id: Callable[[], str],
        wall_clock: Callable[[], datetime] | None,
        effects: list[Effect],
    ) -> None:
        self.new_id = new_id
        self._wall_clock = wall_clock
        self.me = ""
        self.now = 0.0  # the time of the present event
        self.copies_get_new_ids = False
        """A gateway that resumes delivers no id twice, so what is sent again needs another one."""
        self._effects = effects
        self._resend_buffer = ResendBuffer()
        self._own: TTLMap[str, bool] = TTLMap(count=OWN_IDS, seconds=OWN_ID_SECONDS)
        self._siblings: TTLMap[str, bool] = TTLMap(count=OWN_IDS, seconds=OWN_ID_SECONDS)

    # --- once ---

    def send(
        self,
        kind: str,
        payload: Any,
        *,
        priority: Priority,
        to: Iterable[str] = (),
        correlation: Iterable[str] = (),
        concerned: Iterable[str] | None = None,
        context: str | None = None,
    ) -> Envelope:
        """Make an envelope and send it; again when one that it ``concerned``, or any, joins."""
        explained = self._explained(correlation) if kind == kinds.CHAT else None
        envelope = draft(
            kind,
            payload,
            id=self.new_id(),
            sender=self.me,
            to=tuple(to),
            correlation=tuple(correlation) if explained is None else explained.copies_named,
            context=context,
            ts=self._timestamp(),
        )
        self.transmit(envelope, priority)
        if concerned is not None:
            self._resend_buffer.put(Resendable(envelope, priority, frozenset(concerned)), self.now)
        if explained is not None and explained.words is None:
            self._resend_buffer.put(msgspec.structs.replace(explained, words=envelope), self.now)
        return envelope

    def _explained(self, correlation: Iterable[str]) -> Resendable | None:
        """The rejection or withdraw of ours that a chat explains, while it may be sent again."""
        names = tuple(correlation)
        item = self._resend_buffer.get(names[0], self.now) if len(names) == 1 else None
        ends = (kinds.MCP_REJECT, kinds.MCP_WITHDRAW)
        return item if item is not None and item.envelope.kind in ends else None

    def transmit(self, envelope: Envelope, priority: Priority, *, again: bool = False) -> None:
        """Send an envelope that is ready."""
        self._own.put(envelope.id, True, self.now)
        self._effects.append(Send(envelope, priority, again))

    def date(self, envelope: Envelope) -> Envelope:
        """The envelope with the time of day, which it keeps when it is sent again."""
        ts = None if envelope.ts is not None else self._timestamp()
        return envelope if ts is None else envelope.replace(ts=ts)

    def _timestamp(self) -> str | None:
        if self._wall_clock is None:
            return None
        # UTC, whose offset is written as six characters: a slice costs less than a search.
        return self._wall_clock().isoformat(timespec="milliseconds")[:-6] + "Z"

    # --- ids under our name ---

    def note_sent(self, envelope_id: str) -> None:
        """Count the time of an echo from here: the envelope may have waited long to leave."""
        self._own.put(envelope_id, True, self.now)

    def is_own(self, envelope_id: str) -> bool:
        """True if an envelope in our name was sent by this process."""
        return self._own.get(envelope_id, self.now) is not None

    def note_sibling(self, envelope: Envelope) -> None:
        """Remember an envelope that another process sent under our name."""
        self._siblings.put(envelope.id, envelope.kind in _BEGINNINGS, self.now)

    def is_from_sibling(self, names: Iterable[str]) -> bool:
        """True if one of these envelopes was sent by another process under our name."""
        return any(self._siblings.get(name, self.now) is not None for name in names)

    def is_begun_by_sibling(self, names: Iterable[str]) -> bool:
        """True if one of these is a request or proposal of another process under our name."""
        return any(self._siblings.get(name, self.now) for name in names)

    # --- again ---

    def resend_to(self, participants: Iterable[str]) -> None:
        """Send what concerns these participants once more."""
        joined = frozenset(participants)
        for item in self._resend_buffer.find_concerning(joined, self.now) if joined else ():
            self._resend(item)

    def resend(self, envelope_id: str) -> None:
        """Send one envelope once more, if it is still kept."""
        item = self._resend_buffer.get(envelope_id, self.now)
        if item is not None:
            self._resend(item)

    def _resend(self, item: Resendable) -> None:
        envelope = item.envelope
        if self.copies_get_new_ids:
            envelope = envelope.replace(id=self.new_id())
            self._resend_buffer.put_copy(envelope.id, item, self.now)
        self.transmit(envelope, item.priority, again=True)
        words = item.words
        if words is not None:  # who missed it has missed them, too
            if self.copies_get_new_ids:
                about = (envelope.id, item.envelope.id)
                words = words.replace(id=self.new_id(), correlation=about)
            self.transmit(words, Priority.TALK, again=True)

    def resend_once(self, envelope_id: str) -> bool:
        """Send again what the gateway refused as it threw us out; once only, not for ever."""
        item = self._resend_buffer.get(envelope_id, self.now)
        if item is None or item.repeated:
            return False
        self._resend_buffer.put(msgspec.structs.replace(item, repeated=True), self.now)
        self.transmit(item.envelope, item.priority, again=True)
        return True

    def forget(self, envelope_id: str) -> Envelope | None:
        """Do not send an envelope again; the envelope, if it was kept."""
        return self._resend_buffer.pop(envelope_id)
