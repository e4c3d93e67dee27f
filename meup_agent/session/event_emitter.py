"""Tells observers what happens in one space, in the order in which it happens."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import anyio

from meup_agent.causes import Reason
from meup_agent.errors import SessionEnded, UsageError, printable
from meup_agent.events import (
    Connected,
    Disconnected,
    Event,
    ExchangeBegan,
    ExchangeEnded,
    Left,
)
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.outcomes import (
    Expiry,
    Fulfillment,
    GatewayRefused,
    Gone,
    LostRace,
    Rejection,
    Responded,
    Unknown,
    Unsent,
    Unwanted,
    Withdrawal,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from meup_agent.events import Observer, OutcomeName
    from meup_agent.protocol.exchange import Key
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.outcomes import Ending
    from meup_agent.transport.base import CloseInfo

log = logging.getLogger("meup_agent.session")


class Happening(TypedDict):
    """The fields of every event."""

    space: str
    me: str
    at: float


class EventEmitter:
    """Hands the events of one space to its observers; more may come at any time.

    On a road that many envelopes take, look at :attr:`observers` before calling: mostly there are
    none.
    """

    def __init__(self, observers: Sequence[Observer] = (), space: str = "") -> None:
        self.observers = observers
        self.space = space
        self._me = ""
        self._connected = False
        self._untold: deque[Event] = deque()
        self._telling = False

    def emit(self, event: Event) -> None:
        """Call each observer; an event that an observer causes is told afterwards."""
        self._untold.append(event)
        if self._telling:
            return
        self._telling = True
        try:
            while self._untold:
                self._call_observers(self._untold.popleft())
        finally:
            self._telling = False

    def _call_observers(self, event: Event) -> None:
        for observer in tuple(self.observers):
            try:
                observer(event)
            except Exception:  # a person's code, which is to disturb nothing
                log.exception("an observer failed at %s: %r", type(event).__name__, observer)

    def event_fields(self) -> Happening:
        return {"space": self.space, "me": self._me, "at": anyio.current_time()}

    # --- the connection ---

    def connected(self, me: str, where: str, dialect: str) -> None:
        """The gateway has welcomed us."""
        again, self._me, self._connected = bool(self._me), me, True
        if self.observers:
            self.emit(
                Connected(**self.event_fields(), where=where, dialect=dialect, reconnect=again)
            )

    def disconnected(self, closed: CloseInfo | None) -> None:
        """A connection has ended; one that did not welcome us is only tried again."""
        was_connected, self._connected = self._connected, False
        if was_connected and self.observers:
            code, reason = (closed.code, printable(closed.reason)) if closed else (None, "")
            self.emit(Disconnected(**self.event_fields(), code=code, reason=reason))

    def left(self, why: str) -> None:
        """Our presence is over."""
        if self._me and self.observers:
            self.emit(Left(**self.event_fields(), why=why))

    # --- what we began, and what was left out ---

    def began(self, opening: Envelope, parent: Key | None) -> None:
        """A request or a proposal of ours."""
        call = payloads.read_call(opening.payload)
        self.emit(
            ExchangeBegan(
                **self.event_fields(),
                exchange=opening.id,
                kind=opening.kind,
                method=call.method,
                tool=call.name,
                to=opening.to,
                parent="" if parent is None else parent.id,
            )
        )

    def ended(self, key: Key, kind: str, ending: Ending, seconds: float) -> None:
        """The wait for it is over."""
        said = _said(ending)
        self.emit(
            ExchangeEnded(
                **self.event_fields(),
                exchange=key.id,
                kind=kind,
                outcome=said.outcome,
                by=said.by,
                reason=said.reason,
                is_error=said.is_error,
                cause=ending.cause if isinstance(ending, Withdrawal) else None,
                seconds=seconds,
            )
        )


class _Said(NamedTuple):
    outcome: OutcomeName
    by: str = ""
    reason: str = ""
    is_error: bool = False


def _said(ending: Ending) -> _Said:
    match ending:
        case Responded():
            return _Said("answered", ending.by, is_error=ending.is_error)
        case Fulfillment():
            return _Said("fulfilled", ending.by, is_error=ending.is_error)
        case Rejection():
            return _Said("rejected", ending.by, ending.reason)
        case Withdrawal():
            return _Said("withdrawn", ending.cause.by, str(ending.cause))
        case Expiry():
            return _Said("expired" if ending.sent else "not_sent", reason=Reason.TIMEOUT)
        case Gone():
            return _Said("gone", reason=", ".join(ending.participants) or str(ending))
        case GatewayRefused():
            return _Said("refused", reason=ending.error)
        case LostRace():
            return _Said("overtaken", ending.by)
        case Unsent():
            return _Said("not_sent", reason=ending.why)
        case Unwanted():
            return _Said("not_sent", reason=str(ending.error))
        case Unknown():
            return _Said("unknown", reason=ending.why)


@asynccontextmanager
async def observed(
    observers: Sequence[Observer], space: str | None
) -> AsyncGenerator[EventEmitter]:
    """The events of one presence in a space; at the block's end it is over."""
    events = EventEmitter(observers, space or "")
    why = "we have left the space"
    try:
        yield events
    except SessionEnded as error:
        why = str(error)
        raise
    finally:
        events.left(why)


def check_observer(observer: object) -> None:
    """Raise :exc:`UsageError` if an object cannot be told of events."""
    if not callable(observer):
        raise UsageError(f"an observer is called with each event, and {observer!r} cannot be")
    if any(map(inspect.iscoroutinefunction, (observer, type(observer).__call__))):
        raise UsageError(
            f"the observer {observer!r} is async, and would never be awaited; "
            "make it a plain function that returns at once"
        )
