"""Effects: data for the session to carry out, and the names that they use; how an exchange ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Final, Literal, NamedTuple, TypeVar

from meup_agent.causes import Cause
from meup_agent.protocol.wire.envelope import Envelope, FrozenStruct
from meup_agent.protocol.wire.outcomes import (
    Ending,
    Expiry,
    Explanation,
    Fulfillment,
    Rejection,
    Withdrawal,
)
from meup_agent.protocol.wire.payloads import Acknowledgement, Call, Control, Grant, Revocation
from meup_agent.protocol.wire.streams import COMPLETE, StreamInfo


class InboundState(StrEnum):
    """The state of a request or proposal that we handle."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SETTLED = "settled"


class InboundEvent(StrEnum):
    """The events of a request or proposal that we handle."""

    START = "start"
    RETURNED = "returned"
    RAISED = "raised"
    CANCEL = "cancel"  # a valid cancel, or for a proposal a valid withdraw
    SENDER_LEFT = "sender_left"
    SENDER_ABSENT = "sender_absent"  # the sender has been away for the whole grace period
    REJECTED = "rejected"
    """The handler of a proposal has rejected it: envelopes of others about it matter no more."""
    LOST = "connection_lost"
    SHUTDOWN = "shutdown"
    SHUTDOWN_OVER = "shutdown_over"  # the grace of our own shutdown is over


class InboundAction(StrEnum):
    """The action that a step asks for."""

    START = "start"
    RESPOND = "respond"
    RESPOND_ERROR = "respond_error"
    DROP = "drop"
    CANCEL_SCOPE = "cancel_scope"
    CANCEL_SCOPE_AND_ANSWER = "cancel_scope_and_answer"
    ANSWER_BUSY = "answer_busy"
    BEGIN_GRACE = "begin_grace"
    DISCARD = "discard"
    LOG = "log"
    COUNT_LATE = "count_late"
    KEEP = "keep"
    IGNORE = "ignore"


S = TypeVar("S")
E = TypeVar("E")
A = TypeVar("A")


def _stays(state: S, action: A, *events: E) -> dict[tuple[S, E], tuple[S, A]]:
    """Return the cells of events that leave a state as it is."""
    return {(state, event): (state, action) for event in events}


_I, _IE, _IA = InboundState, InboundEvent, InboundAction

INBOUND: Final[Mapping[tuple[InboundState, InboundEvent], tuple[InboundState, InboundAction]]] = {
    (_I.QUEUED, _IE.START): (_I.RUNNING, _IA.START),
    (_I.QUEUED, _IE.CANCEL): (_I.SETTLED, _IA.DROP),
    **_stays(_I.QUEUED, _IA.KEEP, _IE.SENDER_LEFT, _IE.SENDER_ABSENT, _IE.LOST),
    (_I.QUEUED, _IE.SHUTDOWN): (_I.SETTLED, _IA.ANSWER_BUSY),
    (_I.RUNNING, _IE.RETURNED): (_I.SETTLED, _IA.RESPOND),
    (_I.RUNNING, _IE.RAISED): (_I.SETTLED, _IA.RESPOND_ERROR),
    (_I.RUNNING, _IE.CANCEL): (_I.CANCELLING, _IA.CANCEL_SCOPE),
    (_I.RUNNING, _IE.REJECTED): (_I.SETTLED, _IA.KEEP),
    (_I.RUNNING, _IE.SENDER_LEFT): (_I.RUNNING, _IA.BEGIN_GRACE),
    (_I.RUNNING, _IE.SENDER_ABSENT): (_I.CANCELLING, _IA.CANCEL_SCOPE),
    **_stays(_I.RUNNING, _IA.KEEP, _IE.LOST, _IE.SHUTDOWN),
    (_I.RUNNING, _IE.SHUTDOWN_OVER): (_I.CANCELLING, _IA.CANCEL_SCOPE_AND_ANSWER),
    (_I.CANCELLING, _IE.RETURNED): (_I.SETTLED, _IA.DISCARD),
    (_I.CANCELLING, _IE.RAISED): (_I.SETTLED, _IA.LOG),
    **_stays(
        _I.CANCELLING,
        _IA.IGNORE,
        _IE.CANCEL,
        _IE.REJECTED,
        _IE.SENDER_LEFT,
        _IE.SENDER_ABSENT,
        _IE.LOST,
        _IE.SHUTDOWN,
        _IE.SHUTDOWN_OVER,
    ),
    # Its handler may go on after a rejection.
    (_I.SETTLED, _IE.RETURNED): (_I.SETTLED, _IA.DISCARD),
    (_I.SETTLED, _IE.RAISED): (_I.SETTLED, _IA.LOG),
    (_I.SETTLED, _IE.CANCEL): (_I.SETTLED, _IA.COUNT_LATE),
    **_stays(_I.SETTLED, _IA.KEEP, _IE.REJECTED, _IE.SHUTDOWN, _IE.LOST),
    **_stays(_I.SETTLED, _IA.IGNORE, _IE.SENDER_LEFT, _IE.SENDER_ABSENT),
    (_I.SETTLED, _IE.SHUTDOWN_OVER): (_I.CANCELLING, _IA.CANCEL_SCOPE),
}
"""PROTOCOL 5, first and second table. For a proposal nothing is owed: the answers are rejections,
and only where it was addressed to us."""


class OutboundState(StrEnum):
    """The state of a request or proposal of our own."""

    BLOCKED = "blocked"  # a proposal, which waits for others of ours to be fulfilled
    UNSENT = "unsent"
    WAITING = "waiting"
    GIVEN_UP = "given_up"
    DONE = "done"


class OutboundEvent(StrEnum):
    """The events of a request or proposal of our own."""

    OFFERED = "offered"  # all that it depends on is fulfilled
    SENT = "sent"
    RESPONSE = "response"
    REJECTION = "rejection"
    REFUSAL = "refusal"
    GONE = "gone"
    DEADLINE = "deadline"
    GIVE_UP = "give_up"
    LOST = "connection_lost"
    WELCOME = "welcome"
    STOPPED = "stopped"  # there will be no further connection
    ENDED_BY_SIBLING = "ended_by_sibling"
    """Another process of ours has withdrawn or cancelled it; nothing is left to be said."""


class OutboundAction(StrEnum):
    """The action that a step asks for; ``…_AND_END`` also sends the withdraw or cancel."""

    OFFER = "offer"
    NOTE_SENT = "note_sent"
    DROP = "drop"
    DROP_TIMEOUT = "drop_timeout"
    RESULT = "result"
    REJECTED_AND_END = "rejected_and_end"
    REFUSED = "refused"
    GONE_AND_END = "gone_and_end"
    EXPIRED_AND_END = "expired_and_end"
    END = "end"
    KEEP = "keep"
    NOTE_LOST = "note_lost"
    SEND_AGAIN = "send_again"  # only if it is idempotent
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"
    LATE = "late"
    IGNORE = "ignore"


_O, _OE, _OA = OutboundState, OutboundEvent, OutboundAction

OUTBOUND: Final[
    Mapping[tuple[OutboundState, OutboundEvent], tuple[OutboundState, OutboundAction]]
] = {
    (_O.BLOCKED, _OE.OFFERED): (_O.UNSENT, _OA.OFFER),
    (_O.BLOCKED, _OE.GIVE_UP): (_O.DONE, _OA.DROP),
    **_stays(_O.BLOCKED, _OA.KEEP, _OE.LOST, _OE.WELCOME),
    (_O.BLOCKED, _OE.STOPPED): (_O.DONE, _OA.NOT_SENT),
    (_O.UNSENT, _OE.SENT): (_O.WAITING, _OA.NOTE_SENT),
    (_O.UNSENT, _OE.DEADLINE): (_O.DONE, _OA.DROP_TIMEOUT),
    (_O.UNSENT, _OE.GIVE_UP): (_O.DONE, _OA.DROP),
    **_stays(_O.UNSENT, _OA.KEEP, _OE.LOST, _OE.WELCOME),
    (_O.UNSENT, _OE.STOPPED): (_O.DONE, _OA.NOT_SENT),
    (_O.WAITING, _OE.SENT): (_O.WAITING, _OA.NOTE_SENT),
    (_O.WAITING, _OE.RESPONSE): (_O.DONE, _OA.RESULT),
    (_O.WAITING, _OE.REJECTION): (_O.GIVEN_UP, _OA.REJECTED_AND_END),
    (_O.WAITING, _OE.REFUSAL): (_O.DONE, _OA.REFUSED),
    (_O.WAITING, _OE.GONE): (_O.GIVEN_UP, _OA.GONE_AND_END),
    (_O.WAITING, _OE.DEADLINE): (_O.GIVEN_UP, _OA.EXPIRED_AND_END),
    (_O.WAITING, _OE.GIVE_UP): (_O.GIVEN_UP, _OA.END),
    (_O.WAITING, _OE.LOST): (_O.WAITING, _OA.NOTE_LOST),
    (_O.WAITING, _OE.WELCOME): (_O.WAITING, _OA.SEND_AGAIN),
    (_O.WAITING, _OE.STOPPED): (_O.DONE, _OA.UNKNOWN),
    (_O.WAITING, _OE.ENDED_BY_SIBLING): (_O.GIVEN_UP, _OA.KEEP),
    **_stays(
        _O.GIVEN_UP,
        _OA.IGNORE,
        _OE.SENT,
        _OE.REJECTION,
        _OE.REFUSAL,
        _OE.LOST,
        _OE.WELCOME,
        _OE.STOPPED,
    ),
    (_O.GIVEN_UP, _OE.RESPONSE): (_O.GIVEN_UP, _OA.LATE),
}
"""PROTOCOL 5, third table. Endings are kept and sent again as rule 4.14 asks."""


MAX_UNREAD_FRAMES: Final = 1024
"""Frames that wait for one reader; of a thousand a second, a second's worth."""

MAX_UNREAD_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the same: one frame of the largest size always fits."""

MAX_ALL_UNREAD_BYTES: Final = 64 * 1024 * 1024
"""Bytes that wait for all readers together: streams are opened by strangers, and read by handlers
that are as many."""


class StreamEnd(FrozenStruct):
    """The end of a stream.

    Attributes:
        reason: The reason code: ``complete``, ``cancelled``, ``error``, ``owner_left``, … A code
            from the wire stays as it came.
        by: The participant that ended it, or the gateway.
        text: More words on it, where there are some; a stranger's: escape them for a reader.
    """

    reason: str
    by: str = ""
    text: str = ""

    @property
    def is_complete(self) -> bool:
        """True if its writer had said all."""
        return self.reason == COMPLETE

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}" if self.text else self.reason


class StreamBuffer:
    """Frames of one stream that one reader has not taken.

    Attributes:
        stream: The stream, as it was announced last.
        lost: Frames that this reader, or its connection, was too slow for.
        gaps: Losses of our connection while the stream went on; each may have lost frames unseen.
        end: The end of the stream; frames that came before can still be taken.
        wake: Called on each change; set by the reader.
        size: The bytes that wait.
        readers: The queues of all readers of one handler; itself alone where there is one.
    """

    __slots__ = (
        "_frames",
        "_queues",
        "_unclaimed",
        "end",
        "gaps",
        "lost",
        "readers",
        "size",
        "stream",
        "wake",
    )

    def __init__(self, stream: StreamInfo, queues: StreamBuffers) -> None:
        self.stream = stream
        self.lost = self.gaps = 0
        self.end: StreamEnd | None = None
        self.wake: Callable[[], None] = _nothing
        self.readers: list[StreamBuffer] = [self]
        self._unclaimed: list[StreamBuffer] | None = None
        self._queues = queues
        self._frames: deque[bytes] = deque()
        self.size = 0

    def __len__(self) -> int:
        """The number of frames that wait."""
        return len(self._frames)

    def put(self, data: bytes) -> None:
        """Keep a frame until it is taken, in the place of the oldest ones if there is no room."""
        frames = self._frames
        frames.append(data)
        self.size += len(data)
        self._queues.hold(self, len(data))
        while len(frames) > MAX_UNREAD_FRAMES or self.size > MAX_UNREAD_BYTES:
            self._lose_oldest()
        self._queues.make_room()
        self.wake()

    def take(self) -> bytes | None:
        """The oldest frame; ``None``: none waits."""
        if not self._frames:
            return None
        data = self._frames.popleft()
        self.size -= len(data)
        self._queues.free(self, len(data))
        return data

    def lose_half(self) -> None:
        """Lose the oldest frames, at least half of the bytes."""
        least = self.size // 2
        while self.size > least:
            self._lose_oldest()

    def _lose_oldest(self) -> None:
        if self.take() is not None:
            self.lost += 1

    def finish(self, end: StreamEnd) -> None:
        """Note the end of the stream; the first one counts."""
        if self.end is None:
            self.end = end
            self.wake()

    def close(self) -> None:
        """Take no more frames: its readers have gone."""
        for queue in self.readers:
            self._queues.remove(queue)

    def claim(self, readers: int) -> StreamBuffer:
        """The queue of the next of so many readers, each of which gets every frame."""
        if self._unclaimed is None:
            self.readers += [self._copy() for _ in range(readers - 1)]
            self._unclaimed = list(self.readers)
        return self._unclaimed.pop()

    def _copy(self) -> StreamBuffer:
        copy = StreamBuffer(self.stream, self._queues)
        copy._frames.extend(self._frames)
        copy.size, copy.lost, copy.gaps = self.size, self.lost, self.gaps
        copy.end = self.end
        self._queues.add(copy)
        if copy:
            self._queues.hold(copy, copy.size)
        return copy


class StreamBuffers:
    """The queues of all readers, by stream."""

    def __init__(self) -> None:
        self._by_stream: dict[str, list[StreamBuffer]] = {}
        # Those in which frames wait, of ended streams as well, and their bytes together.
        self._held: dict[StreamBuffer, None] = {}
        self._bytes = 0

    def __len__(self) -> int:
        """The number of queues."""
        return sum(map(len, self._by_stream.values()))

    def open(self, stream: StreamInfo) -> StreamBuffer:
        """Make a queue for one more reader."""
        queue = StreamBuffer(stream, self)
        self.add(queue)
        return queue

    def add(self, queue: StreamBuffer) -> None:
        """Put frames into a queue, too, unless its stream has ended."""
        if queue.end is None:
            self._by_stream.setdefault(queue.stream.id, []).append(queue)

    def remove(self, queue: StreamBuffer) -> None:
        """Put no more frames into a queue, whose reader has gone."""
        if queue in self._held:
            del self._held[queue]
            self._bytes -= queue.size
        queues = self._by_stream.get(queue.stream.id, [])
        if queue in queues:
            queues.remove(queue)
            if not queues:
                del self._by_stream[queue.stream.id]

    def of(self, stream: str) -> list[StreamBuffer]:
        return self._by_stream.get(stream, [])

    def hold(self, queue: StreamBuffer, size: int) -> None:
        """Count the bytes of what a queue has got."""
        self._held[queue] = None
        self._bytes += size

    def free(self, queue: StreamBuffer, size: int) -> None:
        """Count the bytes of what was taken from a queue."""
        if queue in self._held:
            self._bytes -= size
            if not queue:
                del self._held[queue]

    def make_room(self) -> None:
        """Let the fullest queues lose frames until all together are within their limit."""
        while self._bytes > MAX_ALL_UNREAD_BYTES:
            # Half of it, so that a flood does not look for the fullest at each frame.
            max(self._held, key=lambda queue: queue.size).lose_half()

    def finish(self, stream: str, end: StreamEnd) -> None:
        for queue in self._by_stream.pop(stream, ()):
            queue.finish(end)


def _nothing() -> None:
    """Wake no reader: there is none yet."""


class Key(NamedTuple):
    """The name of one exchange of one participant."""

    # ``in``: another participant's, which we handle; ``out``: our own; ``job``: a notice for a
    # handler, which owes no answer.
    side: Literal["in", "out", "job"]
    sender: str  # the participant that began it
    id: str
    # A count, for senders that use an id again while a handler of the first one runs, as some do
    # after a restart.
    again: int = 0


class Priority(IntEnum):
    """The order in which the outbox is emptied; a lower number goes first."""

    END = 0  # withdraws, cancels and rejections: they stop work
    ANSWER = 1
    OPEN = 2  # requests and proposals
    TALK = 3  # progress, chat and all else; may be dropped


class Role(StrEnum):
    """The kinds of events that a handler is started for."""

    REQUEST = "request"
    PROPOSAL = "proposal"
    REJECT = "reject"
    WITHDRAW = "withdraw"
    EXPLANATION = "explanation"
    EXPIRE = "expire"
    CONFLICT = "conflict"
    CHAT = "chat"
    ACKNOWLEDGE = "acknowledge"
    JOIN = "join"
    LEAVE = "leave"
    GAP = "gap"
    GRANT = "grant"
    REVOKE = "revoke"
    PAUSE = "pause"
    RESUME = "resume"
    STATUS_REQUEST = "status_request"
    STATUS = "status"
    FORGET = "forget"
    COMPACT = "compact"
    COMPACT_DONE = "compact_done"
    CLEAR = "clear"
    RESTART = "restart"
    SHUTDOWN = "shutdown"
    STREAM = "stream"
    KIND = "kind"


CONTROL_ROLES: Final = frozenset(
    {
        Role.PAUSE,
        Role.RESUME,
        Role.STATUS_REQUEST,
        Role.FORGET,
        Role.COMPACT,
        Role.CLEAR,
        Role.RESTART,
        Role.SHUTDOWN,
    }
)
"""The roles of control messages, whose handlers begin before all others, also in a pause."""


class Conflict(FrozenStruct):
    """A result for a proposal that we had given up (PROTOCOL 4.13), or a copied proposal id.

    Attributes:
        proposal_id: The proposal.
        outcome: The outcome that the late answer tells; ``None``: nothing came late.
        after: The end of our own wait before it; ``None``: it is about a copied id.
        copied_by: The participant that proposed something under the id of another participant's
            proposal; empty: none did. No handler sees that proposal, and a request that names the
            id has to say whose it means.
        proposer: The participant whose proposal had the id first, where it was copied.
    """

    proposal_id: str
    outcome: Fulfillment | None = None
    after: Ending | None = None
    copied_by: str = ""
    proposer: str = ""


class Gap(FrozenStruct):
    """An absence of ours of which the gateway no longer has every envelope.

    Attributes:
        since: The time at which we had read the last envelope before, in UTC; ``None``: there is
            no clock.
        seconds: The time from then until we were welcomed back.
        seq: The number of that envelope.
    """

    since: datetime | None
    seconds: float
    seq: int


Subject = (
    Rejection
    | Withdrawal
    | Expiry
    | Explanation
    | Conflict
    | Gap
    | Grant
    | Revocation
    | Acknowledgement
    | Control
    | StreamBuffer
    | None
)


class Work(FrozenStruct):
    """The input of a handler."""

    role: Role
    envelope: Envelope
    subject: Subject = None  # the record that the role adds to that
    call: Call | None = None  # the call in it, of a request or a proposal
    # The handler that was found for it, as its finder knows it; handed on unread.
    handler: object = None


class CaughtUp(FrozenStruct):
    """The replay of missed envelopes is over; what the gateway did not take is sent again."""

    missed: int
    seconds: float  # the time for which we were away
    gap: Gap | None  # the part that was not replayed; ``None``: nothing is missing


class Send(FrozenStruct):
    """Put an envelope of ours into the outbox."""

    draft: Envelope
    priority: Priority
    again: bool = False  # it was sent before, under the same id


class Unsend(FrozenStruct):
    """Take an envelope of ours out of the outbox: it has not left, or need not be sent again."""

    id: str


class Start(FrozenStruct):
    """Start the handler of an exchange."""

    key: Key
    work: Work


class Cancel(FrozenStruct):
    """End the scope of a handler that runs."""

    key: Key
    cause: Cause


class Wake(FrozenStruct):
    """Wake the caller that waits for an exchange of ours, with its ending."""

    key: Key
    ending: Ending


class Progressed(FrozenStruct):
    """Progress of an exchange of ours."""

    key: Key
    done: float
    total: float | None
    message: str


class Drop(FrozenStruct):
    """Count, and log, an envelope that was left out."""

    why: str  # a short code, the counter's name
    envelope: Envelope
    expected: bool = False  # it happens among correct participants, and needs no line in the log


class Leave(FrozenStruct):
    """Leave the space: a participant has shut us down, and nothing runs any more."""

    by: str
    reason: str
    id: str  # of the envelope that asked for it


Effect = Leave | Send | Unsend | Start | Cancel | Wake | Progressed | Drop | CaughtUp
