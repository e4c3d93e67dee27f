"""The message port's WebSocket connections, whose frames picows reads.

Framing that the gateway does itself stands below them: joining fragments, and packing once for all.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final, cast

from picows import WSCloseCode, WSFrame, WSListener, WSTransport

from meup_agent.gateway.auth import BAD_REQUEST, NotAdmitted, TokenUse
from meup_agent.gateway.edge.connection import LOST, MemberConnection
from meup_agent.gateway.edge.handshake import MAX_JOIN_BYTES, Handshake
from meup_agent.gateway.edge.listener import (
    MEMBER_READ_BYTES,
    STRANGER_READ_BYTES,
    address_of,
    peer_of,
)
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.dialects import STREAMING
from meup_agent.protocol.space.allowance import TokenBucket
from meup_agent.protocol.space.link import FrameFormat
from meup_agent.transport.base import TOO_BIG

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

PROTOCOL_ERROR: Final = 1002

NORMAL: Final = 1000

CLOSED_STRANGER_SECONDS: Final = 1.0
"""Seconds between two reads of a connection that was closed before it joined and still sends."""

_MICROSECONDS: Final = 1_000_000


class WebSocketConnection(WSListener, MemberConnection):
    """A connection at the message port."""

    joins_frames = True

    def __init__(self, runtime: GatewayRuntime, handshake: Handshake) -> None:
        MemberConnection.__init__(self, runtime, handshake)
        # Strangers get room for a join frame, members for their messages.
        self._assembler = Assembler(MAX_JOIN_BYTES)
        self.read_bytes = STRANGER_READ_BYTES
        self._full = False
        self._ping: bytes | None = None
        # What was read from the socket before its gate closed: less than one read.
        self._unhandled: deque[tuple[int, bool, bool, bytes]] = deque()
        self._join_frames = self._join_bytes = 0
        # Of frames that are not a whole message; most connections never send one.
        self._pieces: TokenBucket | None = None

    # --- what picows calls ------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Join, or wait for the join frame."""
        self._transport = transport
        self._wire = transport.underlying_transport
        self._connected(self._wire, address_of(self._wire), peer_of(self._wire))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Take a frame now, or when the connection is read again."""
        # Not its `.value`: that is two calls of functions in Python for each frame.
        kind: int = frame.msg_type  # type: ignore[assignment]  # compares as an int
        data = frame.get_payload_as_bytes()
        reserved = bool(frame.rsv1 or frame.rsv2 or frame.rsv3)
        if self._gate.open:
            self._handle(kind, bool(frame.fin), reserved, data)
        elif self._ended_by is None or kind == CLOSE:
            self._unhandled.append((kind, bool(frame.fin), reserved, data))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """Leave the space."""
        self._unhandled.clear()
        code = LOST if self._ended_by is not None else self._closed_by_picows(transport)
        self._disconnected(code)

    def pause_writing(self) -> None:
        """Hold frames back until the socket takes more."""
        self._full = True
        MemberConnection.pause_writing(self)

    def resume_writing(self) -> None:
        """Write what was held back."""
        self._full = False
        if self._ping is not None:
            self._answer_ping(self._ping)
        MemberConnection.resume_writing(self)

    # --- what a connection does with its socket ---------------------------------------------

    def write(self, packed: bytes) -> None:
        # After a close frame nothing may follow; picows sends one by itself in some cases.
        if self._ended_by is None and not self._transport.is_close_frame_sent:
            self._wire.write(packed)

    def _frame_format(self, dialect: str) -> FrameFormat:
        frames = pack_binary if dialect in STREAMING else None
        numbers = self._handshake.resumes, self._handshake.acked
        return FrameFormat(dialect, *numbers, pack_text, frames)

    def _send_close(self, code: int, reason: str) -> None:
        self._transport.send_close(cast("WSCloseCode", code), reason)

    def _drop_transport(self) -> None:
        self._transport.disconnect(False)

    def _join(self, use: TokenUse, dialect: str) -> None:
        self._assembler = Assembler(self._limits.max_message_bytes)
        self.read_bytes = MEMBER_READ_BYTES
        super()._join(use, dialect)

    # --- frames -----------------------------------------------------------------------------

    def _handle(self, kind: int, final: bool, reserved: bool, data: bytes) -> None:
        """Take a frame: a control frame, or a fragment of a message."""
        self._count_frame(len(data))
        if kind == CLOSE:
            self._answer_close(int.from_bytes(data[:2]))
            return
        if self._ended_by is not None and self._member is None:
            # It was closed, and has nothing to say but that it closes as well.
            self._gate.pause(CLOSED_STRANGER_SECONDS)
            return
        if self._ended_by is not None or not final or kind in (PING, PONG):
            self._count_piece()
        if self._ended_by is not None or (self._member is None and self._over_budget(len(data))):
            return
        if kind == PING:
            self._answer_ping(data)
        elif reserved:
            self._end(PROTOCOL_ERROR, "no extension was agreed on")
        elif kind != PONG:
            try:
                message = self._assembler.add(kind, final, data)
            except BadMessage as bad:
                self._refuse_message(bad.code, str(bad))
            else:
                if message is not None:
                    self._handle_message(message)

    def _read_on(self) -> None:
        while self._unhandled and self._gate.open:
            self._handle(*self._unhandled.popleft())

    def _count_piece(self) -> None:
        """Count a frame that is not a whole message: control, a fragment, or one too late."""
        limits, now = self._limits, round(self._loop.time() * _MICROSECONDS)
        if self._pieces is None:
            self._pieces = TokenBucket(limits.frames_per_second, limits.frames_burst)
        wait = self._pieces.consume(now)
        if wait:
            self._read_later(wait)

    def _over_budget(self, size: int) -> bool:
        """True if a connection has sent more than a join takes; it is closed then."""
        most = self._limits.join_frames
        self._join_frames += 1
        self._join_bytes += size
        if self._join_frames > most:
            said = f"no join frame stands in the first {most} frames (join_frames)"
            self._not_admitted(NotAdmitted(BAD_REQUEST, said))
        elif self._join_bytes > MAX_JOIN_BYTES:
            self._end(TOO_BIG, f"a join may have at most {MAX_JOIN_BYTES} bytes")
        return self._ended_by is not None

    def _read_later(self, seconds: float) -> None:
        # Of a sender that far ahead, what was read is taken at once, and then it waits.
        if seconds <= self._longest_pause or not self._unhandled:
            super()._read_later(seconds)

    def _answer_ping(self, payload: bytes) -> None:
        """Answer a ping; while the socket takes no more, only the last (RFC 6455 section 5.5.3).

        Otherwise a peer that pings and does not read would fill the memory with answers.
        """
        self._ping = payload if self._full else None
        if not self._full and self._ended_by is None and not self._transport.is_close_frame_sent:
            self._transport.send_pong(payload)

    # --- ending -----------------------------------------------------------------------------

    def _answer_close(self, code: int) -> None:
        """Finish the closing handshake, whichever end began it."""
        if self._ended_by is None:
            # Some codes never stand in a close frame (RFC 6455 section 7.4).
            allowed = code not in (1004, 1005, LOST, 1015) and code < 5000
            self._ended_by = (int(code) or NORMAL) if allowed else PROTOCOL_ERROR
            if not self._transport.is_close_frame_sent:
                self._transport.send_close(cast("WSCloseCode", self._ended_by))
            self._drop_soon()
        self._leave()
        self._transport.disconnect()

    def _closed_by_picows(self, transport: WSTransport) -> int:
        """The code with which picows closed, for broken rules or a missing pong; 1006 if none."""
        sent = transport.close_handshake.sent if transport.is_close_frame_sent else None
        if sent is None:
            return LOST
        code = cast("int", sent.code)
        self._runtime.counters.closed[code] += 1
        return code


# --- framing that picows leaves to us ---


class BadMessage(Exception):
    """Fragments that make no message that is taken; ``code`` is the close code that says why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Assembler:
    """Joins the fragments of a connection's messages, and bounds what they come to.

    Text and binary frames are the same here: a message is checked as UTF-8 when it is decoded.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: bytearray | None = None

    def add(self, opcode: int, final: bool, data: bytes) -> bytes | None:
        """Take a data frame; the whole message if this completes one.

        Raises :exc:`BadMessage`, and keeps nothing, where the frame does not follow from those
        before it, or the message has become too large.
        """
        continues = opcode == CONTINUATION
        if continues is (self._parts is None):
            raise BadMessage(PROTOCOL_ERROR, "the fragments of a message do not follow each other")
        if len(data) + len(self._parts or b"") > self._max_bytes:
            self._parts = None
            raise BadMessage(TOO_BIG, f"a message may have at most {self._max_bytes} bytes")
        if final and self._parts is None:
            return data
        self._parts = self._parts or bytearray()
        self._parts += data
        if not final:
            return None
        message, self._parts = bytes(self._parts), None
        return message


def _pack(opcode: int, payload: bytes) -> bytes:
    """A whole message as a server sends it: one frame, not masked (RFC 6455 section 5.2)."""
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, size)) + payload
    if size < 1 << 16:
        return bytes((0x80 | opcode, 126)) + size.to_bytes(2) + payload
    return bytes((0x80 | opcode, 127)) + size.to_bytes(8) + payload


pack_text: Final = partial(_pack, TEXT)
pack_binary: Final = partial(_pack, BINARY)
