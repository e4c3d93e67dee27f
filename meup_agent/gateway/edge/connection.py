"""One connection at the message port, from its handshake to its end."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol, cast

from picows import WSCloseCode, WSFrame, WSListener, WSTransport

from meup_agent.gateway.admission import (
    BAD_REQUEST,
    MAX_JOIN_BYTES,
    NotAdmitted,
    repeats_join,
)
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.config import Limits
from meup_agent.gateway.edge.framing import (
    CLOSE,
    PING,
    PONG,
    PROTOCOL_ERROR,
    TOO_BIG,
    Assembler,
    BadMessage,
    pack_text,
)
from meup_agent.gateway.edge.handshake import Handshake, read_join_frame
from meup_agent.gateway.edge.listener import (
    MEMBER_READ_BYTES,
    STRANGER_READ_BYTES,
    address_of,
    peer_of,
)
from meup_agent.gateway.edge.read_gate import ReadGate
from meup_agent.gateway.logs import describe_join, log, quote
from meup_agent.gateway.member import GatewayMember, WriteBatcher
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.space.fanout import FrameFormat
from meup_agent.protocol.space.rate_limits import TokenBucket

NORMAL: Final = 1000
LOST: Final = 1006

_NEVER_SAID: Final = frozenset({1004, 1005, LOST, 1015})
_FIRST_UNASSIGNED: Final = 5000

FRAMES_PER_TURN: Final = 128
"""Frames of a connection that are taken in a turn of the loop, before the others have theirs; each
KiB of them counts as one more. A message takes some 30 µs, so a turn some milliseconds."""

CLOSED_STRANGER_SECONDS: Final = 1.0
"""Seconds between two reads of a connection that was closed before it joined and still sends."""

_KIB_BITS: Final = 10
_MICROSECONDS: Final = 1_000_000

MAX_CLOSE_REASON_BYTES: Final = 123
"""A control frame carries 125 bytes, two of which are the code (RFC 6455 section 5.5)."""


class Port(Protocol):
    """What a connection needs of the port it came in at."""

    @property
    def runtime(self) -> GatewayRuntime:
        """The spaces."""
        ...

    @property
    def limits(self) -> Limits:
        """What is taken and waited for."""
        ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The gateway's loop."""
        ...

    @property
    def batcher(self) -> WriteBatcher:
        """Who has something to write in this turn of the loop."""
        ...

    def opened(self, connection: Connection) -> None:
        """Count a connection in."""
        ...

    def lost(self, connection: Connection) -> None:
        """Count a connection out."""
        ...


class Connection(WSListener):
    """Joins its participant to a space, hands their messages in, and writes what is for them.

    Args:
        port: Where it came in.
        handshake: What its handshake said.

    Attributes:
        read_bytes: Bytes that are read of it at a time.
    """

    def __init__(self, port: Port, handshake: Handshake) -> None:
        self._port = port
        self._handshake = handshake
        # Strangers get room for a join frame, members for their messages.
        self._assembler = Assembler(MAX_JOIN_BYTES)
        self.read_bytes = STRANGER_READ_BYTES
        self._member: GatewayMember | None = None
        self._identity: Identity | None = None
        self._ended_by: int | None = None
        self._first_message = True
        self._timer: asyncio.TimerHandle | None = None
        self._full = False
        self._ping: bytes | None = None
        # What was read from the socket before its gate closed: less than one read.
        self._unhandled: deque[tuple[int, bool, bool, bytes]] = deque()
        self._turn_left = FRAMES_PER_TURN
        self._join_frames = self._join_bytes = 0
        # Of frames that are no whole message; most connections never send one.
        self._pieces: TokenBucket | None = None
        self._held_up = 0.0

    @property
    def participant(self) -> str | None:
        """Who has joined by this connection."""
        return self._identity.participant if self._identity is not None else None

    # --- what picows calls ----------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Join, or wait for the join frame."""
        self._transport = transport
        self._wire = transport.underlying_transport
        self._gate = ReadGate(self._port.loop, self._wire, self._reopened)
        self._address = address_of(self._wire)
        self._peer = peer_of(self._wire)
        self._port.opened(self)
        identity = self._handshake.identity
        dialect = self._handshake.dialect
        if identity is not None and dialect is not None and self._handshake.complete:
            self._join(identity, dialect)
        else:
            self._timer = self._port.loop.call_later(self._port.limits.join_timeout, self._late)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Take a frame now, or when the connection is read again."""
        kind: int = frame.msg_type.value
        data = frame.get_payload_as_bytes()
        reserved = bool(frame.rsv1 or frame.rsv2 or frame.rsv3)
        if self._gate.open:
            self._handle(kind, bool(frame.fin), reserved, data)
        elif self._ended_by is None or kind == CLOSE:
            self._unhandled.append((kind, bool(frame.fin), reserved, data))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """Leave the space."""
        if self._timer is not None:
            self._timer.cancel()
        self._gate.stop()
        self._unhandled.clear()
        if self._ended_by is None:
            self._ended_by = self._closed_by_picows(transport)
        self._leave()
        if self._member is not None:
            self._member.lost()
        self._port.lost(self)
        self._log("%s: connection ended (code %d)", self._name(), self._ended_by)

    def pause_writing(self) -> None:
        """Hold frames back until the socket takes more."""
        self._full = True
        if self._member is not None:
            self._member.pause()

    def resume_writing(self) -> None:
        """Write what was held back."""
        self._full = False
        if self._ping is not None:
            self._answer_ping(self._ping)
        if self._member is not None:
            self._member.resume()

    # --- what its member and its port call --------------------------------------------------

    def write(self, packed: bytes) -> None:
        """Write frames to the socket, or to its buffer."""
        # After a close frame nothing may follow; picows sends one by itself in some cases.
        if self._ended_by is None and not self._transport.is_close_frame_sent:
            self._wire.write(packed)

    def close(self, code: int, reason: str) -> None:
        """Send a close frame, and drop the connection if the other end does not answer it."""
        if self._ended_by is not None:
            return
        self._ended_by = code
        # The other end's close frame is behind whatever it has sent too fast.
        self._gate.release()
        said = reason.encode()[:MAX_CLOSE_REASON_BYTES].decode(errors="ignore")
        self._transport.send_close(cast("WSCloseCode", code), said)
        self._drop_soon()

    def shut(self, code: int, reason: str) -> None:
        """Close the connection, joined or not."""
        if self._member is not None:
            self._member.close(code, reason)
        else:
            self.close(code, reason)

    def hold(self, held: bool) -> None:
        """Read nothing from the socket, or read again."""
        self._gate.hold(held)

    def abort(self) -> None:
        """Drop the socket, as a killed process does: no close frame, nothing is written out."""
        self._ended_by = self._ended_by or LOST
        if self._member is not None:
            self._member.closed = True
        self._transport.disconnect(False)

    # --- frames -----------------------------------------------------------------------------

    def _handle(self, kind: int, final: bool, reserved: bool, data: bytes) -> None:
        """Take a frame: a control frame, or a fragment of a message."""
        self._turn_left -= 1 + (len(data) >> _KIB_BITS)
        if self._turn_left <= 0:
            self._turn_left = FRAMES_PER_TURN
            self._gate.pause(0.0)
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
                self._refuse_message(bad)
            else:
                if message is not None:
                    self._take(message)

    def _reopened(self) -> None:
        """Go on with what was read, unless a reader does not keep up with this loud sender."""
        member, wait = self._member, 0.0
        if member is not None and self._ended_by is None:
            wait = self._port.runtime.spaces[self._space].backpressure_wait(member.participant)
        # Sooner or later it is read all the same, to hear that the other end is alive.
        if wait and self._held_up < self._port.limits.ping_deadline / 2:
            self._held_up += wait
            self._gate.pause(wait)
            return
        self._held_up = 0.0
        while self._unhandled and self._gate.open:
            self._handle(*self._unhandled.popleft())

    def _count_piece(self) -> None:
        """Count a frame that is no whole message: a control frame, a fragment, or one too late."""
        limits, now = self._port.limits, round(self._port.loop.time() * _MICROSECONDS)
        if self._pieces is None:
            self._pieces = TokenBucket(limits.frames_per_second, limits.frames_burst)
        wait = self._pieces.consume(now)
        if wait:
            self._read_later(wait)

    def _over_budget(self, size: int) -> bool:
        """Whether a connection has sent more than a join takes; it is closed then."""
        most = self._port.limits.join_frames
        self._join_frames += 1
        self._join_bytes += size
        if self._join_frames > most:
            said = f"no join frame stands in the first {most} frames (join_frames)"
            self._not_admitted(NotAdmitted(BAD_REQUEST, said))
        elif self._join_bytes > MAX_JOIN_BYTES:
            self._end(TOO_BIG, f"a join may have at most {MAX_JOIN_BYTES} bytes")
        return self._ended_by is not None

    def _read_later(self, seconds: float) -> None:
        """Read nothing for a while; short enough to hear that the other end is alive."""
        longest = self._port.limits.ping_deadline / 2
        # Whoever is that far ahead has what was read of it taken at once, and then waits.
        if seconds <= longest or not self._unhandled:
            self._gate.pause(min(seconds, longest))

    def _answer_ping(self, payload: bytes) -> None:
        """Answer a ping; while the socket takes no more, only the last (RFC 6455 section 5.5.3).

        Otherwise whoever pings and does not read would fill the memory with answers.
        """
        self._ping = payload if self._full else None
        if not self._full and self._ended_by is None and not self._transport.is_close_frame_sent:
            self._transport.send_pong(payload)

    # --- joining ----------------------------------------------------------------------------

    def _take(self, message: bytes) -> None:
        first, self._first_message = self._first_message, False
        if self._member is None:
            self._join_by(message)
        elif not (first and repeats_join(message, self._member.participant, self._space)):
            wait = self._port.runtime.spaces[self._space].receive(self._member, message)
            if wait and self._ended_by is None:
                self._read_later(wait)

    def _join_by(self, message: bytes) -> None:
        """Join as a join frame says."""
        try:
            identity, dialect = read_join_frame(
                message, self._handshake, self._port.runtime, self._address
            )
        except NotAdmitted as refused:
            self._not_admitted(refused)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._join(identity, dialect)

    def _join(self, identity: Identity, dialect: str) -> None:
        port = self._port
        self._space = identity.space
        self._identity = identity
        self._assembler = Assembler(port.limits.max_message_bytes)
        self.read_bytes = MEMBER_READ_BYTES
        self._member = GatewayMember(
            identity,
            FrameFormat(dialect, self._handshake.resumes, pack_text),
            self._handshake.last_seen,
            self,
            port.batcher,
            port.limits,
            port.runtime.backlogs,
            self._on_member_closed,
            observes=self._handshake.observes,
        )
        host = port.runtime.spaces[identity.space]
        log.info("%s: %s", self._name(), describe_join(self._member, host, self._peer))
        host.join(self._member)

    def _late(self) -> None:
        timeout = self._port.limits.join_timeout
        late = f"no join frame came within {timeout:g} seconds (join_timeout)"
        self._not_admitted(NotAdmitted(BAD_REQUEST, late))

    def _not_admitted(self, refused: NotAdmitted) -> None:
        self._port.runtime.counters.not_admitted[refused.close_code] += 1
        self._end(refused.close_code, str(refused))

    # --- ending -----------------------------------------------------------------------------

    def _refuse_message(self, bad: BadMessage) -> None:
        if bad.code == TOO_BIG and self._member is not None:
            host = self._port.runtime.spaces[self._space]
            most = self._port.limits.max_message_bytes
            told = {"limit": "max_message_bytes", "max": most}
            host.refuse_frame(self._member, "too_large", str(bad), **told)
        self._end(bad.code, str(bad))

    def _end(self, code: int, reason: str) -> None:
        """Close by our own decision about this connection."""
        self._log("%s: closed with %d: %s", self._name(), code, quote(reason))
        self.shut(code, reason)

    def _answer_close(self, code: int) -> None:
        """Finish the closing handshake, whoever began it."""
        if self._ended_by is None:
            # Some codes never stand in a close frame (RFC 6455 section 7.4).
            sayable = code not in _NEVER_SAID and code < _FIRST_UNASSIGNED
            self._ended_by = (int(code) or NORMAL) if sayable else PROTOCOL_ERROR
            if not self._transport.is_close_frame_sent:
                self._transport.send_close(cast("WSCloseCode", self._ended_by))
            self._drop_soon()
        self._leave()
        self._transport.disconnect()

    def _drop_soon(self) -> None:
        """Drop the socket when the other end has had its time to read and to close."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._port.loop.call_later(
            self._port.limits.close_timeout, self._transport.disconnect, False
        )

    def _leave(self) -> None:
        member = self._member
        if member is not None:
            member.closed = True
            self._port.runtime.spaces[self._space].leave(member)

    def _closed_by_picows(self, transport: WSTransport) -> int:
        """The code with which picows closed, for broken rules or a missing pong; 1006 if none."""
        sent = transport.close_handshake.sent if transport.is_close_frame_sent else None
        if sent is None:
            return LOST
        code = cast("int", sent.code)
        self._port.runtime.counters.closed[code] += 1
        return code

    def _on_member_closed(self, member: GatewayMember, code: int) -> None:
        self._port.runtime.counters.closed[code] += 1
        # Later, since whoever closes a member may be going through all of them.
        self._port.loop.call_soon(self._leave)

    def _log(self, said: str, *values: object) -> None:
        """Log what happens to a member, and at a bounded rate what happens to strangers."""
        say = log.info if self._member is not None else self._port.runtime.refusals.info
        say(said, *values)

    def _name(self) -> str:
        if self._identity is None:
            return f"a connection from {self._peer}"
        return f"{quote(self._identity.participant)} in {quote(self._identity.space)}"
