"""Pipes: those to a program that we start, our own to the one that started us, and their lines."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import anyio

from meup_agent.errors import CannotConnect, ConfigurationError
from meup_agent.processes.guarded import KILL_ALL, GuardedProcess

EXIT_SECONDS: Final = 2.0
"""Seconds that a program has to end after its input was closed, and again after SIGTERM."""

LEFT_SECONDS: Final = 5.0
"""Seconds in which a guard ends what a program has left running: it kills that after one."""

ALONE_SECONDS: Final = 3.0
"""Seconds that a program has to end after its input ended because we were killed."""

CHUNK: Final = 65_536
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


class PipedProcess:
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
            self._program = GuardedProcess(
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
        guard = self._program.guard
        assert guard.stdin is not None, "it is a pipe"
        assert guard.stdout is not None, "it is a pipe"
        self._stdin, self._stdout = guard.stdin, guard.stdout
        for descriptor in (self._stdin.fileno(), self._stdout.fileno()):
            os.set_blocking(descriptor, False)

    async def read(self) -> bytes:
        """The next bytes of its standard output; none at its end."""
        return await read_from(self._stdout.fileno())

    async def write(self, data: bytes) -> None:
        """Write to its standard input; an OSError if it reads no more."""
        await write_to(self._stdin.fileno(), data)

    def terminate(self) -> None:
        self._program.send_signal(signal.SIGTERM)

    async def wait_ended(self) -> None:
        await self._program.wait_ended()

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

    @property
    def status(self) -> int | None:
        """Its status, as :class:`subprocess.Popen` has it; ``None``: it is not known."""
        return self._program.status

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
