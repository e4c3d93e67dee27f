"""The contract of a connection, whatever carries it; the loop's clock and tasks.

Both ends of :mod:`~meup_agent.transport.memory` and the client ends of
:mod:`~meup_agent.transport.websocket` and :mod:`~meup_agent.transport.http` keep it.
"""

from __future__ import annotations

import logging
import math
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import anyio
import msgspec

from meup_agent.errors import ConnectionFailed, TransportClosed, leaves_of
from meup_agent.uncaught import was_interrupted

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping

    from anyio.abc import TaskGroup


Work = TypeVar("Work", bound="Callable[..., Coroutine[Any, Any, object]]")

# --- loops ---
# The loop's clock, a condition variable, and the background tasks of a block.
#
# Clock and condition are cheaper on asyncio than through anyio.


def runs_on_asyncio() -> bool:
    """True if the loop that runs is asyncio's, or one in its place.

    Told by the name, so that importing an agent does not load a loop (a seventh of its time).
    """
    return anyio.get_cancelled_exc_class().__module__.partition(".")[0] == "asyncio"


def loop_options() -> dict[str, bool]:
    """Options for :func:`anyio.run` on asyncio: uvloop, where it is installed."""
    return {"use_uvloop": find_spec("uvloop") is not None}


def asyncio_loop() -> AbstractEventLoop | None:
    """The loop that runs, if it is asyncio's, or one in its place."""
    if runs_on_asyncio():
        import asyncio

        return asyncio.get_running_loop()
    return None


def loop_clock() -> Callable[[], float]:
    """The clock of the running loop, in seconds; valid while that loop runs.

    Found once: a session reads it several times for each envelope, and
    :func:`anyio.current_time` asks each time which loop runs.
    """
    loop = asyncio_loop()
    return anyio.current_time if loop is None else loop.time


class Condition:
    """A condition variable without a lock, for the tasks of one loop.

    It remembers nothing: a wait that begins after :meth:`notify_all` ends with the next one. So a
    caller checks what it waits for and then waits, with no checkpoint in between, and checks again
    afterwards. Without a waiter it takes next to no memory; a wait takes a fifth of the time and
    of the kilobyte of an event.
    """

    __slots__ = ("_event", "_futures", "_loop")

    def __init__(self, loop: AbstractEventLoop | None = None) -> None:
        """Make a condition; ``loop`` is that of asyncio, where it has been found."""
        self._event: anyio.Event | None = None
        self._futures: list[Future[None]] | None = None
        self._loop = loop

    def notify_all(self) -> None:
        """End every wait that has begun."""
        if self._futures is not None:
            futures, self._futures = self._futures, None
            for future in futures:
                if not future.done():
                    future.set_result(None)
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait for the next :meth:`notify_all`."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio_loop()
            if loop is None:
                self._event = self._event or anyio.Event()
                await self._event.wait()
                return
        future = loop.create_future()
        if self._futures is None:
            self._futures = [future]
        else:
            self._futures.append(future)
        try:
            await future
        except BaseException:
            # A wait that is given up again and again must not leave anything behind.
            if self._futures and future in self._futures:
                self._futures.remove(future)
            raise


def condition_maker() -> Callable[[], Condition]:
    """Makes conditions of the running loop, which none of them has to find."""
    return partial(Condition, asyncio_loop())


log = logging.getLogger("meup_agent.session")


@asynccontextmanager
async def background_tasks() -> AsyncGenerator[TaskGroup]:
    """Open a task group whose tasks end with the block.

    What the block raises leaves it as it was raised, not inside a group (the group never sees it).
    A task that raises cancels the block; its exception leaves as itself, unless the block has one
    of its own to raise; then a defect of the task's goes to the log.
    """
    own: BaseException | None = None
    failed: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except BaseException as error:
                if tasks.cancel_scope.cancel_called and _is_cancellation(error):
                    # A task has failed, and this is the group's own way to end the block.
                    raise
                own = error
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # A defect first, several of them together, and then why the connection ended.
        leaves = list(leaves_of(group))
        defects = [each for each in leaves if not isinstance(each, ConnectionFailed)]
        failed = group if len(defects) > 1 else (defects or leaves)[0]
    if own is not None:
        # Ctrl-C comes to whichever task runs on trio, also in the middle of a parser.
        is_defect = failed is not None and not isinstance(failed, ConnectionFailed)
        if is_defect and not was_interrupted(failed):
            log.error("a background task failed, too", exc_info=failed)
        raise own
    if failed is not None:
        raise failed


def uninterrupted(work: Work) -> Work:
    """Keep Ctrl-C out of a coroutine function and what it calls: the main task gets it.

    Trio raises it in whichever frame runs, also in the middle of a parser, and a connection is then
    neither open nor closed.
    """
    if not runs_on_asyncio():
        import trio

        trio.lowlevel.enable_ki_protection(work)
    return work


def _is_cancellation(error: BaseException) -> bool:
    cancelled = anyio.get_cancelled_exc_class()
    if isinstance(error, BaseExceptionGroup):
        # A nursery of trio's own raises its cancellations in a group.
        return cast("BaseExceptionGroup[BaseException]", error).subgroup(cancelled) is not None
    return isinstance(error, cancelled)


def is_cancelled_here() -> bool:
    """True if the current task is being cancelled by a scope around it."""
    return anyio.current_effective_deadline() == -math.inf


# --- base ---

HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds for name, TCP, TLS and WebSocket handshake together: a gateway that needs longer is
overloaded, and the next attempt does better."""

PING_INTERVAL: Final = 20.0
"""Seconds between pings. Gateways never ping and never time a peer out (PROTOCOL 2)."""

PING_DEADLINE: Final = 20.0
"""Seconds for the pong: after twice 20 s of silence at most, a dead connection is known as dead."""

CLOSE_TIMEOUT: Final = 1.0
"""Seconds that the other end gets to answer a close frame: it has had everything we had to say."""

DIALECT_HEADER: Final = "MEUP-Protocol"
"""The header in which both ends of a handshake name their dialect. A gateway whose answer has it
took the token of the handshake, and needs no join frame (PROTOCOL 2 and 3)."""

RESUME_HEADER: Final = "MEUP-Resume"
"""In a handshake, ``1``: each envelope is to say its number, so that one can come back to it
(PROTOCOL 6)."""

ACK_HEADER: Final = "MEUP-Ack"
"""In a handshake, ``1`` beside the one above: of what the connection sent, a short frame with the
id and the number is enough (PROTOCOL 6)."""

OBSERVE_HEADER: Final = "MEUP-Observe"
"""In a handshake, ``1``: the connection only looks on. A gateway that knows observers says it back;
from any other it would be a second connection of its participant (PROTOCOL 3)."""

BESIDE_HEADER: Final = "MEUP-Beside"
"""In a handshake, ``1``: the connection takes part beside the one that answers for its participant.
A gateway that knows such connections says it back (PROTOCOL 3)."""

LAST_SEEN_HEADER: Final = "Last-Event-ID"
"""In a handshake: the number of the last envelope that we got (PROTOCOL 6)."""

MAX_CLOSE_REASON_BYTES: Final = 123
"""A control frame carries 125 bytes, two of which are the code (RFC 6455 section 5.5)."""

STREAM_MARK: Final = b"#"
"""The first byte of a frame of a stream; no envelope begins with it."""

ABNORMAL: Final = 1006
"""The close code of a connection that ended without a close frame."""

INVALID: Final = 1007
"""The close code for a message that is not what it should be, for example no UTF-8."""

TOO_BIG: Final = 1009
"""The close code for a message above the receiver's limit."""

_SENDABLE_CODES = frozenset({1000, 1001, 1002, 1003, *range(1007, 1015), *range(3000, 5000)})
# RFC 6455 section 7.4: the others are reserved, or stand for "there was none".


class CloseInfo(msgspec.Struct, frozen=True):
    """The end of a connection.

    Attributes:
        code: The WebSocket close code of the end that closed first; 1006 where neither did.
        reason: The words that came with it, often none.
        local: This end closed first, by :meth:`Transport.aclose` or because the other broke a
            rule or was silent for too long. So 1009 says whose message was too large: ours,
            or (local) the other's.
    """

    code: int
    reason: str = ""
    local: bool = False

    def error(self) -> TransportClosed:
        """The exception for a frame that is sent after it."""
        return TransportClosed(self.code, self.reason)


class Transport(Protocol):
    """One connection. It is used by the task that opened it and by tasks below that one."""

    async def send(self, frame: bytes) -> None:
        """Send one message; waits while the other end does not keep up.

        A frame of a stream, which begins with :data:`STREAM_MARK`, is sent as a binary message, any
        other as text. Any number of tasks may send; messages stay whole. A cancelled send has sent
        all of the message, or nothing, or broken the connection: never half a message that another
        follows. A successful send says that the message is on its way, not that it arrived.

        Args:
            frame: UTF-8 JSON, or a frame of a stream. Its size is the receiver's to judge; a sender
                had better stay below the limit, since a reset may swallow the close frame that
                says 1009.

        Raises:
            TransportClosed: The connection has ended.
            NotExpressible: This transport carries no frames of streams.
        """
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over messages, text or binary, as the bytes that came.

        Their encoding is not checked here, because a bad byte must cost one message and not the
        connection. One task may iterate at a time.
        """
        ...

    async def __anext__(self) -> bytes:
        """Wait for the next message; a cancelled wait loses none.

        Raises:
            StopAsyncIteration: The connection has ended, cleanly or not, and everything that
                arrived before was handed out.
        """
        ...

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection; when this returns, it is closed.

        It takes :data:`CLOSE_TIMEOUT` and a little, whatever the other end does and even if the
        caller is cancelled. On a closed connection it does nothing.

        Args:
            code: A WebSocket close code that may be sent.
            reason: For a person to read, cut at :data:`MAX_CLOSE_REASON_BYTES`.

        Raises:
            ValueError: The code must not stand in a close frame.
        """
        ...

    async def abort(self) -> None:
        """End the connection at once, without a close frame: what is on its way may be lost."""
        ...

    @property
    def closed(self) -> CloseInfo | None:
        """The end of the connection; ``None`` while it is open or still closing."""
        ...

    @property
    def response_headers(self) -> Mapping[str, str]:
        """The headers of the other end's answer in the handshake, by names in lower case."""
        ...


class Connector(Protocol):
    """A callable that opens one connection for the length of a block."""

    def __call__(self, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Transport]:
        """Open a connection; leaving the block closes it.

        The block is entered and left by the same task. Cancelling either leaves nothing behind.
        An exception of the block leaves it as it was raised.

        Args:
            headers: Of the handshake, for example ``Authorization``.

        Raises:
            HandshakeRefused: The gateway answered with an HTTP status.
            CannotConnect: There is no gateway at the address, or none that can be spoken to.
            ConfigurationError: A header cannot be sent as it is.
        """
        ...


def checked_close(code: int, reason: str) -> CloseInfo:
    """The close that this end is about to make, checked and cut to what a close frame holds."""
    if code not in _SENDABLE_CODES:
        raise ValueError(f"{code} cannot be sent as a close code; use 1000, or 3000 to 4999")
    cut = reason.encode(errors="replace")[:MAX_CLOSE_REASON_BYTES]
    return CloseInfo(code, cut.decode(errors="ignore"), local=True)
