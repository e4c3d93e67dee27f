"""Members that come by WebSocket through an ASGI server, by the rules of the message port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol

import anyio
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocket

from meup_agent.gateway.admission import (
    BAD_REQUEST,
    NotAdmitted,
    check_connections,
    repeats_join,
)
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.backlog import Backlogs
from meup_agent.gateway.config import Limits
from meup_agent.gateway.edge.framing import TOO_BIG
from meup_agent.gateway.edge.handshake import Handshake, read_handshake, read_join_frame
from meup_agent.gateway.edge.http.context import Served
from meup_agent.gateway.edge.http.send_queue import SendQueue
from meup_agent.gateway.logs import describe_join, log, quote
from meup_agent.protocol.space.fanout import FrameFormat
from meup_agent.protocol.space.server import SpaceServer
from meup_agent.transport.base import MAX_CLOSE_REASON_BYTES

LOST: Final = 1006


class Mounted(Served, Protocol):
    """The gateway, as its WebSocket connections see it."""

    def opened(self, connection: SocketConnection) -> None:
        """Count a connection in."""
        ...

    def lost(self, connection: SocketConnection) -> None:
        """Count a connection out."""
        ...

    async def until_kept(self) -> None:
        """Wait while too much waits for the disk."""
        ...


class SocketMember(SendQueue):
    """A participant's connection through an ASGI server.

    Attributes:
        participant: Whose it is.
        last_seen: The number of the last envelope that it got before; ``None``: it does not resume.
        observes: Whether it only looks on (PROTOCOL 3).
    """

    def __init__(
        self,
        identity: Identity,
        form: FrameFormat,
        last_seen: int | None,
        limits: Limits,
        backlogs: Backlogs,
        closed: Counter[int],
        *,
        observes: bool = False,
    ) -> None:
        super().__init__(identity, form, limits, backlogs, awaited=not observes)
        self.observes = observes
        self.participant = identity.participant
        self.last_seen = last_seen
        self._closed = closed

    def close(self, code: int, reason: str) -> None:
        """Close the connection after what is queued, and count it."""
        if not self.ended.is_set():
            self._closed[code] += 1
        super().close(code, reason)

    def lose(self) -> None:
        """Take nothing more: the other end has gone."""
        super().close(LOST, "")


async def serve_socket(served: Mounted, websocket: WebSocket) -> None:
    """Take a connection, from its handshake to its end."""
    address = websocket.client.host if websocket.client is not None else ""
    try:
        check_connections(served.listening, served.open_connections, served.limits.max_connections)
        target = b"?" + bytes(websocket.scope["query_string"])
        handshake = read_handshake(target, websocket.headers, served.runtime, address)
    except NotAdmitted as refused:
        served.runtime.counters.not_admitted[refused.status] += 1
        said = "a handshake from %s was refused with %d: %s"
        served.runtime.refusals.info(said, address, refused.status, refused)
        await _deny(websocket, refused)
        return
    connection = SocketConnection(served, websocket, handshake, address)
    served.opened(connection)
    try:
        await websocket.accept(headers=_raw(handshake.answer))
        await connection.run()
    finally:
        served.lost(connection)


class SocketConnection:
    """Joins its participant to a space, hands their messages in, and sends what is for them.

    Args:
        served: The gateway.
        websocket: The connection.
        handshake: What its handshake said.
        address: Where it came from.
    """

    def __init__(
        self, served: Mounted, websocket: WebSocket, handshake: Handshake, address: str
    ) -> None:
        self._served = served
        self._websocket = websocket
        self._handshake = handshake
        self._address = address
        self._member: SocketMember | None = None
        self._scope = anyio.CancelScope()
        self._told: tuple[int, str] | None = None
        self._code = LOST
        # As at the message port: short enough to hear that the other end is alive.
        self._longest_pause = served.limits.ping_deadline / 2

    async def run(self) -> None:
        """Join, and serve until one end closes."""
        with self._scope:
            joined = await self._join()
            if joined is None:
                return
            host, member = joined
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._write, member, tasks.cancel_scope)
                    code = await self._read(host, member)
                    tasks.cancel_scope.cancel()
                    log.info("%s: connection ended (code %d)", _name(member, host), code)
            finally:
                member.lose()
                host.leave(member)
                member.release()

    def shut(self, code: int, reason: str) -> None:
        """Close the connection, joined or not."""
        if self._member is not None:
            self._member.close(code, reason)
        else:
            self._told = (code, reason)
            self._scope.cancel()

    # --- joining ----------------------------------------------------------------------------

    async def _join(self) -> tuple[SpaceServer, SocketMember] | None:
        served, handshake = self._served, self._handshake
        try:
            identity, dialect = handshake.identity, handshake.dialect
            if identity is None or dialect is None or not handshake.complete:
                identity, dialect = await self._join_by_frame()
        except NotAdmitted as refused:
            served.runtime.counters.not_admitted[refused.close_code] += 1
            await self._close(refused.close_code, str(refused))
            return None
        except anyio.get_cancelled_exc_class():
            if self._told is not None:
                with anyio.CancelScope(shield=True):
                    await self._close(*self._told)
            raise
        if identity is None or dialect is None:
            return None
        form = FrameFormat(dialect, handshake.resumes)
        member = SocketMember(
            identity,
            form,
            handshake.last_seen,
            served.limits,
            served.runtime.backlogs,
            served.runtime.counters.closed,
            observes=handshake.observes,
        )
        self._member = member
        host = served.runtime.spaces[identity.space]
        log.info("%s: %s", _name(member, host), describe_join(member, host, self._address))
        host.join(member)
        return host, member

    async def _join_by_frame(self) -> tuple[Identity | None, str | None]:
        """Who joins by the first message, and what they speak; nobody, if none came.

        Raises:
            NotAdmitted: They do not get in.
        """
        served = self._served
        seconds = served.limits.join_timeout
        message: bytes | None = None
        with anyio.move_on_after(seconds) as waiting:
            message = await self._receive()
            if message is None:
                return None, None
        if waiting.cancelled_caught or message is None:
            raise NotAdmitted(
                BAD_REQUEST, f"no join frame came within {seconds:g} seconds (join_timeout)"
            )
        return read_join_frame(message, self._handshake, served.runtime, self._address)

    # --- what is said -----------------------------------------------------------------------

    async def _read(self, host: SpaceServer, member: SocketMember) -> int:
        """Hand in what its participant says, to the end; the code of that."""
        served, first = self._served, self._handshake.complete
        most = served.limits.max_message_bytes
        while (message := await self._receive()) is not None:
            if member.ended.is_set():
                continue
            if len(message) > most:
                said = f"a message may have at most {most} bytes"
                host.refuse_frame(member, "too_large", said, limit="max_message_bytes", max=most)
                member.close(TOO_BIG, said)
                continue
            if first and repeats_join(message, member.participant, host.name):
                first = False
                continue
            first = False
            wait = host.receive(member, message)
            await anyio.sleep(min(wait, self._longest_pause))
            await self._until_readers_keep_up(host, member)
            await served.until_kept()
        return member.code or self._code

    async def _until_readers_keep_up(self, host: SpaceServer, member: SocketMember) -> None:
        """Wait for readers that this sender is too loud for, and no longer than is healthy."""
        with anyio.move_on_after(self._longest_pause):
            while not member.ended.is_set():
                wait = host.backpressure_wait(member.participant)
                if not wait:
                    return
                await anyio.sleep(wait)

    async def _receive(self) -> bytes | None:
        """The next message; ``None``: the connection has ended."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self._code = int(message.get("code") or LOST)
            return None
        text: str | None = message.get("text")
        return bytes(message["bytes"]) if text is None else text.encode(errors="surrogatepass")

    async def _write(self, member: SocketMember, scope: anyio.CancelScope) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._until_stuck, member, scope)
            while (frames := await member.take()) is not None:
                for frame in frames:
                    await self._websocket.send({"type": "websocket.send", "text": frame.decode()})
            await self._close(member.code, member.reason)

    async def _until_stuck(self, member: SocketMember, scope: anyio.CancelScope) -> None:
        """Give a member that was closed its time, and no more, to read and to close."""
        await member.ended.wait()
        await anyio.sleep(self._served.limits.close_timeout)
        scope.cancel()

    async def _close(self, code: int, reason: str) -> None:
        say = log.info if self._member is not None else self._served.runtime.refusals.info
        say("a connection from %s: closed with %d: %s", self._address, code, quote(reason))
        said = reason.encode()[:MAX_CLOSE_REASON_BYTES].decode(errors="ignore")
        await self._websocket.send({"type": "websocket.close", "code": code, "reason": said})


async def _deny(websocket: WebSocket, refused: NotAdmitted) -> None:
    if "websocket.http.response" in websocket.scope.get("extensions", {}):
        response = PlainTextResponse(str(refused), refused.status, dict(refused.headers))
        await websocket.send_denial_response(response)
    else:
        await websocket.close(refused.close_code)


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _name(member: SocketMember, host: SpaceServer) -> str:
    return f"{quote(member.participant)} in {quote(host.name)}"
