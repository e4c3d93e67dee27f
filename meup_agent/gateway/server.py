"""The message port: listens, hands connections to the runtime, and stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import anyio
from picows import WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener

from meup_agent.gateway.admission import BAD_REQUEST, NotAdmitted, check_connections
from meup_agent.gateway.config import Config
from meup_agent.gateway.edge import listener
from meup_agent.gateway.edge.connection import Connection
from meup_agent.gateway.edge.handshake import read_handshake
from meup_agent.gateway.edge.listener import shorten_tls_failures
from meup_agent.gateway.journal.engines import open_journal
from meup_agent.gateway.logs import log
from meup_agent.gateway.member import WriteBatcher
from meup_agent.gateway.network import (
    check_encrypted,
    host_and_port,
    listen_error,
    local_host,
    server_context,
)
from meup_agent.gateway.runtime import GatewayRuntime, wall_clock
from meup_agent.protocol.space.counters import Counters

if TYPE_CHECKING:
    from meup_agent.gateway.edge.http.port import HttpPort
    from meup_agent.protocol.space.journal import Journal

RESTARTING: Final = 1012
"""Close code of a gateway that stops: its members dial again (PROTOCOL 3)."""

BACKLOG: Final = 4_096
"""Connections that may wait to be taken. All members dial at once when their gateway has restarted,
and whoever finds no room is heard again by its system after a second, or three, or seven."""

LAST_TURNS: Final = 1.0
"""Seconds for the loop to report that dropped sockets are closed; it takes one or two turns."""


class RunningGateway:
    """A gateway that listens; made by :func:`serve`.

    Attributes:
        runtime: Its spaces.
        limits: What it takes and waits for.
        loop: The loop it runs on.
        batcher: Who has something to write in this turn of the loop.
        http: Its HTTP port, if it has one.
        failed: Set when nothing can be kept any more; then it has stopped by itself.
        failure: Why, in one sentence.
    """

    def __init__(self, config: Config, journal: Journal) -> None:
        self.runtime = GatewayRuntime(config, journal=journal)
        self.limits = config.limits
        self._config = config
        self.loop = asyncio.get_running_loop()
        self.batcher = WriteBatcher(self.loop)
        self.http: HttpPort | None = None
        self._connections: set[Connection] = set()
        self._stopping = False
        self._empty = anyio.Event()
        self.failed = anyio.Event()
        self.failure = ""
        self._full = False
        self._journal = journal
        journal.on_full = self._hold
        journal.on_failed = self._fail

    @property
    def counters(self) -> Counters:
        """What has happened since it began to listen."""
        return self.runtime.counters

    @property
    def listening(self) -> bool:
        """Whether it takes connections."""
        return not self._stopping

    @property
    def open_connections(self) -> int:
        """Connections at this moment, those that have not joined yet included."""
        return len(self._connections)

    @property
    def port(self) -> int:
        """The port it listens at."""
        return self._port

    @property
    def url(self) -> str:
        """The address for clients on this machine."""
        return self._url(local_host(self._host))

    @property
    def listens_at(self) -> str:
        """The address it listens at, ``0.0.0.0`` included, which nobody can dial."""
        return self._url(self._host or "*")

    def _url(self, host: str) -> str:
        scheme = "ws" if self._config.tls is None else "wss"
        return f"{scheme}://{host_and_port(host, self._port)}"

    def drop(self, participant: str) -> None:
        """Drop the socket of a participant, in whatever space it is, without a close frame."""
        for connection in tuple(self._connections):
            if connection.participant == participant:
                connection.abort()

    def abort(self) -> None:
        """Play a killed gateway: stop listening and drop every socket without a close frame."""
        self._stopping = True
        self._server.close()
        self._journal.abandon()
        if self.http is not None:
            self.http.abort()
        self.runtime.give_up()
        for connection in tuple(self._connections):
            connection.abort()

    def opened(self, connection: Connection) -> None:
        """Count a connection in."""
        self._connections.add(connection)
        if self._full:
            connection.hold(True)

    def lost(self, connection: Connection) -> None:
        """Count a connection out."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    async def listen(self, host: str, port: int) -> None:
        """Begin to listen.

        Raises:
            ConfigurationError: The address cannot be listened at, or not without TLS.
        """
        check_encrypted(self._config, host)
        tls = self._config.tls
        context = None if tls is None else server_context(tls)
        try:
            self._server = await listener.listen(
                self._accept,
                host,
                port,
                self.limits,
                self.runtime.refusals,
                backlog=BACKLOG,
                context=context,
            )
        except OSError as error:
            raise listen_error(host, port, error) from None
        self._host = host
        self._port: int = self._server.sockets[0].getsockname()[1]
        self.runtime.url = self.url

    async def stop(self) -> None:
        """Close every connection with 1012 and stop listening; takes ``stop_timeout`` at most."""
        self._stopping = True
        self._server.close()
        deadline = anyio.current_time() + self.limits.stop_timeout
        # A sender is told that its message was accepted, and then that the gateway stops.
        await self._journal.flush(self.limits.stop_timeout)
        self._close_all("the gateway stops; connect again")
        if self.http is not None:
            # What it was asked is answered, and kept, before the journal is closed.
            with anyio.CancelScope(shield=True, deadline=deadline):
                await self.http.stop()
        await self._until_empty(deadline - anyio.current_time())
        self.abort()
        await self._until_empty(LAST_TURNS)
        with anyio.move_on_after(LAST_TURNS, shield=True):
            await self._server.wait_closed()

    def _close_all(self, reason: str) -> None:
        self.runtime.close(RESTARTING, reason)
        for connection in tuple(self._connections):
            connection.shut(RESTARTING, reason)

    def _hold(self, full: bool) -> None:
        """Read nothing from anybody while too much waits for the disk, and then go on."""
        self._full = full
        for connection in tuple(self._connections):
            connection.hold(full)

    def _fail(self, sentence: str) -> None:
        """Stop: what cannot be kept is not accepted either."""
        log.error("%s", sentence)
        self.failure = sentence
        self._stopping = True
        self._server.close()
        self._close_all("the gateway cannot keep what is said; connect again later")
        self.runtime.give_up()
        self.failed.set()

    async def _until_empty(self, timeout: float) -> None:
        # Shielded: a program that is cancelled stops its gateway in the same order.
        with anyio.move_on_after(timeout, shield=True):
            if self._connections:
                self._empty = anyio.Event()
                await self._empty.wait()

    def _accept(self, request: WSUpgradeRequest, address: str) -> WSUpgradeResponseWithListener:
        """Decide about a handshake that came from an address."""
        headers = request.headers
        # Browsers say "keep-alive, Upgrade", and picows compares the whole value.
        if "upgrade" in headers.get("Connection", "").lower():
            headers["Connection"] = "Upgrade"
        try:
            if not headers.get("Sec-WebSocket-Version", "").isascii():
                # Picows would say it back, and cannot.
                raise NotAdmitted(BAD_REQUEST, "the version of WebSocket must be 13")
            check_connections(self.listening, len(self._connections), self.limits.max_connections)
            handshake = read_handshake(request.path, headers, self.runtime, address)
            return WSUpgradeResponseWithListener(
                WSUpgradeResponse.create_101_response(handshake.answer), Connection(self, handshake)
            )
        except NotAdmitted as refused:
            self.counters.not_admitted[refused.status] += 1
            said = "a handshake from %s was refused with %d: %s"
            self.runtime.refusals.info(said, address, refused.status, refused)
            response = WSUpgradeResponse.create_error_response(
                refused.status, str(refused).encode(), refused.headers
            )
            return WSUpgradeResponseWithListener(response, None)
        except Exception:
            # Picows would tell whoever dials what was raised.
            log.exception("a handshake from %s could not be answered", address)
            response = WSUpgradeResponse.create_error_response(500, b"internal error")
            return WSUpgradeResponseWithListener(response, None)


@asynccontextmanager
async def serve(
    config: Config, host: str | None = None, port: int | None = None
) -> AsyncGenerator[RunningGateway]:
    """Run a gateway for the length of a block.

    Leaving the block closes every member with 1012 and takes ``stop_timeout`` at most. A gateway
    that can keep nothing any more stops by itself: see :attr:`RunningGateway.failed`.

    Args:
        config: Its spaces and limits.
        host: Where to listen, in place of the configuration's.
        port: Where to listen, in place of the configuration's; 0: any free port.

    Raises:
        ConfigurationError: The address cannot be listened at, the journal's file cannot be used, or
            the configuration is wrong.
    """
    with nullcontext() if config.tls is None else shorten_tls_failures():
        async with open_journal(config.journal, wall_clock) as journal:
            gateway = RunningGateway(config, journal)
            await gateway.listen(
                config.host if host is None else host, config.port if port is None else port
            )
            log.info("listening at %s", gateway.listens_at)
            try:
                if config.http is not None:
                    check_encrypted(config, config.http.host)
                    # Loaded only where it is wanted: a web framework takes its time.
                    from meup_agent.gateway.edge.http.port import HttpPort

                    http = HttpPort(gateway, config.http, config.tls, config.limits)
                    await http.listen()
                    gateway.http = http
                    log.info("listening at %s for HTTP", http.listens_at)
                yield gateway
            finally:
                await gateway.stop()
                log.info("stopped listening at %s", gateway.listens_at)
