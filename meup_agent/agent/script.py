"""Scripts: an agent runs until a signal stops it, in two phases."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Literal, NoReturn

import anyio

from meup_agent.agent.scope import abandoned
from meup_agent.errors import MeupError, RemoteShutdown, UsageError
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import Generator

    from anyio.abc import TaskStatus

log = logging.getLogger("meup_agent.agent")

Backend = Literal["asyncio", "trio"]

Join = Callable[[anyio.Event], AbstractAsyncContextManager[object]]
"""Joins a space for the length of a block; the event cuts the grace at its end short."""

INTERRUPTED: Final = 130
"""The exit code of a program that SIGINT has ended, as shells have it."""

TASK_PREFIX: Final = "meup script:"
"""Prefix of the names of this module's own tasks."""

NO_HANDLER_PREFIXES: Final = ("meup", "end of ", "<")
"""Prefixes of the names of tasks that are not handlers: ours, their watchers', the loop's."""

LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(message)s"


def run_script(
    join: Join,
    *,
    grace: float,
    patience: float,
    backend: Backend = "asyncio",
    log_level: str | None = "INFO",
) -> None:
    """Be in a space until SIGINT or SIGTERM.

    After the first signal nothing new is begun and what runs gets its grace; the second cancels at
    once; the third, or so much patience, leaves without those that do not end although they were
    cancelled. Errors leave as a :exc:`SystemExit` with one sentence.
    """
    if log_level is not None:
        logging.basicConfig(level=log_level, format=LOG_FORMAT)
    uses_uvloop = backend == "asyncio" and importlib.util.find_spec("uvloop") is not None
    try:
        anyio.run(
            _until_stopped,
            join,
            grace,
            patience,
            backend=backend,
            backend_options={"use_uvloop": True} if uses_uvloop else {},
        )
    except RemoteShutdown as end:
        log.info("%s", end)
    except MeupError as error:
        sentence = f"meup: {error}"
        _leave_if_held(1, sentence)
        raise SystemExit(sentence) from None
    except KeyboardInterrupt:
        # It came before we listened for it.
        raise SystemExit(INTERRUPTED) from None
    _leave_if_held(0)


def _leave_if_held(code: int, sentence: str = "") -> None:
    """End the process here and now if threads that were abandoned would keep it."""
    held_by = [thread for thread in abandoned if thread.is_alive() and not thread.daemon]
    if not held_by:
        return
    log.warning("leaving although %d of its worker threads still run", len(held_by))
    if sentence:
        sys.stderr.write(f"{sentence}\n")
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process here and now."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _until_stopped(join: Join, grace: float, patience: float) -> None:
    """Join until a signal asks to stop: a grace first, then at once, then without waiting."""
    asked, hurry, ending = anyio.Event(), anyio.Event(), anyio.Event()
    connecting = anyio.CancelScope()
    joined = False
    main = anyio.get_current_task().id

    async def listen(*, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if hurry.is_set():
                    leave_others()
                if asked.is_set():
                    log.info("stopping at once")
                    hurry.set()
                    continue
                asked.set()
                if joined:
                    log.info("stopping: running handlers may finish; Ctrl-C again cancels them")
                else:
                    connecting.cancel()

    async def leave_in_the_end() -> None:
        """Wait no longer for handlers that shield themselves, or swallow their cancellation."""
        await ending.wait()
        with anyio.move_on_after(grace):
            await hurry.wait()
        await anyio.sleep(patience)
        leave_others()

    def leave_others() -> NoReturn:
        others = [
            task.name or "a task"
            for task in anyio.get_running_tasks()
            if task.id != main and not (task.name or "").startswith(NO_HANDLER_PREFIXES)
        ]
        log.warning("leaving although these do not end: %s", "; ".join(others))
        _leave(0 if asked.is_set() else 1)

    async with background_tasks() as tasks:
        await tasks.start(listen, name=f"{TASK_PREFIX} signals")
        tasks.start_soon(leave_in_the_end, name=f"{TASK_PREFIX} last resort")
        with connecting:
            async with join(hurry):
                joined = True
                try:
                    await asked.wait()
                finally:
                    ending.set()


_importing: ContextVar[bool] = ContextVar("meup_agent.importing", default=False)


@contextmanager
def no_run_on_import() -> Generator[None]:
    """Import a module in this block without running its agent."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def check_may_run() -> None:
    """Raise :exc:`UsageError` where the module of an agent is only being looked into."""
    if _importing.get():
        raise UsageError(
            "the module runs its agent when it is imported; put agent.run() under "
            "if __name__ == '__main__'"
        )
