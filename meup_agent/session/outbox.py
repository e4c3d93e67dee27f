"""Envelopes and frames to send, bounded, ends of work first; and the calls that await an answer."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import anyio
import msgspec

from meup_agent.errors import UsageError
from meup_agent.protocol.exchange import Priority, Send, Wait
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import FrozenStruct
from meup_agent.protocol.wire.outcomes import Unknown
from meup_agent.protocol.wire.payloads import MAX_TTL
from meup_agent.protocol.wire.ttl_map import TTLMap
from meup_agent.transport.base import Condition, condition_maker

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from meup_agent.causes import Cause
    from meup_agent.protocol.exchange import (
        Effect,
        ExchangeTable,
        FulfillmentTarget,
        Key,
        Progressed,
    )
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.outcomes import Ending
    from meup_agent.session.event_emitter import EventEmitter
    from meup_agent.tracing import CallSpan


MAX_ENVELOPES: Final = 4096
"""Envelopes that wait for a connection; more talk than this is old by the time it is heard."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Payload bytes that wait for a connection."""

MAX_STREAM_FRAMES: Final = 64
"""Frames of streams that wait, about what the buffers of a socket hold: their senders wait beyond
it, and so feel a slow connection."""

MAX_STREAM_BYTES: Final = 1024 * 1024
"""Bytes of the same: an answer said behind them leaves soon all the same."""

MAX_UNACCEPTED: Final = 4096
"""Envelopes that have been sent to a gateway which numbers them, and whose echo has not come; what
follows waits."""

MAX_UNACCEPTED_BYTES: Final = 64 * 1024 * 1024
"""Payload bytes of the same."""

SECONDS_TO_LIVE: Final = {
    Priority.END: 300.0,
    Priority.ANSWER: 300.0,
    # Requests and proposals have deadlines of their own, which take them out.
    Priority.OPEN: float("inf"),
    Priority.TALK: 60.0,
}
"""Age beyond which an envelope is not sent any more."""


class QueuedEnvelope(FrozenStruct):
    """An envelope in the outbox."""

    draft: Envelope
    priority: Priority
    since: float


class QueuedFrame(FrozenStruct):
    """A frame of a stream in the outbox, under a name of its own there."""

    name: str
    stream: str
    frame: bytes


Queued = QueuedEnvelope | QueuedFrame


class Outbox:
    """Envelopes that have not been handed to a transport yet.

    What ends work overtakes everything; the rest leaves in the order in which it was said, so that
    progress never comes after its result. When it is full, talk is dropped, oldest first; requests
    and proposals wait in :meth:`room`; answers and ends are bounded by what they answer and end.
    Senders of frames wait for :attr:`has_frame_room`; a frame never goes out twice.
    """

    def __init__(self) -> None:
        self._urgent: OrderedDict[str, Queued] = OrderedDict()
        self._ordered: OrderedDict[str, Queued] = OrderedDict()
        self._in_flight = ""  # the name of what was taken
        self._stream_frames = self._stream_bytes = self._frames_put = 0
        self.frames_left: Final = Condition()
        # In the order in which they were sent.
        self._unaccepted: OrderedDict[str, QueuedEnvelope] = OrderedDict()
        self._unaccepted_bytes = 0
        # Nobody waits for it any more, but the gateway may tell of it by its id alone.
        self._ended: TTLMap[str, Envelope] = TTLMap(
            count=MAX_UNACCEPTED, seconds=math.inf, size=MAX_UNACCEPTED_BYTES
        )
        self._accepted = Condition()
        self._bytes = 0
        self._filled = Condition()
        self._emptied = Condition()
        self._has_room = Condition()
        self.dropped = 0
        """Envelopes that were left out, full or too old."""

    def __len__(self) -> int:
        """The number of envelopes that wait."""
        return len(self._urgent) + len(self._ordered)

    @property
    def is_full(self) -> bool:
        """True if talk is dropped and new exchanges wait."""
        return len(self) >= MAX_ENVELOPES or self._bytes >= MAX_BYTES

    def put(self, draft: Envelope, priority: Priority, now: float) -> None:
        """Queue an envelope; one that is queued already is queued once."""
        lane = self._lane(priority)
        if draft.id in lane or self._in_flight == draft.id:
            return
        if priority is Priority.TALK and self.is_full and not self._drop_talk():
            self.dropped += 1
            return
        self._add(lane, draft.id, QueuedEnvelope(draft, priority, now))

    def put_back(self, waiting: Queued) -> None:
        """Queue an item at the front again, since it could not be sent."""
        self._in_flight = ""
        if isinstance(waiting, QueuedFrame):
            name, lane = waiting.name, self._ordered
        else:
            name, lane = waiting.draft.id, self._lane(waiting.priority)
            self._pop_unaccepted(name)
        self._add(lane, name, waiting)
        lane.move_to_end(name, last=False)

    def remove(self, envelope_id: str) -> None:
        """Take back an envelope that is not needed any more."""
        for lane in (self._urgent, self._ordered):
            waiting = lane.pop(envelope_id, None)
            if waiting is not None:
                self._count(waiting, -1)
        if self._unaccepted and (sent := self._pop_unaccepted(envelope_id)) is not None:
            self._end(sent)
        self._emptied.notify_all()

    def take(self, now: float) -> Queued | None:
        """The next to send, if there is one; :meth:`gone` or :meth:`put_back` follows."""
        for lane in (self._urgent, self._ordered):
            while lane:
                name, waiting = lane.popitem(last=False)
                self._count(waiting, -1)
                if (
                    isinstance(waiting, QueuedFrame)
                    or now - waiting.since < SECONDS_TO_LIVE[waiting.priority]
                ):
                    self._in_flight = name
                    return waiting
                self.dropped += 1
        self._emptied.notify_all()
        return None

    def gone(self) -> None:
        """The envelope that was taken needs no further thought: it was sent, or cannot be."""
        self._in_flight = ""
        self._emptied.notify_all()

    # --- what was sent, and may have been lost with the connection ---

    @property
    def unaccepted(self) -> int:
        """Envelopes that were sent to a gateway which numbers them, and have not come back."""
        return len(self._unaccepted)

    @property
    def is_owed_too_much(self) -> bool:
        """True if so many echoes are missing that nothing more should be sent for now."""
        return (
            len(self._unaccepted) >= MAX_UNACCEPTED
            or self._unaccepted_bytes >= MAX_UNACCEPTED_BYTES
        )

    def keep(self, waiting: QueuedEnvelope) -> None:
        """The envelope that was taken may be sent again until the gateway has accepted it."""
        self._unaccepted[waiting.draft.id] = waiting
        self._unaccepted_bytes += len(waiting.draft.raw_payload)

    def sent(self, envelope_id: str) -> Envelope | None:
        """The envelope of that id, as it was sent on this connection, until it is accepted."""
        waiting = self._unaccepted.get(envelope_id)
        return self._ended.peek(envelope_id) if waiting is None else waiting.draft

    def accepted(self, envelope_id: str, *, replayed: bool = False) -> None:
        """Note that the gateway has numbered an envelope of ours, or has refused it.

        It takes what comes on one connection in order, so what was sent before has been decided,
        too. What it refused is not part of what is replayed, and is sent again to be refused again.
        What is replayed may have been sent on an older connection.
        """
        if envelope_id not in self._unaccepted:
            self._ended.pop(envelope_id)
            return
        while not replayed and (earlier := next(iter(self._unaccepted))) != envelope_id:
            self._pop_unaccepted(earlier)
        self._pop_unaccepted(envelope_id)

    def send_again(self) -> None:
        """Put envelopes that were not accepted first in the queue again, in their order."""
        while self._unaccepted:
            waiting = self._unaccepted[next(reversed(self._unaccepted))]
            self._pop_unaccepted(waiting.draft.id)
            if waiting.draft.id not in self._lane(waiting.priority):
                self.put_back(waiting)

    def keep_nothing(self) -> None:
        """Send nothing again: the gateway would not know it again."""
        while self._unaccepted:
            sent = self._pop_unaccepted(next(iter(self._unaccepted)))
            assert sent is not None
            self._end(sent)

    def forget_ended(self) -> None:
        """Forget what was sent on an older connection and is not sent again."""
        self._ended.clear()

    async def wait_accepted(self) -> None:
        """Return when more may be sent."""
        while self.is_owed_too_much:
            await self._accepted.wait()

    def _pop_unaccepted(self, envelope_id: str) -> QueuedEnvelope | None:
        waiting = self._unaccepted.pop(envelope_id, None)
        if waiting is not None:
            self._unaccepted_bytes -= len(waiting.draft.raw_payload)
            self._accepted.notify_all()
        return waiting

    def _end(self, sent: QueuedEnvelope) -> None:
        """Keep what was sent for the word that it is accepted, as far as there is room."""
        draft = sent.draft
        self._ended.put(draft.id, draft, 0.0, size=len(draft.raw_payload))

    async def wait_filled(self) -> None:
        """Return when there is something to send."""
        while not (self._ordered or self._urgent):
            await self._filled.wait()

    async def wait_emptied(self) -> None:
        """Return when everything has been sent."""
        while len(self) or self._in_flight:
            await self._emptied.wait()

    def clear(self) -> None:
        """Drop all that waits, and let those that wait for room see that we have left."""
        for lane in (self._urgent, self._ordered):
            while lane:
                self._count(lane.popitem()[1], -1)
        self.keep_nothing()
        self.forget_ended()
        self._emptied.notify_all()

    async def room(self) -> None:
        """Return when there is room for another request or proposal."""
        while self.is_full:
            await self._has_room.wait()

    # --- frames of streams ---

    @property
    def has_frame_room(self) -> bool:
        return self._stream_frames < MAX_STREAM_FRAMES and self._stream_bytes < MAX_STREAM_BYTES

    def put_frame(self, stream: str, frame: bytes) -> None:
        """Queue a frame of a stream, behind what was said before."""
        self._frames_put += 1
        waiting = QueuedFrame(f"#{self._frames_put}", stream, frame)
        self._add(self._ordered, waiting.name, waiting)

    def drop_frames(self, stream: str) -> None:
        """Drop the frames of a stream that has ended, and let its senders see that it has."""
        for waiting in [
            each
            for each in (self._ordered.values() if self._stream_frames else ())
            if isinstance(each, QueuedFrame) and each.stream == stream
        ]:
            del self._ordered[waiting.name]
            self._count(waiting, -1)
        self.frames_left.notify_all()
        self._emptied.notify_all()

    # --- lanes ---

    def _lane(self, priority: Priority) -> OrderedDict[str, Queued]:
        return self._urgent if priority is Priority.END else self._ordered

    def _add(self, lane: OrderedDict[str, Queued], name: str, waiting: Queued) -> None:
        lane[name] = waiting
        self._count(waiting, 1)
        self._filled.notify_all()

    def _count(self, waiting: Queued, change: int) -> None:
        """Count what was added (1) or taken (-1), and wake those that wait for room."""
        if isinstance(waiting, QueuedFrame):
            self._stream_frames += change
            self._stream_bytes += change * len(waiting.frame)
            room = self.frames_left
        else:
            self._bytes += change * len(waiting.draft.raw_payload)
            room = self._has_room
        if change < 0:
            room.notify_all()

    def _drop_talk(self) -> bool:
        for envelope_id, waiting in self._ordered.items():
            if isinstance(waiting, QueuedEnvelope) and waiting.priority is Priority.TALK:
                self.remove(envelope_id)
                self.dropped += 1
                return True
        return False


# --- timeouts that callers give ---

EXTENSIONS: Final = 10
"""So many times its timeout a request waits in all, if progress comes and nothing else is said."""


def checked_total(timeout: float | None, total: float | None) -> float:
    """Seconds that a request may wait in all, however often progress comes."""
    if timeout is None or total == math.inf:
        return math.inf
    if total is None:
        return EXTENSIONS * timeout
    if not total >= timeout:
        raise UsageError(
            f"a total_timeout of {total:g} is less than the timeout of {timeout:g} s that it is to"
            " extend; give as much, or more"
        )
    return total


def checked_ttl(seconds: float | None) -> float | None:
    """Seconds for which a proposal waits; ``None`` and infinity are as long as it takes.

    Raises:
        UsageError: It is not a time to wait, or more than readers take for one.
    """
    ttl = checked_timeout(seconds)
    if ttl is not None and ttl > MAX_TTL:
        raise UsageError(
            f"a proposal waits for at most {MAX_TTL:.0f} s; give None for as long as it takes"
        )
    return ttl


def checked_timeout(seconds: float | None) -> float | None:
    """Seconds that a verb may wait, fit to be added to a clock; infinite is as good as ``None``.

    NaN is refused: a comparison with it would never end a wait.
    """
    if seconds is None or seconds == math.inf:
        return None
    if math.isnan(seconds) or seconds < 0:
        raise UsageError(
            f"{seconds} is not a time to wait; give seconds from 0 on, or None for no limit"
        )
    return seconds


# --- requests and proposals of ours ---

log = logging.getLogger("meup_agent.session")

MAX_LOGGED_CHARS: Final = 200
"""Characters of a reason in the log: it may repeat what a stranger gave as theirs."""


LEFT_OPEN: Final = Unknown("its block was left, and it stays open; space.proposals.list() finds it")
"""The ending of a kept proposal for those that wait for it here."""


class _Waiter(msgspec.Struct):
    done: Condition
    kind: str
    since: float
    on_progress: Callable[[Progressed], None] | None
    span: CallSpan | None
    ending: Ending | None = None


class CallOwner(Protocol):
    """The session whose calls these are."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds of the loop's clock."""
        ...

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carry out what the exchange table decided."""
        ...

    def with_frame(self, said: Envelope) -> Envelope:
        """The envelope with its frame; raises if it has no wire form that a gateway takes."""
        ...

    def check_present(self, kind: str) -> None:
        """Raise if nothing can be sent any more."""
        ...


@dataclass
class PendingCalls:
    """The requests and proposals of ours whose ending a caller waits for, or has not read yet."""

    owner: CallOwner
    table: ExchangeTable
    outbox: Outbox
    events: EventEmitter
    _waits: dict[Key, _Waiter] = field(default_factory=dict["Key", _Waiter], init=False)
    _new_condition: Callable[[], Condition] = field(default_factory=condition_maker, init=False)

    # --- what handlers and clients use ---

    async def open(
        self,
        opening: Envelope,
        *,
        timeout: float | None,
        parent: Key | None = None,
        wait: Wait = Wait.ADDRESSED,
        idempotent: bool = False,
        fulfills: FulfillmentTarget | None = None,
        on_progress: Callable[[Progressed], None] | None = None,
        total: float | None = None,  # with it, each progress lets the timeout begin anew
        depends_on: Mapping[str, Ending | None] | None = None,
        span: CallSpan | None = None,
    ) -> Key:
        """Begin a request or proposal of ours; see :meth:`ExchangeTable.open`.

        Its span, if it has one, ends with it.
        """
        try:
            opening = self.owner.with_frame(self.table.date(opening))
            now = self.owner.now()
            if self.outbox.is_full:
                with anyio.move_on_after(timeout):
                    await self.outbox.room()
            self.owner.check_present(opening.kind)
            key, effects = self.table.open(
                opening,
                now=now,
                deadline=None if timeout is None or depends_on else now + timeout,
                parent=parent,
                wait=wait,
                idempotent=idempotent,
                fulfills=fulfills,
                patience=None if total is None else timeout,
                latest=math.inf if total is None else now + total,
                depends_on=depends_on,
                ttl=timeout,
            )
        except BaseException as error:  # also a cancellation while it waited for room
            if span is not None:
                span.fail(type(error).__qualname__)
                span.end()
            raise
        # Before its effects are carried out: its ending may be among what they lead to.
        self._waits[key] = _Waiter(self._new_condition(), opening.kind, now, on_progress, span)
        if self.events.observers:
            self.events.began(opening, parent)
        self.owner.apply(effects)
        return key

    async def ending(self, key: Key, *, parent: Key | None = None) -> Ending:
        """Wait until one has ended; the handler that waits gives its place free."""
        wait = self._waits.get(key)
        if wait is None:
            return LEFT_OPEN
        while wait.ending is None:
            if parent is None:
                await wait.done.wait()
                continue
            with self.release_slot(parent):
                await wait.done.wait()
        return wait.ending

    @contextmanager
    def release_slot(self, parent: Key | None) -> Generator[None]:
        """Give up a handler's place among those that run, for the length of a block."""
        if parent is None:
            yield
            return
        self.owner.apply(self.table.count_waits(parent, 1, self.owner.now()))
        try:
            yield
        finally:
            self.owner.apply(self.table.count_waits(parent, -1, self.owner.now()))

    def ended(self, key: Key) -> Ending | None:
        """The ending of one; ``None`` while it is open."""
        wait = self._waits.get(key)
        return None if wait is None else wait.ending

    def give_up(self, key: Key, cause: Cause) -> list[Envelope]:
        """Withdraw or cancel one if it is still open; what is said for that."""
        return self._end(self.table.give_up(key, cause, self.owner.now()))

    def withdraw_all(self, keys: Iterable[Key], cause: Cause, *, joint: bool) -> list[Envelope]:
        """Withdraw proposals that are still open; what is said for that."""
        return self._end(self.table.withdraw_all(keys, cause, self.owner.now(), joint=joint))

    def _end(self, effects: list[Effect]) -> list[Envelope]:
        self.owner.apply(effects)
        return [
            effect.draft
            for effect in effects
            if isinstance(effect, Send) and effect.priority is Priority.END
        ]

    def renew(self, key: Key, seconds: float) -> str:
        """Give a proposal more time; the id of what is said for that."""
        renewal, effects = self.table.renew(key, seconds, self.owner.now())
        self.owner.apply(effects)
        return renewal.id

    def leave(self, key: Key, cause: Callable[[], Cause]) -> Ending | None:
        """Ask for one no more, which gives it up if it is open; its ending."""
        if self._waits[key].ending is None:
            self.give_up(key, cause())
        return self._waits.pop(key).ending

    def drop(self, key: Key) -> Ending | None:
        """Wait for one no more, and leave it open; its ending, if it has ended."""
        ending = self._waits[key].ending
        if ending is None:
            # Another task may wait for it, as the layers of a middleware do.
            self.end(key, LEFT_OPEN)
        del self._waits[key]
        return ending

    # --- what the table tells ---

    def end(self, key: Key, ending: Ending) -> None:
        """Note the ending, and wake its callers."""
        wait = self._waits.get(key)
        if wait is None:
            return
        # Observers and the span are told of the first ending; callers get the last one.
        if self.events.observers and wait.ending is None:
            self.events.ended(key, wait.kind, ending, self.owner.now() - wait.since)
        if wait.span is not None and wait.ending is None:
            wait.span.end_by(ending)
        wait.ending = ending
        wait.done.notify_all()

    def progressed(self, progress: Progressed) -> None:
        wait = self._waits.get(progress.key)
        if wait is not None and wait.on_progress is not None:
            wait.on_progress(progress)


def log_cancel(said: Envelope) -> None:
    """Log it, if it is a cancel."""
    if said.kind != kinds.MCP_REQUEST:
        return
    call = payloads.read_call(said.payload)
    if call.method == kinds.CANCELLED:
        log.info(
            "cancelled our request %r to %r: %r",
            str(call.params.get("requestId"))[:64],
            ", ".join(said.to)[:MAX_LOGGED_CHARS],
            str(call.params.get("reason"))[:MAX_LOGGED_CHARS],
        )
