"""Connections of participants in the gateway's own process: in memory, without a socket.

All else is as at the message port: the handshake, limits, what is decided and kept, and the close.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from meup_agent.errors import CannotConnect, HandshakeRefused, TransportClosed
from meup_agent.gateway.auth import UNAUTHORIZED, NotAdmitted
from meup_agent.gateway.edge.connection import CarriedConnection, SendQueue
from meup_agent.gateway.edge.handshake import Handshake, admit
from meup_agent.gateway.logs import log
from meup_agent.transport.base import CLOSE_TIMEOUT, background_tasks
from meup_agent.transport.memory import MemoryTransport, memory_pair

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from contextlib import AbstractAsyncContextManager

    from meup_agent.gateway.runtime import GatewayRuntime
    from meup_agent.transport.base import Transport


class LocalConnection(CarriedConnection):
    """The gateway's end of a connection in memory."""

    def __init__(
        self, runtime: GatewayRuntime, handshake: Handshake, transport: MemoryTransport
    ) -> None:
        super().__init__(runtime, handshake, "", "this process")
        self._transport = transport

    async def serve(self) -> None:
        """Serve until one end closes; a defect ends this connection, and nothing else."""
        try:
            await self.run()
        except Exception:
            log.exception("%s: the connection failed", self._name())
        finally:
            self._transport.drop()

    async def _receive(self) -> bytes | None:
        message = await anext(self._transport, None)
        if message is None and self._transport.closed is not None:
            self._code = self._transport.closed.code
        return message

    async def _send(self, queue: SendQueue) -> None:
        # A send that comes after the other end has gone; what is received says that it has.
        with suppress(TransportClosed):
            while (frame := await queue.take()) is not None:
                await self._transport.send(frame)
            await self._transport.aclose(queue.code, queue.reason)


class LocalConnector:
    """Connects to a space of a gateway that runs in the same loop.

    Args:
        runtime: The gateway.
        space: The space.
        where: The gateway's name for people.
    """

    def __init__(self, runtime: GatewayRuntime, space: str, where: str) -> None:
        self.where = where
        self._runtime = runtime
        self._target = b"?" + urlencode({"space": space}).encode()

    def __call__(self, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Transport]:
        """Open a connection; leaving the block closes it."""
        return self._dial(headers)

    @asynccontextmanager
    async def _dial(self, headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
        await checkpoint_if_cancelled()
        if not self._runtime.accepting:
            raise CannotConnect(f"the gateway at {self.where} stops")
        try:
            handshake = admit(self._runtime, self._target, headers, "")
            if not handshake.complete:
                raise NotAdmitted(UNAUTHORIZED, "the handshake has no Authorization header")
        except NotAdmitted as refused:
            raise HandshakeRefused(refused.status, refused.retry_after, str(refused)) from None
        ours, theirs = memory_pair()
        ours.response_headers = {name.lower(): value for name, value in handshake.answer.items()}
        connection = LocalConnection(self._runtime, handshake, theirs)
        # Whatever ends the block, the gateway first reads what was sent, as it does of a socket.
        serving, served = anyio.CancelScope(shield=True), anyio.Event()

        async def serve() -> None:
            try:
                with serving:
                    await connection.serve()
            finally:
                served.set()

        async with background_tasks() as tasks:
            tasks.start_soon(serve)
            try:
                yield ours
            finally:
                await ours.aclose()
                try:
                    with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                        await served.wait()
                finally:
                    serving.cancel()
