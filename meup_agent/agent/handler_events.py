"""Events of handlers: started, asked to stop, ended, with the reason and the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from meup_agent.agent.scope import is_failure, without_cancellations
from meup_agent.events import (
    HandlerEvent,
    HandlerFailed,
    HandlerFinished,
    HandlerStarted,
    HandlerStopped,
    HandlerStopping,
)

if TYPE_CHECKING:
    from meup_agent.causes import Cause
    from meup_agent.protocol.exchange import Key, Work
    from meup_agent.session.event_emitter import EventEmitter


@dataclass(slots=True)
class _Begun:
    which: dict[str, str]
    since: float
    failure: BaseException | None = None
    returned: bool = False
    left_behind: bool = False


class HandlerMonitor:
    """Follows each handler from its start to its end, where the agent is observed."""

    def __init__(self, events: EventEmitter) -> None:
        self._events = events
        self.begun: dict[Key, _Begun] = {}

    def started(self, key: Key, work: Work, handler: str) -> None:
        """Follow a handler that begins."""
        fields = self._events.event_fields()
        which = {
            "role": str(work.role),
            "handler": handler,
            "exchange": work.envelope.id,
            "sender": work.envelope.sender,
        }
        self.begun[key] = _Begun(which, fields["at"])
        self._events.emit(HandlerStarted(**fields, **which))

    def asked_to_stop(self, key: Key, cause: Cause) -> None:
        """Report that it was asked to stop."""
        begun = self.begun.get(key)
        if begun is not None:
            self._events.emit(
                HandlerStopping(**self._events.event_fields(), **begun.which, cause=cause)
            )

    def returned(self, key: Key) -> None:
        """Note that its function has returned."""
        begun = self.begun.get(key)
        if begun is not None:
            begun.returned = True

    def raised(self, key: Key, error: BaseException) -> None:
        """Note what it raised; of several functions for one message, another may have raised."""
        begun = self.begun.get(key)
        failure = without_cancellations(error)
        if begun is None or failure is None:
            return
        if begun.failure is not None:
            failure = BaseExceptionGroup("several handlers failed", [begun.failure, failure])
        begun.failure = failure

    def left_behind(self, key: Key) -> None:
        """Note that its thread is waited for no longer."""
        begun = self.begun.get(key)
        if begun is not None:
            begun.left_behind = True

    def ended(self, key: Key, cause: Cause | None) -> None:
        """Report its end, cancelled or not."""
        begun = self.begun.pop(key, None)
        if begun is None:
            return
        fields = self._events.event_fields()
        seconds, failure = fields["at"] - begun.since, begun.failure
        if cause is not None:
            own = failure if failure is not None and is_failure(failure) else None
            outcome = _outcome(begun, own)
            told: HandlerEvent = HandlerStopped(
                **fields, **begun.which, seconds=seconds, cause=cause, outcome=outcome, error=own
            )
        elif failure is not None:
            told = HandlerFailed(**fields, **begun.which, seconds=seconds, error=failure)
        else:
            told = HandlerFinished(**fields, **begun.which, seconds=seconds)
        self._events.emit(told)


def _outcome(
    begun: _Begun, failure: BaseException | None
) -> Literal["stopped", "completed", "unknown"]:
    """The outcome of a handler that was asked to stop, as far as it is known (PROTOCOL 5)."""
    if failure is not None or begun.left_behind:
        return "unknown"
    return "completed" if begun.returned else "stopped"
