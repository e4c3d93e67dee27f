"""The doors of a cluster: a gateway that stands by passes connections on to the one that is active.

A door copies bytes, TLS included, from the gateway's own port to the address that the active
gateway advertises. There it first proves by the cluster's token, which it does not say, that it is
one of them, and tells the member's address, so that wrong tokens count where they came from. The
active gateway dials its own port for each such connection and copies on: whatever comes in at a
door is decided there, as if it had come by itself.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from meup_agent.gateway.edge.listener import address_of, passed_on
from meup_agent.gateway.network import check_encrypted, listen_error

if TYPE_CHECKING:
    from meup_agent.gateway.config import Config, NatsConfig

log = logging.getLogger("meup_agent.gateway")

GREETING_SECONDS: Final = 5.0
"""For two gateways to greet each other, and for one to be dialled."""

CHALLENGE_BYTES: Final = 32
"""Random bytes with which the active gateway begins."""

PROOF_BYTES: Final = 32

MAX_ADDRESS: Final = 255
"""Bytes of a member's address."""

COPY_BYTES: Final = 64 * 1024
"""Bytes that are copied at a time, one way; as many wait for a reader that is slow."""


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``, as another gateway says it; a :exc:`ValueError` else."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _proof(token: str, challenge: bytes, address: bytes) -> bytes:
    return hmac.digest(token.encode(), challenge + address, sha256)


class Copier:
    """Connections that are copied to others, so many at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks = set[asyncio.Task[None]]()

    def start(self, work: Coroutine[Any, Any, None], writer: asyncio.StreamWriter) -> None:
        """Do it in a task of its own, unless there are too many."""
        if len(self._tasks) >= self._most:
            work.close()
            writer.transport.abort()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drop_all(self) -> None:
        """Begin to end all of them."""
        for task in tuple(self._tasks):
            task.cancel()

    async def end(self) -> None:
        """End all of them."""
        self.drop_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(COPY_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def copy_both_ways(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    other: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Copy until either breaks, or both have said all; then both are closed."""
    copying = [
        asyncio.ensure_future(_copy(one[0], other[1])),
        asyncio.ensure_future(_copy(other[0], one[1])),
    ]
    try:
        await asyncio.gather(*copying)
    except OSError:
        pass  # as in any other end: both are closed
    finally:
        for each in copying:
            each.cancel()
        for _, writer in (one, other):
            writer.close()


# --- a gateway that stands by ---


class GatewayDoor:
    """The port of a gateway that stands by; who is active, is told to :meth:`lead`."""

    def __init__(self, nats: NatsConfig, most: int) -> None:
        self._token = nats.known_token
        self._address = ""
        self._is_known = asyncio.Event()
        self._copier = Copier(most)

    def lead(self, address: str) -> None:
        """Pass connections on to an address; empty: nobody is known to be active.

        Those that were passed on to another one end: their members dial again.
        """
        if self._address and address != self._address:
            self._copier.drop_all()
        self._address = address
        if address:
            self._is_known.set()
        else:
            self._is_known.clear()

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection."""
        self._copier.start(self._pass_on(reader, writer), writer)

    async def end(self) -> None:
        """End all connections: their members dial again."""
        await self._copier.end()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                await self._is_known.wait()
                there = await asyncio.open_connection(
                    *split_address(self._address), limit=COPY_BYTES
                )
                address = address_of(writer.transport).encode()[:MAX_ADDRESS]
                challenge = await there[0].readexactly(CHALLENGE_BYTES)
                proof = _proof(self._token, challenge, address)
                there[1].write(proof + bytes([len(address)]) + address)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            log.info("a connection is not passed on: %s", str(error) or "nobody answers")
            writer.transport.abort()
            return
        await copy_both_ways((reader, writer), there)


@asynccontextmanager
async def door_of(config: Config, host: str, port: int) -> AsyncGenerator[GatewayDoor | None]:
    """The door of a gateway that stands by, for the length of a block, if it is to have one."""
    nats = config.journal.nats
    if nats is None or nats.advertise is None:
        yield None
        return
    check_encrypted(host, config.tls, insecure=config.insecure)
    door = GatewayDoor(nats, config.limits.max_connections)
    try:
        server = await asyncio.start_server(door.take, host, port, limit=COPY_BYTES)
    except OSError as error:
        raise listen_error(host, port, error) from None
    log.info("a door listens at port %d", server.sockets[0].getsockname()[1])
    try:
        yield door
    finally:
        server.close()
        await door.end()


# --- the active gateway ---


class Hall:
    """The address at which the active gateway takes connections that came in at doors."""

    def __init__(self, token: str, own: tuple[str, int], most: int) -> None:
        self._token = token
        self._own = own
        self._copier = Copier(most)

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection of a door."""
        self._copier.start(self._let_in(reader, writer), writer)

    async def end(self) -> None:
        """End all connections."""
        await self._copier.end()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                writer.write(challenge)
                proof = await reader.readexactly(PROOF_BYTES)
                (length,) = await reader.readexactly(1)
                address = await reader.readexactly(length)
                if not hmac.compare_digest(proof, _proof(self._token, challenge, address)):
                    log.warning(
                        "%s is no door of this cluster: its token is another",
                        address_of(writer.transport),
                    )
                    writer.transport.abort()
                    return
                there = await asyncio.open_connection(*self._own, limit=COPY_BYTES)
        except (OSError, EOFError, TimeoutError):
            writer.transport.abort()
            return
        own_end = there[1].get_extra_info("sockname")[:2]
        # Before the first byte: with that the gateway asks where the connection comes from.
        passed_on[own_end] = address.decode(errors="replace")
        try:
            await copy_both_ways((reader, writer), there)
        finally:
            passed_on.pop(own_end, None)


@asynccontextmanager
async def hall_of(config: Config, own: tuple[str, int]) -> AsyncGenerator[None]:
    """Take connections of doors at the advertised address, for the length of a block."""
    nats = config.journal.nats
    if nats is None or nats.advertise is None:
        yield
        return
    host, port = split_address(nats.advertise)
    check_encrypted(host, config.tls, insecure=config.insecure)
    hall = Hall(nats.known_token, own, config.limits.max_connections)
    try:
        server = await asyncio.start_server(hall.take, host, port, limit=COPY_BYTES)
    except OSError as error:
        raise listen_error(host, port, error) from None
    log.info("connections of other gateways come in at %s", nats.advertise)
    try:
        yield
    finally:
        server.close()
        await hall.end()
