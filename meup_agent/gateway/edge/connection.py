"""One participant's connection, whatever carries it: its join, pace, flow and end.

An edge (:mod:`~meup_agent.gateway.edge.listener`, :mod:`~meup_agent.gateway.edge.mount`) turns
what it reads into whole messages, and writes what is for the other end. When to read, what a
message does, and why the connection ends, is decided here.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from meup_agent.gateway.auth import BAD_REQUEST, UNAUTHORIZED, Identity, NotAdmitted, TokenUse
from meup_agent.gateway.edge.handshake import (
    HEADER_SECONDS,
    Handshake,
    admit_join,
    is_join_frame,
    may_join_by_header,
    repeats_join,
)
from meup_agent.gateway.frame_queue import GatewayMember
from meup_agent.gateway.logs import log, quote
from meup_agent.protocol.dialects import STREAMING
from meup_agent.protocol.space.link import FrameFormat, Place
from meup_agent.protocol.space.state.grants import UNCONFIGURED
from meup_agent.transport.base import ABNORMAL, MAX_CLOSE_REASON_BYTES, TOO_BIG

if TYPE_CHECKING:
    from uvicorn.protocols.http.flow_control import FlowControl

    from meup_agent.gateway.runtime import GatewayRuntime
    from meup_agent.protocol.space.owner import SpaceServer


# --- flow control of a connection ---
# Until when it is not read, and what waits to be sent.
#
# A `SendQueue` is the socket that an ASGI server does not have.

HIGH_WATER_BYTES: Final = 64 * 1024
"""Bytes that may wait to be sent before the queue above is paused, as asyncio has it for a socket:
beyond that they are counted and bounded there."""

LOW_WATER_BYTES: Final = HIGH_WATER_BYTES // 4
"""Bytes at which a reader no longer counts as behind."""

STALL_SECONDS: Final = 60.0
"""Longest time for which the other end may take nothing of what is for it, where no ping tells that
it is there."""


class SendQueue:
    """Frames that one ASGI connection still has to send; pauses the queue above when it is full."""

    joins_frames = True

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause = pause
        self._resume = resume
        self.closed = anyio.Event()
        self.code = 0
        self.reason = ""
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._sending = 0
        self._paused = False
        self._changed = anyio.Event()

    def write(self, packed: bytes) -> None:
        """Queue something to send."""
        if self.closed.is_set():
            return
        self._frames.append(packed)
        self._bytes += len(packed)
        self._changed.set()
        if self._bytes > HIGH_WATER_BYTES and not self._paused:
            self._paused = True
            self._pause()

    def close(self, code: int, reason: str) -> None:
        """End after what is queued."""
        if not self.closed.is_set():
            self.code, self.reason = code, reason
            self.closed.set()
            self._changed.set()

    async def take(self, seconds: float | None = None) -> bytes | None:
        """The next to send, as soon as there is something; ``None``: it has ended.

        After so many seconds of silence it is empty. What was taken counts as being sent until this
        is called again.
        """
        self._bytes -= self._sending
        self._sending = 0
        if self._paused and self._bytes <= LOW_WATER_BYTES:
            self._paused = False
            self._resume()
        if not self._frames:
            with anyio.move_on_after(seconds):
                while not self._frames:
                    if self.closed.is_set():
                        return None
                    self._changed = anyio.Event()
                    await self._changed.wait()
        if not self._frames:
            return b""
        packed = self._frames.popleft()
        self._sending = len(packed)
        return packed


CHUNK_WRITER: Final = "meup.chunk_writer"
"""Name of the :class:`ChunkWriter` in the state of an HTTP request, where its server has one."""


class ChunkWriter:
    """Writes parts of a response, once begun, without the turns that ASGI takes for each.

    For what many connections get alike: it is framed once, and each write costs a tenth of a
    message of ASGI. The response has no length, and its request is a ``GET`` of HTTP/1.1, so that
    chunks are what its body consists of.
    """

    def __init__(self, transport: asyncio.WriteTransport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow

    def write(self, chunk: bytes) -> bool:
        """Write what :func:`frame_chunk` made; false if nothing is taken now."""
        if self._flow.write_paused or self._transport.is_closing():
            return False
        self._transport.write(chunk)
        return True


def frame_chunk(data: bytes) -> bytes:
    """A part of a body as a chunk (RFC 9112 section 7.1); none is empty, which would end it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class ReadTransport(Protocol):
    """The transport that a gate opens and closes."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool: ...

    def abort(self) -> None:
        """End it at once."""
        ...


class DecryptedReads:
    """Resumes the reading of a connection, with what came over TLS before it was paused.

    Aiofastnet looks at that only when more comes, which a sender who waits for an answer does not
    send.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, wire: ReadTransport) -> None:
        self._loop = loop
        self._wire = wire
        self._read: Callable[[], None] | None = getattr(wire, "_do_read", None)

    def resume(self) -> None:
        """Read again."""
        self._wire.resume_reading()
        if self._read is not None:
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        # Where it was paused again, this reads nothing.
        if self._read is not None and not self._wire.is_closing():
            try:
                self._read()
            except Exception:
                # The same records would have broken the connection, had they come a moment later.
                self._wire.abort()


class ReadGate:
    """Keeps a connection from being read until a time, until the next turn, or while it is held.

    The one mechanism for this: what comes too fast stays in the socket, and in the end with its
    sender; nothing of it is lost. ``reopened`` is called before the socket is read again, and may
    close the gate again.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, wire: ReadTransport, reopened: Callable[[], None]
    ) -> None:
        self.open = True
        self._loop = loop
        self._wire = wire
        self._reopened = reopened
        self._held = False
        self._timer: asyncio.Handle | None = None
        self._until = 0.0
        self._reads = True
        self._resume = DecryptedReads(loop, wire).resume

    def pause(self, seconds: float) -> None:
        """Read nothing for a time, and not before the next turn of the loop.

        Of several times the longest counts.
        """
        until = self._loop.time() + seconds
        if self._timer is not None:
            if until <= self._until:
                return
            self._timer.cancel()
        self._until = until
        self._timer = (
            self._loop.call_later(seconds, self._due)
            if seconds > 0.0
            else self._loop.call_soon(self._due)
        )
        self._change()

    def release(self) -> None:
        """Read again in the next turn, whatever the time; what is held stays so."""
        if self._timer is not None:
            self._timer.cancel()
            self._until = 0.0
            self._timer = self._loop.call_soon(self._due)

    def hold(self, held: bool) -> None:
        """Read nothing until told otherwise."""
        self._held = held
        self._change()

    def stop(self) -> None:
        """Forget the time: the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        self._change()

    def _change(self) -> None:
        opens = not self._held and self._timer is None
        if opens and not self.open:
            self.open = True
            # What was read before the gate closed comes first, and may close it again.
            self._reopened()
        else:
            self.open = opens
        if self.open is not self._reads and not self._wire.is_closing():
            self._reads = self.open
            if self._reads:
                self._resume()
            else:
                self._wire.pause_reading()


# --- connection ---

FRAMES_PER_TURN: Final = 128
"""Frames of a connection that are taken in a turn of the loop, before the others have theirs; each
KiB of them counts as one more. A message takes some 30 µs, so a turn some milliseconds."""


_JOINED: Final = {
    Place.ANSWERING: "joined",
    Place.BESIDE: "joined beside",
    Place.OBSERVING: "observes",
}


class MemberConnection(ABC):
    """Joins its participant to a space, hands in its messages, and writes what is for it."""

    joins_frames: bool

    def __init__(self, runtime: GatewayRuntime, handshake: Handshake) -> None:
        self._runtime = runtime
        self._limits = runtime.limits
        self._loop = runtime.loop
        self._handshake = handshake
        self._packers: tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]] = (bytes, bytes)
        """Make of an envelope's frame, and of a stream's, what is written."""
        self._member: GatewayMember | None = None
        self._identity: Identity | None = None
        self.token_use = (
            None if handshake.identity is None else TokenUse(handshake.digest, handshake.identity)
        )
        self._ended_by: int | None = None
        self._first_message = True
        self._timer: asyncio.TimerHandle | None = None
        self._turn_left = FRAMES_PER_TURN
        self._held_up = 0.0
        # Short enough to hear that the other end is alive.
        self._longest_pause = runtime.limits.ping_deadline / 2

    @property
    def participant(self) -> str | None:
        return self._identity.participant if self._identity is not None else None

    # --- what an edge does ------------------------------------------------------------------

    @abstractmethod
    def write(self, packed: bytes) -> None:
        """Write frames; what is not taken at once waits in the buffer of the connection."""

    @abstractmethod
    def _send_close(self, code: int, reason: str) -> None:
        """Send a close frame after what was written."""

    @abstractmethod
    def _drop_transport(self) -> None:
        """End the connection at once."""

    def _read_on(self) -> None:  # noqa: B027 - only an edge that reads ahead has something to do
        """Take what was read before the gate closed."""

    # --- what an edge calls -----------------------------------------------------------------

    def _connected(self, transport: ReadTransport, address: str, peer: str) -> None:
        """Join, or wait for the join frame; ``peer`` is the address with its port, for the log."""
        self._gate = ReadGate(self._loop, transport, self._reopened)
        self._address = address
        self._peer = peer
        self._runtime.opened(self)
        identity, dialect = self._handshake.identity, self._handshake.dialect
        if identity is not None and dialect is not None and self._handshake.complete:
            self._join(TokenUse(self._handshake.digest, identity), dialect)
        elif may_join_by_header(self._handshake, self._runtime):
            soon = min(HEADER_SECONDS, self._limits.join_timeout)
            self._timer = self._loop.call_later(soon, self._join_by)
        else:
            self._timer = self._loop.call_later(self._limits.join_timeout, self._too_late)

    def _count_frame(self, size: int) -> None:
        """Count what was read in this turn of the loop; the rest has to wait for the next."""
        self._turn_left -= 1 + (size >> 10)
        if self._turn_left <= 0:
            self._turn_left = FRAMES_PER_TURN
            self._gate.pause(0.0)

    def _handle_message(self, message: bytes) -> None:
        """Take a whole message: the join frame, or an envelope."""
        first, self._first_message = self._first_message, False
        member = self._member
        if (
            member is None
            and may_join_by_header(self._handshake, self._runtime)
            and not is_join_frame(message)
        ):
            self._join_by()
            member = self._member
        if member is None:
            if self._ended_by is None:
                self._join_by(message)
        elif not (first and self._repeats_join(message, member.participant)):
            wait = self._space.receive(member, message)
            if wait and self._ended_by is None:
                self._read_later(wait)

    def _refuse_message(self, code: int, said: str) -> None:
        """Close the connection for a message that is not taken."""
        if code == TOO_BIG and self._member is not None:
            most = self._limits.max_message_bytes
            told = {"limit": "max_message_bytes", "max": most}
            self._space.refuse_frame(self._member, "too_large", said, **told)
        self._end(code, said)

    def _disconnected(self, code: int) -> None:
        """Leave the space: the connection has ended, with this code unless it was closed before."""
        if self._timer is not None:
            self._timer.cancel()
        self._gate.stop()
        if self._ended_by is None:
            self._ended_by = code
        self._leave()
        if self._member is not None:
            self._member.lost()
        self._runtime.lost(self)
        self._log("%s: connection ended (code %d)", self._name(), self._ended_by)

    def pause_writing(self) -> None:
        """Hold frames back: no more can be written for now."""
        if self._member is not None:
            self._member.pause()

    def resume_writing(self) -> None:
        """Write what was held back."""
        if self._member is not None:
            self._member.resume()

    # --- what its member and its gateway call -----------------------------------------------

    def close(self, code: int, reason: str) -> None:
        """Send a close frame, and drop the connection if the other end does not answer it."""
        if self._ended_by is not None:
            return
        self._ended_by = code
        if self._member is not None:
            self._runtime.counters.closed[code] += 1
            # Later, since the space may be going through all of its members.
            self._loop.call_soon(self._leave)
        # The other end's close frame is behind whatever it has sent too fast.
        self._gate.release()
        said = reason.encode()[:MAX_CLOSE_REASON_BYTES].decode(errors="ignore")
        self._send_close(code, said)
        self._drop_soon()

    def shut(self, code: int, reason: str) -> None:
        """Close the connection, joined or not."""
        if self._member is not None:
            self._member.close(code, reason)
        else:
            self.close(code, reason)

    def hold(self, held: bool) -> None:
        """Read nothing of the connection, or read again."""
        self._gate.hold(held)

    def abort(self) -> None:
        """Drop the connection, as a killed process does: nothing more is written out."""
        self._ended_by = self._ended_by or ABNORMAL
        if self._member is not None:
            self._member.closed = True
        self._drop_transport()

    # --- pace -------------------------------------------------------------------------------

    def _reopened(self) -> None:
        """Go on with what was read, unless a reader does not keep up with this loud sender."""
        member, wait = self._member, 0.0
        if member is not None and self._ended_by is None:
            wait = self._space.owner.backpressure_wait(member.participant)
        # Sooner or later it is read all the same, to hear that the other end is alive.
        if wait and self._held_up < self._longest_pause:
            self._held_up += wait
            self._gate.pause(wait)
            return
        self._held_up = 0.0
        self._read_on()

    def _read_later(self, seconds: float) -> None:
        self._gate.pause(min(seconds, self._longest_pause))

    # --- joining ----------------------------------------------------------------------------

    def _join_by(self, message: bytes | None = None) -> None:
        """Join as a join frame says, or as the handshake, which named no space."""
        try:
            use, dialect = admit_join(message, self._handshake, self._runtime, self._address)
        except NotAdmitted as refused:
            self._not_admitted(refused)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._join(use, dialect)

    def _repeats_join(self, message: bytes, participant: str) -> bool:
        """True for a first message of a joined connection that has nothing more to do."""
        try:
            return repeats_join(message, participant, self._space.name)
        except NotAdmitted as refused:
            self._end(refused.close_code, str(refused))
            return True

    def _join(self, use: TokenUse, dialect: str) -> None:
        # The configuration may have been read again since its handshake.
        if not self._runtime.tokens.still_hold(use):
            self._not_admitted(NotAdmitted(UNAUTHORIZED, UNCONFIGURED))
            return
        try:
            # It may have gone meanwhile.
            self._runtime.check_open(use.identity.space)
        except NotAdmitted as refused:
            self._not_admitted(refused)
            return
        self.token_use = use
        handshake, identity = self._handshake, use.identity
        self._identity, place = identity, handshake.place
        self._space: SpaceServer = self._runtime.spaces[identity.space]
        pack, pack_frame = self._packers
        numbered, last_seen, acked = handshake.resume
        frames = pack_frame if dialect in STREAMING else None
        form = FrameFormat(dialect, numbered, acked, pack, frames)
        self._member = GatewayMember(
            self._runtime, identity, form, self, last_seen=last_seen, place=place
        )
        older = self._space.delivery.member(identity.participant)
        replaces = older is not None and place is Place.ANSWERING
        more = " in place of an older connection" if replaces else ""
        log.info("%s: %s from %s%s", self._name(), _JOINED[place], self._peer, more)
        self._space.join(self._member)

    def _too_late(self) -> None:
        timeout = self._limits.join_timeout
        late = f"no join frame came within {timeout:g} seconds (join_timeout)"
        self._not_admitted(NotAdmitted(BAD_REQUEST, late))

    def _not_admitted(self, refused: NotAdmitted) -> None:
        self._runtime.counters.not_admitted[refused.close_code] += 1
        self._end(refused.close_code, str(refused))

    # --- ending -----------------------------------------------------------------------------

    def _end(self, code: int, reason: str) -> None:
        self._log("%s: closed with %d: %s", self._name(), code, quote(reason))
        self.shut(code, reason)

    def _drop_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._limits.close_timeout, self._drop_transport)

    def _leave(self) -> None:
        member = self._member
        if member is not None:
            member.closed = True
            self._space.leave(member)

    def _log(self, said: str, *values: object) -> None:
        """Log events of a member, and at a bounded rate those of strangers."""
        write = log.info if self._member is not None else self._runtime.refusals.info
        write(said, *values)

    def _name(self) -> str:
        if self._identity is None:
            return f"a connection from {self._peer}"
        return f"{quote(self._identity.participant)} in {quote(self._identity.space)}"


class CarriedConnection(MemberConnection):
    """A connection whose messages something else carries, one at a time.

    Args:
        runtime: The gateway.
        handshake: Its handshake.
        address: The other end's address; empty: it has none.
        peer: The other end, for the log.
    """

    joins_frames = False

    def __init__(
        self, runtime: GatewayRuntime, handshake: Handshake, address: str, peer: str
    ) -> None:
        super().__init__(runtime, handshake)
        self._address = address
        self._peer = peer
        self._queue = SendQueue(self.pause_writing, self.resume_writing)
        self._scope = anyio.CancelScope()
        self._readable = anyio.Event()
        self._readable.set()
        self._code = ABNORMAL

    async def run(self) -> None:
        """Join, and serve until one end closes."""
        self._connected(self, self._address, self._peer)
        most = self._limits.max_message_bytes
        try:
            with self._scope:
                await self._accept()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._send, self._queue)
                    while (message := await self._receive()) is not None:
                        self._count_frame(len(message))
                        if self._ended_by is None and len(message) > most:
                            self._refuse_message(
                                TOO_BIG, f"a message may have at most {most} bytes"
                            )
                        elif self._ended_by is None:
                            self._handle_message(message)
                        if not self._readable.is_set():
                            await self._readable.wait()
                    tasks.cancel_scope.cancel()
        finally:
            self._disconnected(self._code)

    # --- what carries it --------------------------------------------------------------------

    async def _accept(self) -> None:
        """Answer the handshake."""

    @abstractmethod
    async def _receive(self) -> bytes | None:
        """The next message; ``None``: the connection has ended, and its code is noted."""

    @abstractmethod
    async def _send(self, queue: SendQueue) -> None:
        """Send what is queued, and then close as the queue says."""

    # --- what a connection does -------------------------------------------------------------

    def write(self, packed: bytes) -> None:
        """Queue a frame."""
        self._queue.write(packed)

    def pause_reading(self) -> None:
        """Take no more messages."""
        self._readable = anyio.Event()

    def resume_reading(self) -> None:
        """Take messages again."""
        self._readable.set()

    def is_closing(self) -> bool:
        """True if there is nothing to be read any more."""
        return False

    def _send_close(self, code: int, reason: str) -> None:
        self._queue.close(code, reason)

    def _drop_transport(self) -> None:
        self._scope.cancel()
