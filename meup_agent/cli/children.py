"""Programs beside a gateway: started, started again when they fail, shown, and ended together.

:class:`Children` owns them for the length of a block. Each program leads a process group of its
own, so that Ctrl-C at the terminal reaches us alone, and nothing that it started outlives it. Its
tasks are shielded and end by :attr:`Children.leaving`, after which each of their waits has a
deadline; so a program is ended in order also where the block is cancelled.

A program gets its secrets in its environment: command lines can be read by other users.

What a program starts may call ``setsid`` and so leave the process group, and a signal to the group
does not reach it. As the subreaper of all that it starts, ``meup up`` becomes the parent of each
such orphan once its own parent has gone; :func:`adopt_orphans` reaps and ends them. Elsewhere than
on Linux there is no such thing, and what leaves its group stays.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from anyio import CancelScope, Event, create_task_group, move_on_after

from meup_agent.cli.render.escape import visible
from meup_agent.errors import system_reason
from meup_agent.mcp.server_process import signal_group, wait_ended
from meup_agent.mcp.stderr_tail import LineLimiter, StderrTail
from meup_agent.session.reconnector import Backoff
from meup_agent.transport.loops import background_tasks

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

log = logging.getLogger("meup_agent.up")

RESTART: Final = Backoff(first=1.0, longest=60.0, stable=30.0)
"""Pauses before a program is started again."""

GRACE: Final = 10.0
"""Seconds that a program has to end when it is told to; an agent gives its handlers 5 of them."""

TERM_AFTER: Final = 7.0
"""Seconds of these after which a program that did not heed SIGINT gets SIGTERM: what a script runs
in the background inherits that SIGINT is ignored."""

HURRIED: Final = 1.0
"""Seconds that are left of the grace when the user hurries."""

LAST_WORDS: Final = 1.0
"""Seconds in which the rest of a program's output is read after its end."""

KILLED: Final = 5.0
"""Seconds that a killed program is waited for: the system may hold it, as for a lost disk."""

LINES_PER_SECOND: Final = 100
"""Lines of a program that are shown in a second: more than a person reads, or a traceback has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProgram:
    """A program, and the participant that it is for.

    Attributes:
        name: The participant.
        command: The program and its arguments.
        env: All of its environment.
        cwd: The folder that it runs in.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path


@dataclass(kw_only=True)
class Children:
    """Programs and bridges beside a gateway; made by :func:`run_children`.

    Attributes:
        show: Takes each line of a program's output, safe to print, with the participant's name.
        tasks: The group in which all of them run.
        restart: Pauses before something is started again.
        leaving: Set when everything is to end.
        hurry: Set when the user does not want to wait for that.
    """

    show: Callable[[str, str], None]
    hurry: Event
    tasks: TaskGroup
    restart: Backoff = RESTART
    leaving: Event = field(default_factory=Event)
    _told_by: signal.Signals = field(default=signal.SIGTERM, init=False)

    def start(self, program: ChildProgram) -> None:
        """Start a program, and again whenever it fails."""

        async def run_once() -> str | None:
            return await self._run(program)

        self.keep(program.name, run_once)

    def end(self, number: signal.Signals) -> None:
        """Tell everything to end: a program by SIGINT if that is what we got, else by SIGTERM."""
        log.info("stopping what runs beside the gateway; Ctrl-C again hurries")
        self._told_by = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        self.leaving.set()

    def keep(self, name: str, run_once: Callable[[], Awaitable[str | None]]) -> None:
        """Run something, and again after a pause as long as it returns why it failed.

        It ends by itself soon after :attr:`leaving`.
        """
        self.tasks.start_soon(self._keep, name, run_once, name=f"meup child {name}")

    async def _keep(self, name: str, run_once: Callable[[], Awaitable[str | None]]) -> None:
        failures = 0
        with CancelScope(shield=True):
            while not self.leaving.is_set():
                began = anyio.current_time()
                why = await run_once()
                if why is None or self.leaving.is_set():
                    return
                if anyio.current_time() - began >= self.restart.stable:
                    failures = 0
                delay = self.restart.pause(failures)
                failures += 1
                log.warning("%s %s; it is started again in %.1f s", visible(name, 64), why, delay)
                with move_on_after(delay):
                    await self.leaving.wait()

    # --- one run of a program ---

    async def _run(self, program: ChildProgram) -> str | None:
        """Start a program, and wait for its end; why it failed, if it is to be started again."""
        name = visible(program.name, 64)
        tail = StderrTail(
            name, LineLimiter(lambda line, _: self.show(program.name, line), LINES_PER_SECOND)
        )
        with tail.pipe() as (source, target):
            try:
                process = _start(program, target.fileno())
            except (OSError, ValueError) as error:
                log.error("%s cannot be started: %s", name, _why_not(program, error))
                return None
            target.close()
            log.info("%s is started (process %d)", name, process.pid)
            exited = Event()
            try:
                async with create_task_group() as tasks:
                    tasks.start_soon(_watch, process, exited)
                    read = Event()
                    tasks.start_soon(_read, tail, source, read)
                    await _first_of(exited, self.leaving)
                    if not exited.is_set():
                        await self._end(name, process, exited)
                    # Before the process is reaped, so its group cannot be another's by now.
                    signal_group(process, signal.SIGKILL)
                    with move_on_after(LAST_WORDS):
                        await read.wait()
                    tasks.cancel_scope.cancel()
            finally:
                if not exited.is_set():
                    signal_group(process, signal.SIGKILL)
                code = process.poll()
        tail.end()
        if code == 0:
            log.info("%s has ended", name)
            return None
        if self.leaving.is_set():
            log.info("%s %s", name, _ended_with(code))
        return _ended_with(code)

    async def _end(self, name: str, process: subprocess.Popen[bytes], exited: Event) -> None:
        """Tell a process group to end, then terminate it, then kill it."""
        signal_group(process, self._told_by)
        with move_on_after(TERM_AFTER):
            await _first_of(exited, self.hurry)
        if exited.is_set():
            return
        signal_group(process, signal.SIGTERM)
        with move_on_after(HURRIED if self.hurry.is_set() else GRACE - TERM_AFTER) as rest:
            if not self.hurry.is_set():
                await _first_of(exited, self.hurry)
                rest.deadline = anyio.current_time() + HURRIED
            await exited.wait()
        if exited.is_set():
            return
        log.warning("%s does not end, so it is killed", name)
        signal_group(process, signal.SIGKILL)
        with move_on_after(KILLED):
            await exited.wait()


@asynccontextmanager
async def run_children(
    show: Callable[[str, str], None], *, hurry: Event, restart: Backoff = RESTART
) -> AsyncGenerator[Children]:
    """The block in which programs run; it has ended when each of them has.

    Args:
        show: Takes each line of a program's output, safe to print, with the participant's name.
        hurry: Set when the user does not want to wait for their end.
        restart: Pauses before one is started again.
    """
    async with create_task_group() as tasks:
        children = Children(show=show, hurry=hurry, tasks=tasks, restart=restart)
        try:
            yield children
        finally:
            children.leaving.set()


def _start(program: ChildProgram, output: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        program.command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=program.cwd,
        env=program.env,
        start_new_session=True,
    )


def _why_not(program: ChildProgram, error: OSError | ValueError) -> str:
    if isinstance(error, ValueError):
        return "its command or its environment has a character that no program can be given"
    why = system_reason(error)
    if not program.cwd.is_dir():
        return f"there is no folder {visible(str(program.cwd), 500)}"
    if isinstance(error, FileNotFoundError):
        return f"there is no command {visible(program.command[0], 500)!r}"
    return f"{visible(program.command[0], 500)!r} cannot be run ({why})"


def _ended_with(code: int | None) -> str:
    if code is None:
        return "did not even end when it was killed"
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


async def _watch(process: subprocess.Popen[bytes], exited: Event) -> None:
    await wait_ended(process)
    exited.set()


async def _read(tail: StderrTail, source: int, read: Event) -> None:
    await tail.read(source)
    read.set()


async def _first_of(*events: Event) -> None:
    """Wait until one of them is set."""
    async with create_task_group() as tasks:

        async def wait(event: Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)


# --- orphans ---


PR_SET_CHILD_SUBREAPER: Final = 36

LOOK_SECONDS: Final = 5.0
"""Between two looks at our children: one that has ended before both of them is left to us to reap,
since the owners of the others do so within milliseconds."""

TERM_SECONDS: Final = 1.0
"""Seconds that an orphan has to end by SIGTERM, before it is killed."""

END_SECONDS: Final = 3.0
"""Seconds after which what cannot be killed is left."""

LOOK_AGAIN: Final = 0.02


@asynccontextmanager
async def adopt_orphans() -> AsyncGenerator[None]:
    """The block in which orphans become our children; at its end all of our children are ended."""
    if not _become_subreaper(adopt=True):
        yield
        return
    try:
        async with background_tasks() as tasks:
            tasks.start_soon(_reap)
            yield
    finally:
        with anyio.CancelScope(shield=True):
            await _end_children()
        _become_subreaper(adopt=False)


def _become_subreaper(*, adopt: bool) -> bool:
    if sys.platform != "linux":
        return False
    import ctypes

    try:
        return int(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


async def _reap() -> None:
    """Reap orphans that have ended: they would be kept as long as we run."""
    ended = set[int]()
    while True:
        await anyio.sleep(LOOK_SECONDS)
        now = {child for child in _children() if _has_ended(child)}
        for child in now & ended:
            _wait(child)
        ended = now


async def _end_children() -> None:
    """Terminate our children, then kill them, until there is none or the time is over."""
    told = set[int]()
    begun = anyio.current_time()
    while children := _children():
        passed = anyio.current_time() - begun
        if passed > END_SECONDS:
            return
        for child in children:
            if passed > TERM_SECONDS:
                _signal(child, signal.SIGKILL)
            elif child not in told:
                _signal(child, signal.SIGTERM)
            told.add(child)
            _wait(child)
        await anyio.sleep(LOOK_AGAIN)


def _children() -> list[int]:
    """Our children, of each thread."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text(encoding="ascii").split())
    return found


def _has_ended(child: int) -> bool:
    with suppress(OSError):
        # After the name, which may have anything in it, comes the state.
        state = Path(f"/proc/{child}/stat").read_bytes().rpartition(b") ")[2][:1]
        return state == b"Z"
    return False


def _signal(child: int, number: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(child, number)


def _wait(child: int) -> None:
    with suppress(OSError):
        os.waitpid(child, os.WNOHANG)
