"""The lifecycles of exchanges: the three tables of PROTOCOL 5.

A table maps a state and an event to the next state and what is to be done about it. A pair that a
table does not have is an illegal step: it raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar


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
