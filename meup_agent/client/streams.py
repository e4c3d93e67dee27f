"""Streams: data in frames beside the messages of a space, written by one participant for others.

A writer is a block, and its stream ends with the block: ``complete`` where the block ended well,
``cancelled`` with the reason where its handler was cancelled, ``error`` where it failed. A reader
is an iterator over frames, which ends with the stream and then says how that ended. Streams about a
call of ours, such as a tool's partial result, are read beside the call.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from meup_agent.client.messages import (
    Outbound,
    Snapshot,
    awaited,
    cause_of_leaving,
    names,
    pass_whole,
    release_slot,
    shown,
)
from meup_agent.errors import (
    HandlerCancelled,
    NotSent,
    Refused,
    RequestTimeout,
    StreamEnded,
    UsageError,
    printable,
)
from meup_agent.protocol.dialects import STREAMING
from meup_agent.protocol.exchange import OwnStream, StreamBuffer, StreamEnd
from meup_agent.protocol.exchange.streams import DISCONNECTED, ERROR
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import MAX_FRAME_BYTES
from meup_agent.protocol.wire.streams import (
    CANCELLED,
    COMPLETE,
    StreamInfo,
    build_request,
    build_transfer,
    build_write,
    write_frame,
)
from meup_agent.session.outbox import checked_timeout
from meup_agent.session.session import refusal_in
from meup_agent.transport.base import Condition, background_tasks, is_cancelled_here

if TYPE_CHECKING:
    from meup_agent.protocol.wire.payloads import JsonObject
    from meup_agent.session import Session


# --- streams ---

log = logging.getLogger("meup_agent.client")

OPEN_SECONDS: Final = 10.0
"""Wait for the gateway's answer to a request for a stream."""


T = TypeVar("T")


class StreamReader:
    """The frames of one stream, each as the bytes that were sent; an async iterator.

    It ends with the stream, after the last frame that came. A reader that is slower than the stream
    misses the oldest frames (of more than 1,024, or 4 MiB, that wait), and :attr:`lost` counts
    them. What is sent while our connection is away is missed, too: :attr:`gaps` counts how often.
    """

    def __init__(self, session: Session, queue: StreamBuffer) -> None:
        self._session = session
        self._queue = queue
        self._changed = Condition()
        self._said_lost = 0
        queue.wake = self._changed.notify_all

    @property
    def info(self) -> StreamInfo:
        """The stream: id, owner, writers, targets, and the fields of its request."""
        return self._queue.stream

    @property
    def id(self) -> str:
        """Its id."""
        return self._queue.stream.id

    @property
    def sender(self) -> str:
        """The participant that owns it."""
        return self._queue.stream.owner

    @property
    def about(self) -> str | None:
        """The id of the message that it is about, such as a request; ``None``: of none."""
        about = self._queue.stream.about
        return about[0] if about else None

    @property
    def ended(self) -> StreamEnd | None:
        """Its end (``reason``, ``by``, ``text``); ``None`` while it is open."""
        return self._queue.end

    @property
    def lost(self) -> int:
        """Frames that were missed since this reader, or its connection, was too slow."""
        return self._queue.lost

    @property
    def gaps(self) -> int:
        """Losses of our connection since; frames sent meanwhile were missed uncounted."""
        return self._queue.gaps

    def __aiter__(self) -> Self:
        """The reader itself."""
        return self

    async def __anext__(self) -> bytes:
        """Wait for the next frame; the handler that waits gives its place free."""
        queue = self._queue
        data = queue.take()
        if data is None:
            with release_slot(self._session):
                while (data := queue.take()) is None:
                    if queue.end is not None:
                        raise StopAsyncIteration
                    await self._changed.wait()
        if queue.lost > self._said_lost:
            if not self._said_lost:
                log.warning(
                    "the stream %s of %r is faster than its reader: %d frames were lost so far",
                    self.id,
                    self.sender[:64],
                    self.lost,
                )
            self._said_lost = self.lost
        return data

    def __repr__(self) -> str:
        """The id and the owner."""
        return f"<StreamReader {self.id} of {self.sender!r}>"


OnStream = Callable[[StreamReader], Awaitable[object]]
"""Reads a stream about a call; the call ends when it has returned."""


class StreamWriter:
    """A stream that we write, for the length of a block; :meth:`Space.streams.open` gives one."""

    def __init__(self, session: Session, own: OwnStream, *, beside: bool = False) -> None:
        self._session = session
        self._own = own
        self._id = "" if own.stream is None else own.stream.id
        self._beside = beside  # of an answer: one that none reads is written all the same
        own.wake = self._woken

    @property
    def id(self) -> str:
        """Its id."""
        return self._id

    @property
    def info(self) -> StreamInfo | None:
        """The stream: id, owner, writers, targets, and the fields of its request."""
        return self._own.stream

    @property
    def ended(self) -> StreamEnd | None:
        """Its end (``reason``, ``by``, ``text``); ``None`` while it is open."""
        return self._own.end

    @property
    def gaps(self) -> int:
        """Losses of our connection since; what was on its way then did not arrive."""
        return self._own.gaps

    @awaited
    async def send(self, data: bytes | str) -> None:
        """Send one frame; waits while the connection does not keep up, or is away.

        Boundaries are kept: each frame arrives as one, or not at all. None is sent twice, and none
        is kept for those who come later.

        Args:
            data: The frame; a text is sent as UTF-8.

        Raises:
            StreamEnded: Another participant or the gateway ended the stream, or took our right to
                write it, or it did not survive a reconnect.
            UsageError: The frame is larger than 4 MiB.
        """
        frame = write_frame(self._id, data.encode() if isinstance(data, str) else data)
        if len(frame) > MAX_FRAME_BYTES:
            raise UsageError(
                f"a frame of {len(frame)} bytes cannot be sent: at most {MAX_FRAME_BYTES} are"
                " taken; send it in parts"
            )
        outbox = self._session.outbox
        if self._is_open() and not outbox.has_frame_room:
            with release_slot(self._session):
                while self._is_open() and not outbox.has_frame_room:
                    await outbox.frames_left.wait()
        else:
            await checkpoint()
        if self._is_open():
            outbox.put_frame(self._id, frame)

    @awaited
    async def grant_write(self, participant: str) -> None:
        """Let another participant write frames, too.

        Raises:
            Refused: The gateway did not let it through, for example ``participant_not_found``.
        """
        await self._send_control(kinds.STREAM_GRANT_WRITE, build_write(self._id, participant))

    @awaited
    async def revoke_write(self, participant: str) -> None:
        """Let another participant write no more.

        Raises:
            Refused: The gateway did not let it through.
        """
        await self._send_control(kinds.STREAM_REVOKE_WRITE, build_write(self._id, participant))

    @awaited
    async def transfer(self, new_owner: str) -> None:
        """Make another participant the owner; then the stream does not end with our block.

        Raises:
            Refused: The gateway did not let it through, for example ``participant_not_found``.
        """
        await self._send_control(
            kinds.STREAM_TRANSFER_OWNERSHIP, build_transfer(self._id, new_owner)
        )

    async def _send_control(self, kind: str, payload: JsonObject) -> None:
        if self._is_open():
            sent = self._session.send_message(kind, payload)
            await self._session.taken([sent.id])

    def _is_open(self) -> bool:
        """True if it takes frames; raises StreamEnded if it has ended, but for one beside."""
        end = self._own.end
        if end is None or self._beside:
            return end is None
        raise StreamEnded(
            end.reason,
            end.by,
            f"the stream {self._id} takes no more frames; it was ended by {printable(end.by)}: "
            + printable(str(end)),
        )

    def _woken(self) -> None:
        if self._own.end is not None and self._own.end.by != self._session.me:
            # What was not sent yet would be refused; and whoever waits for room is to be told.
            self._session.outbox.drop_frames(self._id)

    def __repr__(self) -> str:
        """The id."""
        return f"<StreamWriter {self._id}>"


# --- writing ----------------------------------------------------------------------------------


async def _opened(session: Session, own: OwnStream, timeout: float | None) -> None:
    """Wait for the gateway's answer to a request for a stream; raise if it opened none."""
    changed = Condition()
    own.wake = changed.notify_all
    with (
        anyio.move_on_after(timeout),
        release_slot(session),
    ):
        while own.stream is None and own.refusal is None and own.end is None:
            await changed.wait()
    if own.refusal is not None:
        raise refusal_in(own.refusal, "a stream")
    if own.end is not None:
        raise NotSent(f"no stream was opened: {printable(str(own.end))}")
    if own.stream is None:
        raise RequestTimeout(f"the gateway did not open a stream in {timeout:g} s")


# --- reading ----------------------------------------------------------------------------------


async def reading_of_call(
    session: Session,
    on_stream: OnStream | None,
    call: Callable[[Callable[[str], None] | None], Awaitable[T]],
    on_begun: Callable[[str], None] | None = None,
) -> T:
    """Make a call, and read the streams about it meanwhile; all that came is read before its end.

    ``call`` takes a function to tell the id of what it sends, which ``on_begun`` is told, too. What
    a reader raises cancels the call, and leaves as itself.
    """
    if on_stream is None:
        return await call(on_begun)
    # What a reader begins is part of the handler that calls.
    context = copy_context()
    ids: list[str] = []
    queues: list[StreamBuffer] = []
    running = 0
    ended = Condition()

    def begun(envelope_id: str) -> None:
        """Take the streams about a message that is about to be sent."""
        ids.append(envelope_id)
        if on_begun is not None:
            on_begun(envelope_id)
        session.table.streams.expect(envelope_id, start_reading)

    def start_reading(queue: StreamBuffer) -> None:
        nonlocal running
        queues.append(queue)
        running += 1
        name = f"meup stream {queue.stream.id}"
        context.run(lambda: tasks.start_soon(read, queue, name=name))

    async def read(queue: StreamBuffer) -> None:
        nonlocal running
        try:
            await on_stream(StreamReader(session, queue))
        finally:
            running -= 1
            ended.notify_all()

    def take_no_more() -> None:
        """Take no more, and end those that go on although the call has ended."""
        for each in ids:
            session.table.streams.expect_no_more(each)
        for queue in queues:
            queue.finish(StreamEnd(DISCONNECTED, session.me, "the call has ended"))
            queue.close()

    async def wait_read() -> None:
        while running:
            await ended.wait()

    async with background_tasks() as tasks:
        try:
            result = await call(begun)
        except Exception:
            take_no_more()
            await wait_read()
            raise
        finally:
            take_no_more()
        await wait_read()
        return result


# --- verbs for streams ---
# Open one, see those that are open, read them, write in those of others.


class Streams(Snapshot[StreamInfo]):
    """The streams of a space that are open, ours included, oldest first, as ``space.streams``."""

    def __init__(self, session: Session, outbound: Outbound | None) -> None:
        self._session = session
        self._outbound = outbound

    def _all(self) -> Sequence[StreamInfo]:
        return self._session.table.streams.streams

    def open(
        self,
        *,
        to: str | Iterable[str] = (),
        about: str | Iterable[str] = (),
        format: str | None = None,
        content_type: str | None = None,
        description: str | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: float | None = OPEN_SECONDS,
    ) -> AbstractAsyncContextManager[StreamWriter]:
        """Open a stream to other participants, for the length of a block.

        It ends with the block: ``complete``; where the block is cancelled, ``cancelled`` with the
        reason; where it raises, ``error``.

        Args:
            to: The participants that get its frames; empty: every member.
            about: The ids of the messages that it is about, such as a request.
            format: The form of its frames, for example ``jsonl``.
            content_type: Their media type, for example ``text/plain``.
            description: Its purpose, for people.
            metadata: More about it, as JSON values.
            timeout: Seconds to wait for the gateway; ``None``: as long as it takes.

        Returns:
            An async context manager that gives a :class:`StreamWriter`.

        Raises:
            Refused: The gateway did not open it, for example ``target_not_found``.
            RequestTimeout: The gateway did not answer in time.
            NotSent: It was not requested: the gateway's dialect has no streams, or the connection
                has ended for good.
        """
        payload = build_request(
            targets=names(to),
            description=description,
            format=format,
            content_type=content_type,
            metadata=metadata,
        )
        return self._request(payload, names(about), timeout)

    @asynccontextmanager
    async def _request(
        self,
        payload: JsonObject,
        about: tuple[str, ...],
        timeout: float | None,
        *,
        beside: bool = False,
    ) -> AsyncGenerator[StreamWriter]:
        """Open a stream of our own, and close it at the end of the block, saying how it ended.

        One ``beside`` an answer is not needed for it: where it is refused or ended, the block goes
        on.
        """
        if self._outbound is not None:

            async def send(message: Any) -> JsonObject:
                return payloads.as_object(message.payload)

            fields = shown(kind=kinds.STREAM_REQUEST, payload=payload, correlation=about)
            payload = await pass_whole(self._outbound, "send", fields, send)
        session, timeout = self._session, checked_timeout(timeout)
        # Raises what a user can mend.
        session.check_message(kinds.STREAM_REQUEST, payload, correlation=about)
        own, reason, text = OwnStream(), ERROR, ""
        try:
            try:
                if session.dialect not in STREAMING:
                    raise NotSent(
                        f"no stream was requested: the gateway's dialect {session.dialect} has "
                        f"none; {' and '.join(sorted(STREAMING))} have"
                    )
                roster = session.table.roster
                # Otherwise the gateway is left to say whether we may.
                if beside and not roster.is_allowed(session.me, kinds.STREAM_REQUEST, payload):
                    raise NotSent(
                        "no stream was requested: our capabilities do not allow stream/request"
                    )
                own, effects = session.table.request_stream(payload, about, session.now())
                session.apply(effects)
                await _opened(session, own, timeout)
            except (Refused, NotSent, RequestTimeout) as error:
                if not beside:
                    raise
                log.info("%s; what would be streamed goes nowhere", error)
                session.apply(session.table.close_stream(own, reason, text, session.now()))
                own.finish(StreamEnd(ERROR, session.me, str(error)))
            yield StreamWriter(session, own, beside=beside)
            reason = COMPLETE
        except BaseException as error:
            if isinstance(error, HandlerCancelled) or is_cancelled_here():
                reason, text = CANCELLED, str(cause_of_leaving(session))
            raise
        finally:
            session.apply(session.table.close_stream(own, reason, text, session.now()))

    @contextmanager
    def read(self, stream: str | StreamInfo) -> Generator[StreamReader]:
        """Read an open stream from here on, for the length of a block.

        Args:
            stream: One of those that are open, or its id.

        Raises:
            UsageError: It is not open.
        """
        queue = self._session.table.streams.read(_id_of(stream))
        try:
            yield StreamReader(self._session, queue)
        finally:
            queue.close()

    @contextmanager
    def write(self, stream: str | StreamInfo) -> Generator[StreamWriter]:
        """Write in an open stream of another participant, for the length of a block.

        Its owner must have let us (:meth:`StreamWriter.grant_write`). It goes on after the block.

        Args:
            stream: One of those that are open, or its id.

        Raises:
            UsageError: It is not open, or its owner has not let us.
        """
        session = self._session
        session.table.check_may_send(kinds.STREAM_REQUEST)
        own = session.table.streams.write(_id_of(stream))
        try:
            yield StreamWriter(session, own)
        finally:
            session.apply(session.table.close_stream(own, COMPLETE, "", session.now()))


def _id_of(stream: str | StreamInfo) -> str:
    return stream if isinstance(stream, str) else stream.id


def streaming_beside(
    streams: Streams, payload: JsonObject, about: tuple[str, ...]
) -> AbstractAsyncContextManager[StreamWriter]:
    """Open a stream beside an answer, which does not depend on it; for a handler's context."""
    request = streams._request  # pyright: ignore[reportPrivateUsage]
    return request(payload, about, OPEN_SECONDS, beside=True)
