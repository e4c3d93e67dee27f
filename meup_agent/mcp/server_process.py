"""The program of a server over standard input and output: its process and its pipes.

Nothing of this needs the SDK, so a server can be started first, and the SDK be loaded while the
server starts (:class:`ServerStarter`): both take a second where a server is on the SDK as well.
What runs is a guard (:mod:`~meup_agent.mcp.process_guard`), which starts the program and ends all
of it, also where this process is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.errors import CannotConnect
from meup_agent.mcp import process_guard

if TYPE_CHECKING:
    from meup_agent.mcp.server_config import StdioServer

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a server's message that are read: twice what fits a message of the space."""

INHERITED: Final = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
"""Variables of ours that a server gets, as the SDK's own client has it."""

EXIT_SECONDS: Final = 2.0
"""Seconds that a server has to end after its input was closed, and again after SIGTERM."""

GUARD: Final = (sys.executable, "-IS", str(Path(process_guard.__file__)))
"""The command of a guard: isolated and without site-packages it starts in 15 ms."""

_POLL: Final = 0.1
"""Seconds between looks at a process, on systems that cannot tell of its end."""

_CHUNK: Final = 65_536


def server_environment(server: StdioServer) -> dict[str, str]:
    """The environment of a server: few variables of ours, and its own."""
    # A value that begins so was a function of the shell, which an old one would run.
    ours = {
        key: value
        for key in INHERITED
        if (value := os.environ.get(key)) is not None and not value.startswith("()")
    }
    return {**ours, **server.env}


def check_startable(server: StdioServer, environment: Mapping[str, str]) -> None:
    """Check that the command and the folder of a server are there.

    Raises:
        CannotConnect: One is not.
    """
    if server.cwd is not None and not server.cwd.is_dir():
        raise CannotConnect(f"there is no folder {str(server.cwd)!r}")
    path = server.command
    if os.sep in path and server.cwd is not None:
        path = str(server.cwd / path)
    if shutil.which(path, path=environment.get("PATH")) is None:
        raise CannotConnect(f"there is no command {server.command!r}")


def guarded(server: StdioServer) -> list[str]:
    """The command line of a server's program, with the guard of its output before it."""
    return [*GUARD, "copy", str(MAX_MESSAGE_BYTES), server.command, *server.args]


class ServerProcess:
    """A server's program that runs.

    Args:
        server: The server.

    Attributes:
        stderr: The end to read of its standard error, which does not block.

    Raises:
        CannotConnect: It cannot be started.
    """

    def __init__(self, server: StdioServer) -> None:
        environment = server_environment(server)
        check_startable(server, environment)
        self.stderr, errors = os.pipe()
        try:
            self._process = subprocess.Popen(
                guarded(server),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=server.cwd,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            os.close(self.stderr)
            why = error.strerror if isinstance(error, OSError) else "a character of it is invalid"
            raise CannotConnect(f"{server.command!r} cannot be started: {why}") from None
        finally:
            os.close(errors)
        assert self._process.stdin is not None, "it is a pipe"
        assert self._process.stdout is not None, "it is a pipe"
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        for descriptor in (self.stderr, self._stdin.fileno(), self._stdout.fileno()):
            os.set_blocking(descriptor, False)

    async def read(self) -> bytes:
        """The next bytes of its standard output; none at its end."""
        source = self._stdout.fileno()
        while True:
            await anyio.wait_readable(source)
            with suppress(BlockingIOError):
                return os.read(source, _CHUNK)

    async def write(self, data: bytes) -> None:
        """Write to its standard input; an OSError if it reads no more."""
        rest = memoryview(data)
        while rest:
            target = self._stdin.fileno()
            try:
                rest = rest[os.write(target, rest) :]
            except BlockingIOError:
                await anyio.wait_writable(target)

    async def end(self) -> None:
        """Close its input, then terminate it, then kill it; returns when it has ended."""
        self._stdin.close()
        for number in (signal.SIGTERM, KILL_ALL, _SIGKILL):
            with anyio.move_on_after(EXIT_SECONDS):
                await wait_ended(self._process)
                break
            self._process.send_signal(number)
        else:
            with anyio.move_on_after(EXIT_SECONDS):
                await wait_ended(self._process)
        self._process.poll()

    def close(self) -> None:
        """Kill what still runs of it, and close the pipes."""
        for number in (KILL_ALL, _SIGKILL):
            if self._process.poll() is None:
                self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(EXIT_SECONDS)
        self._stdin.close()
        self._stdout.close()
        os.close(self.stderr)


class ServerStarter:
    """Starts a server's program for each connection; the first may be started before it is needed.

    Args:
        server: The server.
    """

    def __init__(self, server: StdioServer) -> None:
        self._server = server
        self._first: ServerProcess | None = None

    def begin(self) -> None:
        """Start it now, for the first connection; if it cannot be, that connection says so."""
        with suppress(CannotConnect):
            self._first = ServerProcess(self._server)

    def take(self) -> ServerProcess:
        """The program that was started before, or a new one; the caller's to close.

        Raises:
            CannotConnect: It cannot be started.
        """
        first, self._first = self._first, None
        return first or ServerProcess(self._server)

    def discard(self) -> None:
        """End what was started and has no connection."""
        if self._first is not None:
            self.take().close()


_SIGKILL: Final = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL

KILL_ALL: Final = signal.SIGTERM if sys.platform == "win32" else signal.SIGUSR1
"""The signal at which a guard kills its program, and all that the program has started."""


async def wait_ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process; where the system can tell, it is not reaped yet."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        while process.poll() is None:  # noqa: ASYNC110 - nothing tells of its end here
            await anyio.sleep(_POLL)
        return
    try:
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)
