"""Writes what happens to an agent to a log, each event a record with its values as fields."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, cast

from meup_agent.protocol.reasons import Cause
from meup_agent.session.events import (
    Dropped,
    Event,
    HandlerFailed,
    HandlerStopped,
    Resumed,
    Retrying,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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
        values = {each.name: getattr(event, each.name) for each in fields(event)}
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
    """The value for people: strangers' words are among them, so what is no number is escaped."""
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
