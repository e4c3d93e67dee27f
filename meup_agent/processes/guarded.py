"""A program below its guard, as its owner has it: its pipes, its errors, its end, its restarts."""

from __future__ import annotations

import logging
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self, TextIO

import anyio

from meup_agent.errors import CannotConnect, ConfigurationError, printable
from meup_agent.processes import guard
from meup_agent.session.settings import Backoff

# --- standard error of a server ---
# Its last lines are kept, and logged at a bounded pace.

log = logging.getLogger("meup_agent.mcp")

MAX_LINES: Final = 20
"""Last lines that are kept."""

MAX_LINE_CHARS: Final = 2_000
"""Characters of a line that are kept."""

CHUNK: Final = 65_536
"""Bytes that are read at once."""

REST_SECONDS: Final = 1 / 32
"""Between two readings: a program that writes more than a chunk in it waits, and lines that come
one by one are read several at a time."""


class LineLimiter:
    """A bound on the lines that one source logs in a second; what is left out is counted.

    Args:
        write: Logs a line at a level.
        per_second: Lines in a second.
    """

    def __init__(self, write: Callable[[str, int], None], per_second: int = 10) -> None:
        self._write = write
        self._per_second = per_second
        self._second = -1
        self._count = 0
        self._left_out = 0

    def line(self, text: str, level: int = logging.INFO) -> bool:
        """Log a line, or count it; ``True``: it was logged."""
        second = int(anyio.current_time())
        if second != self._second:
            self.flush()
            self._second, self._count = second, 0
        if self._count < self._per_second:
            self._count += 1
            self._write(text, level)
            return True
        self._left_out += 1
        return False

    def flush(self) -> None:
        """Log how many lines were left out."""
        if self._left_out:
            self._write(f"({self._left_out} more lines were left out)", logging.INFO)
            self._left_out = 0


MAX_REPEATED: Final = 200
"""Lines of a program that are known from its starts before; the start of one writes fewer."""


class RepeatedLines:
    """The lines that a program writes as it starts, each known by all but its numbers.

    One that fails at each start says the same each time, which is logged once.
    """

    def __init__(self) -> None:
        self._known = set[str]()

    def is_new(self, line: str) -> bool:
        """True for a line that it did not write before; it has written it now."""
        shape = re.sub(r"\d+", "0", line)
        if shape in self._known:
            return False
        if len(self._known) < MAX_REPEATED:
            self._known.add(shape)
        return True


class StderrTail:
    """Reads what a server writes to its standard error, and keeps the end of it.

    Args:
        name: The server's name, for the log.
        limiter: Takes the lines, in place of the log.
        repeated: The lines of earlier starts, which are not logged again.
    """

    def __init__(
        self,
        name: str,
        limiter: LineLimiter | None = None,
        repeated: RepeatedLines | None = None,
    ) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._rest = b""
        self._skips = False
        self._repeated = repeated
        self._limiter = limiter or LineLimiter(
            lambda line, level: log.log(level, "%s: %s", name, line)
        )

    def log_all(self) -> None:
        """Log each line from now on: the server has started."""
        self._repeated = None

    @property
    def lines(self) -> list[str]:
        """The last lines, each on one line and safe to print."""
        return [*self._lines]

    @contextmanager
    def pipe(self) -> Generator[tuple[int, TextIO]]:
        """A pipe for a server's standard error: the end to read, and the file to give to it."""
        source, target = os.pipe()
        try:
            os.set_blocking(source, False)
            with os.fdopen(target, "w", encoding="utf-8") as file:
                yield source, file
        finally:
            os.close(source)

    async def read(self, source: int) -> None:
        """Read until every process that has the pipe is gone."""
        while chunk := await read_from(source):
            self.feed(chunk)
            await anyio.sleep(REST_SECONDS)
        self.end()

    def feed(self, chunk: bytes) -> None:
        """Take what came."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if not self._skips:
                self._keep(line)
            self._skips = False
        self._rest = b"" if self._skips else rest
        if len(self._rest) > 4 * MAX_LINE_CHARS:
            # Of a line without an end no more is kept.
            self._keep(self._rest)
            self._rest, self._skips = b"", True

    def end(self) -> None:
        """Take the last line, if it had no end."""
        if self._rest:
            self._keep(self._rest)
        self._rest = b""
        self._limiter.flush()

    def _keep(self, line: bytes) -> None:
        text = line[: 4 * MAX_LINE_CHARS].decode(errors="replace").rstrip()[:MAX_LINE_CHARS]
        if text:
            shown = printable(text)[:MAX_LINE_CHARS]
            self._lines.append(shown)
            if self._repeated is None or self._repeated.is_new(shown):
                self._limiter.line(shown)


# --- restarts ---
# Restarts of a program or a server, with backoff.

RESTART: Final = Backoff(first=1.0, longest=60.0, stable=30.0)
"""Pauses before something is started again; what ran for 30 s has failed for the first time."""


class FailedRun(NamedTuple):
    """The end of something that is started again.

    Attributes:
        why: The reason, in words that follow its name.
        last_words: The last lines that it wrote.
    """

    why: str
    last_words: Sequence[str] = ()

    @property
    def said(self) -> str:
        """Its last two lines in brackets, for the end of a sentence; empty: it wrote none."""
        lines = "; ".join(self.last_words[-2:])
        return f" (it said: {lines})" if lines else ""


async def keep_running(
    run_once: Callable[[], Awaitable[FailedRun | None]],
    failed: Callable[[FailedRun, float], Awaitable[None]],
    leaving: anyio.Event,
    backoff: Backoff = RESTART,
) -> None:
    """Run something, and again after a pause as long as it returns why it failed.

    Args:
        run_once: Runs it until its end; the reason if it is to run again.
        failed: Told the reason, and in how many seconds it is started again.
        leaving: Set when it is to end; it then ends by itself.
        backoff: The pauses, which grow until the longest.
    """
    failures = 0
    while not leaving.is_set():
        began = anyio.current_time()
        failure = await run_once()
        if failure is None or leaving.is_set():
            return
        if anyio.current_time() - began >= backoff.stable:
            failures = 0
        delay = backoff.pause(failures, least=0.5)
        failures += 1
        await failed(failure, delay)
        with anyio.move_on_after(delay):
            await leaving.wait()


# --- guarded ---

GUARD: Final = (sys.executable, "-IS", str(Path(guard.__file__)))
"""The command of a guard: isolated and without site-packages it starts in 15 ms."""

KILL_ALL: Final = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""The signal at which a guard kills its program, and all that the program has started."""

KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)

KILLED_SECONDS: Final = 5.0
"""Seconds that a killed guard is waited for: nothing but the system can hold it, if it is busy."""

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
        stderr: int | None,
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


EXIT_SECONDS: Final = 2.0
"""Seconds that a program has to end after its input was closed, and again after SIGTERM."""

LEFT_SECONDS: Final = 5.0
"""Seconds in which a guard ends what a program has left running: it kills that after one."""

ALONE_SECONDS: Final = 3.0
"""Seconds that a program has to end after its input ended because we were killed."""

"""Bytes that are read at once."""


class LineTooLong(Exception):
    """A line is longer than it may be."""


async def read_lines(read: Callable[[], Awaitable[bytes]], limit: int) -> AsyncGenerator[bytes]:
    """The lines of a stream, without their ends; of the last one only if it has an end.

    Args:
        read: Reads the next bytes; none at the end.
        limit: Bytes of a line.

    Raises:
        LineTooLong: A line has more.
    """
    rest: list[bytes] = []
    size = 0
    while chunk := await read():
        first, *others = chunk.split(b"\n")
        rest.append(first)
        size += len(first)
        if size > limit:
            raise LineTooLong(f"a message has more than {limit} bytes")
        for line in others:
            yield b"".join(rest)
            rest, size = [line], len(line)


async def read_from(source: int) -> bytes:
    """The next bytes of a pipe that does not block; none at its end."""
    while True:
        await anyio.wait_readable(source)
        with suppress(BlockingIOError):
            return os.read(source, CHUNK)


async def write_to(target: int, data: bytes) -> None:
    """Write to a pipe that does not block; an OSError if it is read no more."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(target, rest) :]
        except BlockingIOError:
            await anyio.wait_writable(target)


class PipedProcess(GuardedProcess):
    """A program that runs below its guard, with pipes for its standard input and output.

    Args:
        command: The program and its arguments.
        env: All of its environment.
        cwd: The folder that it runs in.
        stderr: Its standard error; ``None``: ours.

    Raises:
        CannotConnect: It cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None = None,
        *,
        stderr: int | None = None,
    ) -> None:
        self._command = command[0]
        try:
            super().__init__(
                command,
                env,
                cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                alone_seconds=ALONE_SECONDS,
            )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "a character of it is invalid"
            raise CannotConnect(f"{command[0]!r} cannot be started: {why}") from None
        assert self.guard.stdin is not None, "it is a pipe"
        assert self.guard.stdout is not None, "it is a pipe"
        self._stdin, self._stdout = self.guard.stdin, self.guard.stdout
        for descriptor in (self._stdin.fileno(), self._stdout.fileno()):
            os.set_blocking(descriptor, False)

    async def read(self) -> bytes:
        """The next bytes of its standard output; none at its end."""
        return await read_from(self._stdout.fileno())

    async def write(self, data: bytes) -> None:
        """Write to its standard input; an OSError if it reads no more."""
        await write_to(self._stdin.fileno(), data)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    async def end(self) -> None:
        """Close its input, then terminate it, then kill it; returns when all of it has ended."""
        self._stdin.close()
        for number in (signal.SIGTERM, KILL_ALL, None):
            with anyio.move_on_after(EXIT_SECONDS):
                await self.wait_ended()
                break
            if number is not None:
                self.send_signal(number)
        self.leave()
        with anyio.move_on_after(LEFT_SECONDS):
            await self.wait_gone()

    def close(self) -> None:
        """Kill what still runs of it, and close the pipes."""
        self.kill()
        self.leave()
        self.has_gone()
        self._stdin.close()
        self._stdout.close()

    @property
    def last_words(self) -> str:
        """The end of the program in words; empty: it is not known."""
        if self.error is not None:
            return f"cannot start {self._command!r}: {self.error.strerror}\n"
        if self.status is None:
            return ""
        if self.status >= 0:
            return f"the server ended with exit status {self.status}\n"
        return f"the server was ended by signal {-self.status}\n"


class OwnPipes:
    """Our own standard input and output, kept from everything else in this process.

    What programs of ours read, and what is printed by mistake, must not be the other side's
    messages: the descriptors 0 and 1 lead elsewhere for the length of a block.

    Raises:
        ConfigurationError: The input cannot be waited for, as a file cannot.
    """

    def __init__(self) -> None:
        self._source = self._target = -1

    def __enter__(self) -> Self:
        """Take the two."""
        self._source, self._target = os.dup(0), os.dup(1)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._source, selectors.EVENT_READ)
        except (OSError, ValueError):
            self._close()
            raise ConfigurationError(
                "standard input is a file, which nobody talks through; let the other program start"
                " this one, with pipes"
            ) from None
        with open(os.devnull, "rb") as null:
            os.dup2(null.fileno(), 0)
        os.dup2(2, 1)
        for descriptor in (self._source, self._target):
            os.set_blocking(descriptor, False)
        return self

    def __exit__(self, *_: object) -> None:
        """Give them back, as they were."""
        for descriptor, number in ((self._source, 0), (self._target, 1)):
            os.set_blocking(descriptor, True)
            os.dup2(descriptor, number)
        self._close()

    def _close(self) -> None:
        os.close(self._source)
        os.close(self._target)

    async def read(self) -> bytes:
        """The next bytes of the input; none at its end."""
        return await read_from(self._source)

    async def write(self, data: bytes) -> None:
        """Write to the output; an OSError if it is read no more."""
        await write_to(self._target, data)
