"""Events of a participant, as records for its observers.

Without an observer no record is made. Events tie together by ids: the handler
of an exchange and what it began name each other by ``exchange`` and ``parent``, and the cause of a
cancellation has the chain that it came along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from meup_agent.causes import Cause


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened.

    Attributes:
        space: The space's name, as the program gave it; empty where it gave none.
        me: Our own name there; empty before the first welcome.
        at: When: seconds of the event loop's clock.
    """

    space: str
    me: str
    at: float


Observer = Callable[[Event], object]
"""Called with each event, on the loop's thread: it must return at once; its errors are logged."""


# --- the connection ---


class Connected(Event, frozen=True, kw_only=True):
    """The gateway has welcomed us.

    Attributes:
        where: The gateway's address.
        dialect: The dialect of its welcome.
        reconnect: We have been in the space before.
    """

    where: str
    dialect: str
    reconnect: bool


class Resumed(Event, frozen=True, kw_only=True):
    """We are back, and have read what was said while we were away.

    Only on gateways that resume (``space.gateway.guarantees.resume``); it follows
    :class:`Connected`.

    Attributes:
        missed: Envelopes that came for it.
        gap: Some of it the gateway does not know any more; ``on_gap`` handlers are told as well.
        seconds: How long before our welcome we had read the last envelope.
    """

    missed: int
    gap: bool
    seconds: float


class Disconnected(Event, frozen=True, kw_only=True):
    """A connection that had welcomed us has ended.

    Attributes:
        code: The WebSocket close code, 1006 where there was none; ``None``: we have left.
        reason: The closing side's words, safe to print.
    """

    code: int | None
    reason: str


class Retrying(Event, frozen=True, kw_only=True):
    """A connection was lost, or could not be made, and there will be another attempt.

    Attributes:
        delay: Seconds until then.
        error: Why, where it is known.
    """

    delay: float
    error: BaseException | None


class Left(Event, frozen=True, kw_only=True):
    """Our presence in the space is over; the last event of a space that had welcomed us.

    Attributes:
        why: A sentence.
    """

    why: str


# --- what others began ---


class HandlerEvent(Event, frozen=True, kw_only=True):
    """Something about a handler that runs.

    Attributes:
        role: The handler's role: ``request``, ``proposal``, ``chat`` …
        handler: The tool, the function's qualified name, or an MCP method that every agent
            answers; one of a small number of names, whatever strangers ask for. Several functions
            that are told of the same are one handler, named after all of them.
        exchange: The id of the envelope that it handles; of a request or proposal, the exchange's.
        sender: The sender of that envelope.
    """

    role: str
    handler: str
    exchange: str
    sender: str


class HandlerStarted(HandlerEvent, frozen=True, kw_only=True):
    """A handler begins; exactly one of finished, failed and stopped follows."""


class HandlerFinished(HandlerEvent, frozen=True, kw_only=True):
    """A handler has ended well.

    Attributes:
        seconds: How long it ran.
    """

    seconds: float


class HandlerFailed(HandlerEvent, frozen=True, kw_only=True):
    """A handler raised, or was not even called because the arguments did not fit.

    Attributes:
        seconds: How long it ran.
        error: The exception that it raised. A :class:`~meup_agent.errors.RequestError` is an
            answer, not a defect.
    """

    seconds: float
    error: BaseException


class HandlerStopping(HandlerEvent, frozen=True, kw_only=True):
    """A handler was asked to stop: a withdrawal, a cancellation, or our own end.

    Attributes:
        cause: Why, by whom, and the chain that it came along.
    """

    cause: Cause


class HandlerStopped(HandlerEvent, frozen=True, kw_only=True):
    """A handler that was asked to stop has ended; its requester gets no result.

    Attributes:
        seconds: How long it ran.
        cause: Why it was asked to.
        outcome: Its work by then: ``stopped`` on its way, ``completed`` all the same, or
            ``unknown``, where it raised something of its own or its thread was left behind.
        error: The exception that it raised of its own; ``None`` where it did not.
    """

    seconds: float
    cause: Cause
    outcome: Literal["stopped", "completed", "unknown"]
    error: BaseException | None


# --- what we began ---

OutcomeName = Literal[
    "answered",
    "fulfilled",
    "rejected",
    "withdrawn",  # or cancelled, of a request
    "expired",
    "gone",
    "refused",
    "overtaken",
    "not_sent",
    "unknown",
]
"""Ends of an exchange of our own; ``overtaken``: another participant's fulfillment came first."""


class ExchangeBegan(Event, frozen=True, kw_only=True):
    """A request or a proposal of ours.

    Attributes:
        exchange: Its id.
        kind: ``mcp/request`` or ``mcp/proposal``.
        method: The MCP method.
        tool: The tool's name; empty for other methods.
        to: The addressees; empty: every member.
        parent: The exchange whose handler it is part of; empty outside of handlers.
    """

    exchange: str
    kind: str
    method: str
    tool: str
    to: tuple[str, ...]
    parent: str


class ExchangeEnded(Event, frozen=True, kw_only=True):
    """The wait for a request or a proposal of ours is over.

    Attributes:
        exchange: Its id.
        kind: ``mcp/request`` or ``mcp/proposal``.
        outcome: How it ended.
        by: The participant that ended it: answered, rejected or gave it up; may be empty.
        reason: A reason code, or words, where it has no result.
        is_error: It was answered or fulfilled with an error.
        cause: Why we gave it up, with the chain that it came along; ``None`` where we did not.
        seconds: How long it was waited for.
    """

    exchange: str
    kind: str
    outcome: OutcomeName
    by: str
    reason: str
    is_error: bool
    cause: Cause | None
    seconds: float


class Dropped(Event, frozen=True, kw_only=True):
    """An envelope was left out; ``overflow`` and ``shutdown`` were answered ``busy``, if owed.

    Attributes:
        why: A short code, for example ``cancel_by_another``.
        envelope_id: The envelope's id, where it could be read.
        kind: Its kind, likewise.
        sender: Its sender, likewise.
        expected: It happens among correct participants.
    """

    why: str
    envelope_id: str
    kind: str
    sender: str
    expected: bool
