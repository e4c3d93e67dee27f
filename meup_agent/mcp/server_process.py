"""The program of a server over standard input and output: its process and its pipes.

Nothing of this needs the SDK, so a server can be started first, and the SDK be loaded while the
server starts (:class:`ServerStarter`): both take a second where a server is on the SDK as well.
Its guard ends all of it, also where this process is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.errors import CannotConnect
from meup_agent.processes.guarded import KILL_ALL, GuardedProcess

if TYPE_CHECKING:
    from meup_agent.mcp.server_config import StdioServer

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a server's message that are read: twice what fits a message of the space."""

INHERITED: Final = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
"""Variables of ours that a server gets, as the SDK's own client has it."""

EXIT_SECONDS: Final = 2.0
"""Seconds that a server has to end after its input was closed, and again after SIGTERM."""

LEFT_SECONDS: Final = 5.0
"""Seconds in which a guard ends what a server has left running: it kills that after one."""

ALONE_SECONDS: Final = 3.0
"""Seconds that a server has to end after its input ended because we were killed."""

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
        self._command = server.command
        self.stderr, errors = os.pipe()
        try:
            self._program = GuardedProcess(
                (server.command, *server.args),
                environment,
                server.cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                alone_seconds=ALONE_SECONDS,
            )
        except (OSError, ValueError) as error:
            os.close(self.stderr)
            why = error.strerror if isinstance(error, OSError) else "a character of it is invalid"
            raise CannotConnect(f"{server.command!r} cannot be started: {why}") from None
        finally:
            os.close(errors)
        guard = self._program.guard
        assert guard.stdin is not None, "it is a pipe"
        assert guard.stdout is not None, "it is a pipe"
        self._stdin, self._stdout = guard.stdin, guard.stdout
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

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._program.send_signal(signal.SIGTERM)

    async def end(self) -> None:
        """Close its input, then terminate it, then kill it; returns when all of it has ended."""
        self._stdin.close()
        for number in (signal.SIGTERM, KILL_ALL, None):
            with anyio.move_on_after(EXIT_SECONDS):
                await self._program.wait_ended()
                break
            if number is not None:
                self._program.send_signal(number)
        self._program.leave()
        with anyio.move_on_after(LEFT_SECONDS):
            await self._program.wait_gone()

    def close(self) -> None:
        """Kill what still runs of it, and close the pipes."""
        self._program.kill()
        self._program.leave()
        self._program.has_gone()
        self._stdin.close()
        self._stdout.close()
        os.close(self.stderr)

    @property
    def last_words(self) -> str:
        """The end of the program in words; empty: it is not known."""
        if self._program.error is not None:
            return f"cannot start {self._command!r}: {self._program.error.strerror}\n"
        status = self._program.status
        if status is None:
            return ""
        if status >= 0:
            return f"the server ended with exit status {status}\n"
        return f"the server was ended by signal {-status}\n"


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
