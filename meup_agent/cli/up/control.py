"""Reading the files of a running gateway again: by SIGHUP, and by ``meup gateway reload``.

The command dials a Unix socket of its own beside the gateway's lock, in its user's folder: so it
reaches the process that holds the lock, in a container, too, where a number of a process would be
another's. Nothing is asked there but to read the files that the gateway was started with.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
from anyio import CapacityLimiter, to_thread
from anyio.abc import SocketStream

from meup_agent.cli import exit_codes
from meup_agent.cli.failures import Failure
from meup_agent.cli.up.state import SOCKET_MODE
from meup_agent.errors import MeupError, explain_os_error
from meup_agent.transport.base import background_tasks
from meup_agent.transport.urls import short_path

if TYPE_CHECKING:
    from meup_agent.gateway.config import Config
    from meup_agent.gateway.server import RunningGateway

log = logging.getLogger("meup_agent.gateway")

RELOAD: Final = b"reload\n"
"""All that may be asked."""

ASK_SECONDS: Final = 5.0
"""Seconds for a command to say what it wants, and to take its answer."""

READ_SECONDS: Final = 45.0
"""Seconds for reading the files: one that never answers must hold up no later attempt."""

ANSWER_SECONDS: Final = 60.0
"""Seconds that a command waits for its answer: the files may be on a slow network."""

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""Bytes of an answer, which names the participants that have changed."""

MAX_COMMANDS: Final = 8
"""Commands that are answered at a time; the others wait."""


class ReloadAnswer(msgspec.Struct):
    """The outcome of reading the files again, as the socket tells it."""

    said: str
    done: bool


class ConfigReloader:
    """Reads the files of a gateway again, one time after another.

    Args:
        running: The gateway.
        read: Reads its configuration as at the start; raises :exc:`MeupError`.
    """

    def __init__(self, running: RunningGateway, read: Callable[[], Config]) -> None:
        self._running = running
        self._read = read
        self._turn = anyio.Lock()

    async def reload(self) -> ReloadAnswer:
        """Read the files again; what is wrong with them leaves everything as it is."""
        async with self._turn:
            try:
                with anyio.fail_after(READ_SECONDS):
                    read = await to_thread.run_sync(self._read, abandon_on_cancel=True)
                said, done = str(self._running.reload(read)), True
            except TimeoutError:
                said, done = (
                    "nothing is changed: the files cannot be read, one gives no answer",
                    False,
                )
            except MeupError as error:
                said, done = f"nothing is changed: {error}", False
            except Exception as error:
                log.exception("the configuration could not be read again")
                said, done = f"nothing is changed: {type(error).__name__}; the log says more", False
        log.log(logging.INFO if done else logging.ERROR, "configuration read again: %s", said)
        return ReloadAnswer(said, done)


@asynccontextmanager
async def take_commands(path: Path, reloader: ConfigReloader) -> AsyncGenerator[None]:
    """Answer ``meup gateway reload`` at a socket for the length of a block.

    Raises:
        ConfigurationError: There can be no socket.
    """
    limiter = CapacityLimiter(MAX_COMMANDS)

    async def answer(stream: SocketStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            async with stream, limiter:
                asked = b""
                with anyio.move_on_after(ASK_SECONDS):
                    asked = await stream.receive(len(RELOAD))
                if asked == RELOAD:
                    said = msgspec.json.encode(await reloader.reload())
                    with anyio.move_on_after(ASK_SECONDS):
                        await stream.send(said)

    with short_path(str(path)) as short:
        with explain_os_error(f"the socket {path} cannot be made"):
            listener = await anyio.create_unix_listener(short, mode=SOCKET_MODE)
    try:
        async with background_tasks() as tasks:
            tasks.start_soon(listener.serve, answer)
            yield
    finally:
        with anyio.CancelScope(shield=True):
            await listener.aclose()
        with suppress(OSError):
            os.unlink(path)


async def ask_reload(path: Path) -> ReloadAnswer:
    """Let a gateway read its files again.

    Raises:
        Failure: It does not answer.
    """
    answer = bytearray()
    try:
        with anyio.fail_after(ANSWER_SECONDS), short_path(str(path)) as short:
            async with await anyio.connect_unix(short) as stream:
                await stream.send(RELOAD)
                with suppress(anyio.EndOfStream):
                    while len(answer) < MAX_ANSWER_BYTES:
                        answer += await stream.receive()
        return msgspec.json.decode(bytes(answer), type=ReloadAnswer)
    except (OSError, TimeoutError, anyio.BrokenResourceError, msgspec.MsgspecError):
        raise Failure(
            "the gateway does not answer, and whether it has read its files again is not known;"
            " its log says so",
            exit_codes.NO_CONNECTION,
        ) from None


def has_terminal() -> bool:
    """True if this process has a controlling terminal, whose end is told by SIGHUP."""
    if sys.platform == "win32":
        return True
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
