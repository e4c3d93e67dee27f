"""A program below its guard, as its owner has it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.processes import guard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GUARD: Final = (sys.executable, "-IS", str(Path(guard.__file__)))
"""The command of a guard: isolated and without site-packages it starts in 15 ms."""

KILL_ALL: Final = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""The signal at which a guard kills its program, and all that the program has started."""

KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)

KILLED_SECONDS: Final = 1.0
"""Seconds that a killed guard is waited for: nothing but the system can hold it."""

_MAX_REPORT: Final = 4_096
"""Bytes of a guard's report that are read at a time; it has two short lines."""

_POLL: Final = 0.1
"""Seconds between looks at a process, on systems that cannot tell of its end."""


class GuardedProcess:
    """A program that runs below its guard.

    Args:
        command: The program and its arguments.
        env: All of its environment.
        cwd: The folder that it runs in.
        stdin: Its standard input, as :class:`subprocess.Popen` takes it; so are the others.
        stdout: Its standard output.
        stderr: Its standard error.
        alone_seconds: Seconds until it is told to end after we have ended.

    Attributes:
        pid: The program's own process, once it is known.
        status: Its status, as :class:`subprocess.Popen` has it, once it has ended.
        error: The reason for which it could not be started.
        guard: The guard's process, with the pipes.

    Raises:
        OSError: The guard cannot be started.
        ValueError: There is a character in the command or the environment that cannot be.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None,
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        alone_seconds: float = 0.0,
    ) -> None:
        self.pid: int | None = None
        self.status: int | None = None
        self.error: OSError | None = None
        self._rest = b""
        self._is_silent = False
        self._guard_socket, end = socket.socketpair()
        try:
            self.guard = subprocess.Popen(
                (*GUARD, str(end.fileno()), str(alone_seconds), *command),
                bufsize=0,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                env=env,
                pass_fds=(end.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            self._guard_socket.close()
            raise
        finally:
            end.close()
        self._guard_socket.setblocking(False)

    async def wait_started(self) -> None:
        """Wait until the program runs, or has failed to."""
        while self.pid is None and not self.has_ended:
            await self._receive()

    async def wait_ended(self) -> None:
        """Wait until the program has ended, or its guard."""
        while not self.has_ended:
            await self._receive()

    @property
    def has_ended(self) -> bool:
        """True once the program is known to have ended, or its guard was killed."""
        return self._is_silent or self.status is not None or self.error is not None

    async def _receive(self) -> None:
        await anyio.wait_readable(self._guard_socket)
        self._read_report()

    def _read_report(self) -> None:
        """Read a piece of the guard's report: ``started``, then ``ended``; or ``failed``."""
        try:
            chunk = self._guard_socket.recv(_MAX_REPORT)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._is_silent = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            fact, number = line.split()
            if fact == b"started":
                self.pid = int(number)
            elif fact == b"ended":
                self.status = int(number)
            else:
                self.error = OSError(int(number), os.strerror(int(number)))

    def send_signal(self, number: int) -> None:
        """Have the guard pass a signal on to the program's group."""
        self.guard.send_signal(number)

    def leave(self) -> None:
        """Let the guard end what it still has."""
        self._guard_socket.close()

    def has_gone(self) -> bool:
        """True once all of it has ended."""
        if self.guard.poll() is None:
            return False
        self.leave()
        return True

    async def wait_gone(self) -> None:
        """Wait until all of it has ended; where the system can tell, it is not reaped yet."""
        try:
            descriptor = os.pidfd_open(self.guard.pid)
        except (AttributeError, OSError):
            while self.guard.poll() is None:  # noqa: ASYNC110 - nothing tells of its end here
                await anyio.sleep(_POLL)
            return
        try:
            await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)

    def kill(self) -> None:
        """Kill a program that is not known to have ended, with its guard."""
        for number in (KILL_ALL, KILL):
            if not self._knows_end() and self.guard.poll() is None:
                self.guard.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self.guard.wait(KILLED_SECONDS)
        if not self._knows_end():
            self.status = self.guard.poll()
            if self.pid is not None:
                # Its guard was killed just now, so its number is no other's yet.
                with suppress(OSError):
                    os.killpg(self.pid, KILL)

    def _knows_end(self) -> bool:
        while not self.has_ended and self.guard.returncode is not None:
            self._read_report()
        return self.status is not None or self.error is not None
