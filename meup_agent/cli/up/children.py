"""Programs beside a gateway: started, started again when they fail, shown, and ended together.

:class:`Children` owns them for the length of a block. Each program has a guard
(:mod:`~meup_agent.processes.guard`) as its parent, which ends all of it when we end, also where
we are killed; it leads a session of its own, so that Ctrl-C at the terminal reaches us alone. Our
tasks are shielded and end by :attr:`Children.leaving`, after which each of their waits has a
deadline; so a program is ended in order also where the block is cancelled.

A program gets its secrets in its environment: command lines can be read by other users.

A guard keeps what its program leaves running until `meup up` ends. Where a guard is killed, what
it had becomes ours: :func:`adopt_orphans` reaps and ends that, and the guards that
are left. Elsewhere than on Linux there is no such thing, and what leaves its group stays.
"""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from anyio import CancelScope, Event, create_task_group, move_on_after, to_thread

from meup_agent.errors import system_reason
from meup_agent.escape import visible
from meup_agent.processes import guard
from meup_agent.processes.guarded import (
    KILL_ALL,
    FailedRun,
    GuardedProcess,
    LineLimiter,
    StderrTail,
    keep_running,
)
from meup_agent.transport.base import background_tasks
from meup_agent.wording import shown_name

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

log = logging.getLogger("meup_agent.up")

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
        leaving: Set when everything is to end.
        hurry: Set when the user does not want to wait for that.
    """

    show: Callable[[str, str], None]
    hurry: Event
    tasks: TaskGroup
    leaving: Event = field(default_factory=Event)
    _told_by: signal.Signals = field(default=signal.SIGTERM, init=False)
    # Programs that have ended and left something running.
    _left: list[GuardedProcess] = field(default_factory=list["GuardedProcess"], init=False)

    def start(self, program: ChildProgram) -> None:
        """Start a program, and again whenever it fails."""
        self.keep(program.name, partial(self._run, program))

    def end(self, number: signal.Signals) -> None:
        """Tell everything to end: a program by SIGINT if that is what we got, else by SIGTERM."""
        log.info("stopping what runs beside the gateway; Ctrl-C again hurries")
        self._told_by = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        self.leaving.set()

    def keep(self, name: str, run_once: Callable[[], Awaitable[FailedRun | None]]) -> None:
        """Run something, and again after a pause as long as it returns why it failed.

        It ends by itself soon after :attr:`leaving`.
        """

        async def failed(failure: FailedRun, delay: float) -> None:
            said = failure.said
            log.warning(
                "%s %s; it is started again in %.1f s%s", shown_name(name), failure.why, delay, said
            )

        async def keep() -> None:
            with CancelScope(shield=True):
                await keep_running(run_once, failed, self.leaving)

        self.tasks.start_soon(keep, name=f"meup child {name}")

    async def end_left(self) -> None:
        """End what programs have left running."""
        for each in self._left:
            each.leave()
        for each in self._left:
            with move_on_after(KILLED):
                await each.wait_gone()
            each.has_gone()

    # --- one run of a program ---

    async def _run(self, program: ChildProgram) -> FailedRun | None:
        """Start a program, and wait for its end; why it failed, if it is to be started again."""
        name = shown_name(program.name)
        tail = StderrTail(
            name, LineLimiter(lambda line, _: self.show(program.name, line), LINES_PER_SECOND)
        )
        with tail.pipe() as (source, target):
            try:
                guarded = GuardedProcess(
                    program.command,
                    program.env,
                    program.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=target.fileno(),
                    stderr=target.fileno(),
                )
            except (OSError, ValueError) as error:
                log.error("%s cannot be started: %s", name, _why_not(program, error))
                return None
            target.close()
            exited = Event()
            try:
                async with create_task_group() as tasks:
                    tasks.start_soon(_watch, guarded, name, exited)
                    read = Event()
                    tasks.start_soon(_read, tail, source, read)
                    await _first_of(exited, self.leaving)
                    if not exited.is_set():
                        await self._end(name, guarded, exited)
                    with move_on_after(LAST_WORDS):
                        await read.wait()
                    tasks.cancel_scope.cancel()
            finally:
                guarded.kill()
        self._left = [each for each in (*self._left, guarded) if not each.has_gone()]
        tail.end()
        if guarded.error is not None:
            log.error("%s cannot be started: %s", name, _why_not(program, guarded.error))
            return None
        if guarded.status == 0:
            log.info("%s has ended", name)
            return None
        if self.leaving.is_set():
            log.info("%s %s", name, _ended_with(guarded.status))
        return FailedRun(_ended_with(guarded.status))

    async def _end(self, name: str, program: GuardedProcess, exited: Event) -> None:
        """Tell a program to end, then terminate it, then kill it."""
        program.send_signal(self._told_by)
        with move_on_after(TERM_AFTER):
            await _first_of(exited, self.hurry)
        if exited.is_set():
            return
        program.send_signal(signal.SIGTERM)
        with move_on_after(HURRIED if self.hurry.is_set() else GRACE - TERM_AFTER) as rest:
            if not self.hurry.is_set():
                await _first_of(exited, self.hurry)
                rest.deadline = anyio.current_time() + HURRIED
            await exited.wait()
        if exited.is_set():
            return
        log.warning("%s does not end, so it is killed", name)
        program.send_signal(KILL_ALL)
        with move_on_after(KILLED):
            await exited.wait()


@asynccontextmanager
async def run_children(
    show: Callable[[str, str], None], *, hurry: Event
) -> AsyncGenerator[Children]:
    """The block in which programs run; it has ended when each of them has.

    Args:
        show: Takes each line of a program's output, safe to print, with the participant's name.
        hurry: Set when the user does not want to wait for their end.
    """
    tasks = create_task_group()
    children = Children(show=show, hurry=hurry, tasks=tasks)
    try:
        async with tasks:
            try:
                yield children
            finally:
                children.leaving.set()
    finally:
        with CancelScope(shield=True):
            await children.end_left()


def _why_not(program: ChildProgram, error: OSError | ValueError) -> str:
    if isinstance(error, ValueError):
        return "its command or its environment has a character that no program can be given"
    if not program.cwd.is_dir():
        return f"there is no folder {visible(str(program.cwd), 500)}"
    if isinstance(error, FileNotFoundError):
        return f"there is no command {visible(program.command[0], 500)!r}"
    return f"{visible(program.command[0], 500)!r} cannot be run ({system_reason(error)})"


def _ended_with(code: int | None) -> str:
    if code is None:
        return "did not even end when it was killed"
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


async def _watch(program: GuardedProcess, name: str, exited: Event) -> None:
    """Wait for the end of a program, or of its guard."""
    await program.wait_started()
    if program.pid is not None:
        log.info("%s is started (process %d)", name, program.pid)
    await program.wait_ended()
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


LOOK_SECONDS: Final = 5.0
"""Between two looks at our children: one that has ended before both of them is left to us to reap,
since the owners of the others do so within milliseconds."""


@asynccontextmanager
async def adopt_orphans() -> AsyncGenerator[None]:
    """The block in which orphans become our children; at its end all of our children are ended."""
    if not guard.become_subreaper():
        yield
        return
    try:
        async with background_tasks() as tasks:
            tasks.start_soon(_reap)
            yield
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(guard.end_children, guard.TERM_SECONDS)
        guard.become_subreaper(adopt=False)


async def _reap() -> None:
    """Reap orphans that have ended: they would be kept as long as we run."""
    ended = set[int]()
    while True:
        await anyio.sleep(LOOK_SECONDS)
        now = {child for child in guard.list_children() if _has_ended(child)}
        for child in now & ended:
            guard.reap(child)
        ended = now


def _has_ended(child: int) -> bool:
    with suppress(OSError):
        # After the name, which may have anything in it, comes the state.
        state = Path(f"/proc/{child}/stat").read_bytes().rpartition(b") ")[2][:1]
        return state == b"Z"
    return False
