"""Observers of an agent: events of its handlers, and what counts or logs them."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from meup_agent.agent.context import is_failure, without_cancellations
from meup_agent.causes import Cause
from meup_agent.events import (
    Connected,
    Disconnected,
    Dropped,
    Event,
    ExchangeBegan,
    ExchangeEnded,
    HandlerEvent,
    HandlerFailed,
    HandlerFinished,
    HandlerStarted,
    HandlerStopped,
    HandlerStopping,
    Resumed,
    Retrying,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.protocol.exchange import Key, Work
    from meup_agent.session.event_emitter import EventEmitter


# --- events of handlers ---
# Started, asked to stop, ended, with the reason and the outcome.


class BegunHandler(msgspec.Struct):
    """A handler that runs.

    Attributes:
        which: The fields of its events.
        since: When it began.
        failure: What it has raised.
        returned: Its function has returned.
        left_behind: Its thread is waited for no longer.
    """

    which: dict[str, str]
    since: float
    failure: BaseException | None = None
    returned: bool = False
    left_behind: bool = False


class HandlerMonitor:
    """Follows each handler from its start to its end, where the agent is observed."""

    def __init__(self, events: EventEmitter) -> None:
        self._events = events
        self.begun: dict[Key, BegunHandler] = {}

    def started(self, key: Key, work: Work, handler: str) -> None:
        """Follow a handler that begins."""
        fields = self._events.event_fields()
        which = {
            "role": str(work.role),
            "handler": handler,
            "exchange": work.envelope.id,
            "sender": work.envelope.sender,
        }
        self.begun[key] = BegunHandler(which, fields["at"])
        self._events.emit(HandlerStarted(**fields, **which))

    def asked_to_stop(self, key: Key, cause: Cause) -> None:
        """Report that it was asked to stop."""
        begun = self.begun.get(key)
        if begun is not None:
            self._events.emit(
                HandlerStopping(**self._events.event_fields(), **begun.which, cause=cause)
            )

    def raised(self, key: Key, error: BaseException) -> None:
        """Note what it raised; of several functions for one message, another may have raised."""
        begun = self.begun.get(key)
        failure = without_cancellations(error)
        if begun is None or failure is None:
            return
        if begun.failure is not None:
            failure = BaseExceptionGroup("several handlers failed", [begun.failure, failure])
        begun.failure = failure

    def ended(self, key: Key, cause: Cause | None) -> None:
        """Report its end, cancelled or not."""
        begun = self.begun.pop(key, None)
        if begun is None:
            return
        fields = self._events.event_fields()
        seconds, failure = fields["at"] - begun.since, begun.failure
        if cause is not None:
            own = failure if failure is not None and is_failure(failure) else None
            # As far as it is known (PROTOCOL 5).
            outcome: Literal["stopped", "completed", "unknown"] = "unknown"
            if own is None and not begun.left_behind:
                outcome = "completed" if begun.returned else "stopped"
            told: HandlerEvent = HandlerStopped(
                **fields, **begun.which, seconds=seconds, cause=cause, outcome=outcome, error=own
            )
        elif failure is not None:
            told = HandlerFailed(**fields, **begun.which, seconds=seconds, error=failure)
        else:
            told = HandlerFinished(**fields, **begun.which, seconds=seconds)
        self._events.emit(told)


# --- observers that come with the package ---

_TOTALS: Final[dict[type[Event], str]] = {
    ExchangeBegan: "exchanges",
    Connected: "connected",
    Disconnected: "disconnected",
    Resumed: "resumed",
    Retrying: "retries",
}
_STEPS: Final[dict[type[Event], str]] = {
    HandlerStarted: "started",
    HandlerFinished: "finished",
    HandlerFailed: "failed",
    HandlerStopped: "stopped",
}


class Counters:
    """Counts an agent's events: ``agent.observe(counters)``.

    The names that it counts under are few, whatever participants send: handlers of the agent's
    own, codes of drops, names of endings. So the counts may go to any system of metrics.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._handlers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._dropped: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            if (total := _TOTALS.get(type(event))) is not None:
                self._totals[total] += 1
            if isinstance(event, HandlerEvent) and (step := _STEPS.get(type(event))) is not None:
                self._handlers[event.handler][step] += 1
                self._seconds[event.handler] += getattr(event, "seconds", 0.0)
            match event:
                case ExchangeEnded():
                    self._outcomes[event.outcome] += 1
                case Dropped():
                    self._dropped[event.why] += 1
                case Connected():
                    self._totals["reconnected"] += event.reconnect
                case Resumed():
                    self._totals["gaps"] += event.gap
                case _:
                    pass

    def snapshot(self) -> dict[str, Any]:
        """The counts at this moment; may be asked for from any thread.

        Returns:
            ``handlers`` (by name: ``started``, ``finished``, ``failed``, ``stopped``, ``running``,
            ``seconds``), ``dropped`` (by code), ``exchanges`` and ``outcomes`` of our own (by
            name, for example ``rejected``), ``connected``, ``disconnected``, ``reconnected``,
            ``resumed`` (what was missed has been read), ``gaps`` (not all of it could be) and
            ``retries``; a dictionary of its own, of plain values.
        """
        with self._lock:
            return {
                "handlers": {
                    name: {
                        **{step: steps[step] for step in _STEPS.values()},
                        # An observer that came later has not seen the start of everything.
                        "running": max(
                            steps["started"]
                            - (steps["finished"] + steps["failed"] + steps["stopped"]),
                            0,
                        ),
                        "seconds": self._seconds[name],
                    }
                    for name, steps in self._handlers.items()
                },
                "dropped": dict(self._dropped),
                "outcomes": dict(self._outcomes),
                **{name: self._totals[name] for name in (*_TOTALS.values(), "reconnected", "gaps")},
            }


PREFIX: Final = "meup_"
"""Of the fields of a record: none has a name that logging uses itself."""

MAX_VALUE_CHARS: Final = 200
"""Characters of one value in the text of a record; its field has all of them."""


def log_events(
    logger: logging.Logger | None = None, level: int = logging.INFO
) -> Callable[[Event], None]:
    """An observer that logs every event: ``agent.observe(log_events())``.

    The text of a record is the event's name with its values. For programs to read, each value is
    a field of the record, too (``logging``'s ``extra``): ``meup_event`` is the event's name,
    ``meup_exchange``, ``meup_handler``, ``meup_seconds`` … are its attributes, those that JSON has
    no form for as text. A cause is one object with its whole chain.

    Failures, gaps, and drops that correct participants do not cause are warnings, whatever the
    level. The package's own log lines stay as they are.

    Args:
        logger: Where to; else ``meup_agent.events``.
        level: Level of everything else.
    """
    to = logger or logging.getLogger("meup_agent.events")

    def log_event(event: Event) -> None:
        severity = max(level, logging.WARNING) if _is_warning(event) else level
        if not to.isEnabledFor(severity):
            return
        values = msgspec.structs.asdict(event)
        extra = {PREFIX + name: _plain(value) for name, value in values.items()}
        name = type(event).__name__
        shown = " ".join(
            f"{name}={_text(value)}"
            for name, value in values.items()
            if name != "at" and value not in (None, "", ())
        )
        to.log(severity, "%s %s", name, shown, extra={f"{PREFIX}event": name, **extra})

    return log_event


def _is_warning(event: Event) -> bool:
    match event:
        case HandlerFailed():
            return True
        case HandlerStopped():
            return event.error is not None
        case Dropped():
            return not event.expected
        case Resumed():
            return event.gap
        case Retrying():
            return event.error is not None
        case _:
            return False


def _text(value: object) -> str:
    """The value for people, escaped unless it is a number: participants' words are among them."""
    match value:
        case float():
            return f"{value:.3f}"
        case Cause():
            return f"{str(value)[:MAX_VALUE_CHARS]!r} by {value.by!r}"
        case _:
            return repr(_plain(value))[:MAX_VALUE_CHARS]


def _plain(value: object) -> Any:
    """The value, or a form of it that JSON can write."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return str(value)
        case tuple():
            return [_plain(each) for each in cast("tuple[object, ...]", value)]
        case Cause():
            return {
                "code": str(value.code),
                "by": value.by,
                "text": value.text,
                "exchange": value.id,
                "chain": [link.to_wire() for link in value.chain],
            }
        case BaseException():
            return f"{type(value).__name__}: {value}"
        case _:
            return type(value).__name__
