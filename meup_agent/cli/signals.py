"""Signals that end a command, and its exit code then."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

import anyio
import typer

from meup_agent.cli import exit_codes
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from anyio.abc import TaskGroup, TaskStatus

HANGUP: Final = (signal.SIGHUP,) if sys.platform != "win32" else ()
STOPPING: Final = (signal.SIGINT, signal.SIGTERM)  # signals that end a command that only observes

ENDING: Final = (*STOPPING, *HANGUP)
"""Signals that end a command that acts: a terminal that is closed must leave nothing behind."""


async def watch_signals(
    numbers: Iterable[signal.Signals],
    callback: Callable[[int], None],
    *,
    task_status: TaskStatus[None],
) -> None:
    """Pass each signal on, until cancelled; once started, none is missed."""
    with anyio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for number in signals:
            callback(number)


def run_until_signal(
    act: Callable[[TaskGroup], Awaitable[int | None]], numbers: Iterable[signal.Signals]
) -> None:
    """Run a command until it is done, or a signal cancels it, and exit with its code.

    Its background tasks go into the task group, and end with it.
    """
    code = anyio.run(until_signal, act, numbers)
    if code:
        raise typer.Exit(code)


async def until_signal(
    act: Callable[[TaskGroup], Awaitable[int | None]], numbers: Iterable[signal.Signals]
) -> int:
    """Do some work until it is done, or a signal cancels it; its exit code."""
    code = exit_codes.OK

    def end(number: int) -> None:
        nonlocal code
        code = exit_code(number)
        tasks.cancel_scope.cancel()

    async with background_tasks() as tasks:
        await tasks.start(watch_signals, numbers, end)
        done = await act(tasks)
        code = code or done or exit_codes.OK
    return code


@contextmanager
def end_by_signals() -> Generator[None]:
    """Let the signals that kill a process raise in it, until a loop takes them: its blocks end."""
    before = {number: signal.signal(number, _raise_exit) for number in (signal.SIGTERM, *HANGUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(exit_codes.TERMINATED)


def exit_code(number: int) -> int:
    return exit_codes.INTERRUPTED if number == signal.SIGINT else exit_codes.TERMINATED


def ended_by(number: int) -> str:
    """The effect of a signal on a command, in a word."""
    return "interrupted" if number == signal.SIGINT else "terminated"
