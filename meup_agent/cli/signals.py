"""The signals that end a command, and how it says so."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.cli import exit_codes

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

_HANGUP = (signal.SIGHUP,) if sys.platform != "win32" else ()

STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
"""The signals that end whatever only looks on."""

ENDING: Final = (*STOPPING, *_HANGUP)
"""The signals that end what does something: a terminal that is closed must leave nothing behind."""


async def watch_signals(
    numbers: Iterable[signal.Signals],
    told: Callable[[int], None],
    *,
    task_status: TaskStatus[None],
) -> None:
    """Tell of each signal that comes, until it is cancelled; started, none is missed any more."""
    with anyio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for number in signals:
            told(number)


def exit_code(number: int) -> int:
    """The exit code of a command that a signal ended."""
    return exit_codes.INTERRUPTED if number == signal.SIGINT else exit_codes.TERMINATED


def ended_by(number: int) -> str:
    """What a signal did to a command, in a word."""
    return "interrupted" if number == signal.SIGINT else "terminated"
