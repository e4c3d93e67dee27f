"""Signals that end a command, and its exit code then."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio
import typer

from meup_agent.cli import exit_codes
from meup_agent.transport.loops import background_tasks

if TYPE_CHECKING:
    from types import FrameType

    from anyio.abc import TaskGroup, TaskStatus

    from meup_agent.cli.render.output import Output

_HANGUP = (signal.SIGHUP,) if sys.platform != "win32" else ()
STOPPING: Final = (signal.SIGINT, signal.SIGTERM)  # signals that end a command that only observes

ENDING: Final = (*STOPPING, *_HANGUP)
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
    act: Callable[[TaskGroup], Awaitable[int]], numbers: Iterable[signal.Signals], output: Output
) -> None:
    """Run a command until it is done, or a signal cancels it, and exit with its code.

    Its background tasks go into the task group, and end with it.
    """
    code = anyio.run(_until_signal, act, numbers, output)
    if code:
        raise typer.Exit(code)


async def _until_signal(
    act: Callable[[TaskGroup], Awaitable[int]], numbers: Iterable[signal.Signals], output: Output
) -> int:
    # Not with the module: what shows a space is none of a gateway's, and takes 80 ms to load.
    from meup_agent.cli.render.output import OutputClosed

    code = exit_codes.OK

    async def run(tasks: TaskGroup) -> None:
        nonlocal code
        code = await act(tasks)

    try:
        number = await until_signal(run, numbers)
    except OutputClosed:
        output.abandon()
    else:
        code = code if number is None else exit_code(number)
    return code


async def until_signal(
    act: Callable[[TaskGroup], Awaitable[None]], numbers: Iterable[signal.Signals]
) -> int | None:
    """Do some work until it is done, or a signal cancels it; the signal."""
    received: int | None = None

    def end(number: int) -> None:
        nonlocal received
        received = number
        tasks.cancel_scope.cancel()

    async with background_tasks() as tasks:
        await tasks.start(watch_signals, numbers, end)
        await act(tasks)
    return received


@contextmanager
def end_by_signals() -> Generator[None]:
    """Let the signals that kill a process raise in it, until a loop takes them: its blocks end."""
    numbers = (signal.SIGTERM, signal.SIGHUP) if sys.platform != "win32" else (signal.SIGTERM,)
    before = {number: signal.signal(number, _raise_exit) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(exit_codes.TERMINATED)


def exit_code(number: int) -> int:
    """The exit code of a command that a signal ended."""
    return exit_codes.INTERRUPTED if number == signal.SIGINT else exit_codes.TERMINATED


def ended_by(number: int) -> str:
    """The effect of a signal on a command, in a word."""
    return "interrupted" if number == signal.SIGINT else "terminated"
