"""Forwarding between the gateways of a cluster: each passes connections on to a space's owner.

The head of a connection's first request says which space it is for (:func:`space_of`); if that is
not here, the forwarder copies bytes to the address that its owner advertises. There it first proves
by the cluster's token, which it does not send, that it is one of them, and sends the member's
address, so that wrong tokens count where they came from. The owner dials its own port for each such
connection and copies on: a forwarded connection is decided there, as if it had come by itself.

Where members talk TLS, they talk it with the forwarder, and that talks it with the owner's port:
the owner's proof has the fingerprint of the certificate that the forwarder will see there, so that
nobody can stand in between.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import socket
import ssl
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote

from meup_agent.gateway.auth import digest_of_token
from meup_agent.gateway.edge.listener import address_of, forwarded_for
from meup_agent.gateway.logs import quote
from meup_agent.gateway.network import check_encrypted, listen_error

if TYPE_CHECKING:
    from meup_agent.gateway.cluster.membership import ClusterMembership
    from meup_agent.gateway.cluster.placement import NodeHeartbeat
    from meup_agent.gateway.config import TlsConfig
    from meup_agent.gateway.runtime import GatewayRuntime

log = logging.getLogger("meup_agent.gateway")

GREETING_SECONDS: Final = 5.0
"""Wait for a space to have an owner, and for the greeting of two gateways."""

RETRY_SECONDS: Final = 0.1
"""Pause until an owner is dialled again, which may have ended a moment ago."""

CHALLENGE_BYTES: Final = 32
"""Random bytes with which each side of a greeting begins."""

PROOF_BYTES: Final = 32

MAX_ADDRESS: Final = 255
"""Bytes of a member's address."""

COPY_BYTES: Final = 64 * 1024
"""Bytes that are copied at a time in one direction; as many wait for a slow reader."""

StreamPair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``, as another gateway says it; a :exc:`ValueError` else."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _proof(token: str, *said: bytes) -> bytes:
    return hmac.digest(token.encode(), b"".join(said), sha256)


class ForeignPeer(Exception):
    """A program without the cluster's token listens at the address of a gateway."""


class CopyTasks:
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
    else:
        writer.close()  # TLS ends both ways at once


async def copy_both_ways(one: StreamPair, other: StreamPair) -> None:
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


# --- the space of a connection ---

LOCAL_PATHS: Final = frozenset((b"/healthz", b"/health", b"/readyz", b"/metrics", b"/openapi.json"))
"""What each gateway answers about itself."""

SPACE_COOKIE: Final = "_space"
"""Ending of the name of the cookie by which the console says which space it shows."""

_AUTHORIZATION: Final = re.compile(rb"\nauthorization:[ \t]*bearer[ \t]+([^\r\n]+)", re.IGNORECASE)
_PORT: Final = re.compile(rb"\nhost:[^\r\n]*:(\d+)[ \t]*\r?\n", re.IGNORECASE)


def space_of(head: bytes, runtime: GatewayRuntime) -> str | None:
    """The space that a connection is for, as the head of its first request says it.

    ``None``: it does not say so. It is a hint: who may be in a space is decided where that is.
    """
    _, _, rest = head.partition(b" ")
    target = rest.partition(b" ")[0]
    path, _, query = target.partition(b"?")
    spaces = runtime.config.spaces
    if path in LOCAL_PATHS:
        return None
    if len(spaces) == 1:
        return spaces[0].id
    if path.startswith(b"/spaces/"):
        return unquote(path.split(b"/")[2].decode("ascii", "replace"))
    try:
        named = parse_qs(query.decode("ascii", "replace"), max_num_fields=64).get("space")
    except ValueError:
        return None
    if named:
        return named[0]
    if token := _AUTHORIZATION.search(head):
        text = token[1].strip().decode("latin-1")
        holder = runtime.tokens.holder(digest_of_token(text))
        return None if holder is None else holder.space
    if path.startswith(b"/console"):
        return _space_of_console(head, is_secure=runtime.config.tls is not None)
    return None


def _space_of_console(head: bytes, *, is_secure: bool) -> str | None:
    """The space that a browser shows, by the cookie for the port by which it dials."""
    prefix, port = (b"__Secure-", b"443") if is_secure else (b"", b"80")
    asked = _PORT.search(head)
    name = b"%bmeup_%b_space" % (prefix, port if asked is None else asked[1])
    cookie = re.search(rb"[ ;:]%b=([^;\s]+)" % name, head)
    return None if cookie is None else unquote(cookie[1].decode("ascii", "replace"))


# --- a gateway that passes connections on ---


class ConnectionForwarder:
    """Passes connections to spaces of other gateways on."""

    def __init__(
        self,
        runtime: GatewayRuntime,
        membership: ClusterMembership,
        token: str,
        own: tuple[str, int],
    ) -> None:
        self._runtime = runtime
        self._seat = membership
        self._token = token
        self._own = own
        self._copies = CopyTasks(runtime.limits.max_connections)
        # The space of each connection that is passed on, and the nonce of the gateway it is at.
        self._forwarded: dict[asyncio.Task[None], tuple[str, str]] = {}

    def protocol_for(
        self, head: bytes, transport: asyncio.BaseTransport
    ) -> asyncio.BaseProtocol | None:
        """What takes over a connection whose first request has come; ``None``: this gateway."""
        runtime = self._runtime
        peer = transport.get_extra_info("peername")
        if not runtime.accepting or (isinstance(peer, tuple) and peer[:2] in forwarded_for):
            return None  # passed on once is enough: a space may be on its way
        space = space_of(head, runtime)
        if space is None or space in runtime.spaces or runtime.config.space(space) is None:
            return None
        if space in runtime.stopped and self._seat.owner_of(space) is None:
            return None  # nobody has it soon
        reader = asyncio.StreamReader(limit=COPY_BYTES)

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._copies.start(self._forward(space, (reader, writer)), writer)

        return asyncio.StreamReaderProtocol(reader, begin)

    async def watch(self) -> None:
        """End connections whose space moves, until cancelled: an owner that hangs ends none."""
        while True:
            for copying, (space, nonce) in tuple(self._forwarded.items()):
                owner = self._seat.owner_of(space)
                if owner is not None and owner.nonce != nonce:
                    copying.cancel()
            await self._seat.changed.wait()

    async def end(self) -> None:
        """End all connections: their members dial again."""
        await self._copies.end()

    async def _forward(self, space: str, ends: StreamPair) -> None:
        address, problem = address_of(ends[1].transport), ""
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                while True:
                    owner = await self._find_owner(space)
                    try:
                        there = await self._dial(owner, address)
                        break
                    except (OSError, EOFError, ValueError) as failed:
                        problem = str(failed)
                        if owner is not None:
                            self._seat.suspect(owner.nonce)
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            why = problem or "nobody has it"
            self._runtime.refusals.info(
                "a connection to %s is not passed on: %s", quote(space), why
            )
            ends[1].transport.abort()
            return
        except ForeignPeer as error:
            log.warning("a connection to %s is not passed on: %s", quote(space), error)
            ends[1].transport.abort()
            return
        except BaseException:
            ends[1].transport.abort()
            raise
        # Now: a connection over TLS that has ended does not say it any more.
        own_end = there[1].get_extra_info("sockname")[:2]
        copying = asyncio.ensure_future(copy_both_ways(ends, there))
        if owner is not None:
            self._forwarded[copying] = space, owner.nonce
        try:
            await asyncio.wait([copying])
        finally:
            copying.cancel()
            self._forwarded.pop(copying, None)
            forwarded_for.pop(own_end, None)

    async def _find_owner(self, space: str) -> NodeHeartbeat | None:
        """The gateway that has a space, as soon as one has; ``None``: this one."""
        while space not in self._runtime.spaces:
            owner = self._seat.owner_of(space)
            if owner is not None and owner.nonce != self._seat.nonce and owner.advertise:
                return owner
            await self._seat.changed.wait()
        return None

    async def _dial(self, owner: NodeHeartbeat | None, address: str) -> StreamPair:
        """Dial a gateway, and have it let a member's connection in."""
        if owner is None:  # the space has come here meanwhile
            return await dial_own(self._own, _client_context(self._runtime.config.tls), address)
        loop = asyncio.get_running_loop()
        there = await _connect(*split_address(owner.advertise))
        try:
            theirs = await _receive(there, CHALLENGE_BYTES)
            ours, told = secrets.token_bytes(CHALLENGE_BYTES), address.encode()[:MAX_ADDRESS]
            proof = _proof(self._token, b"forwarder", theirs, ours, told)
            await loop.sock_sendall(there, proof + ours + bytes([len(told)]) + told)
            fingerprint = await _receive(there, PROOF_BYTES)
            proof = await _receive(there, PROOF_BYTES)
            if not hmac.compare_digest(proof, _proof(self._token, b"owner", ours, fingerprint)):
                raise ForeignPeer(f"{owner.advertise} does not have the token of this cluster")
            context = _client_context(self._runtime.config.tls)
            ends = await asyncio.open_connection(
                sock=there,
                limit=COPY_BYTES,
                ssl=context,
                server_hostname=None if context is None else "meup",
            )
        except BaseException:
            there.close()
            raise
        secure: ssl.SSLObject | None = ends[1].get_extra_info("ssl_object")
        if secure is not None:
            seen = sha256(secure.getpeercert(binary_form=True) or b"").digest()
            if not hmac.compare_digest(seen, fingerprint):
                ends[1].transport.abort()
                raise ForeignPeer(f"{owner.advertise} showed another certificate than it said")
        return ends


async def _connect(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    error: OSError | None = None
    for family, kind, number, _, place in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        there = socket.socket(family, kind, number)
        there.setblocking(False)
        try:
            await loop.sock_connect(there, place)
        except OSError as failed:
            there.close()
            error = failed
        except BaseException:
            there.close()
            raise
        else:
            return there
    raise error or OSError(f"{host} has no address")


async def _receive(there: socket.socket, size: int) -> bytes:
    """So many bytes, and not one more: what follows may be TLS."""
    data = b""
    while len(data) < size:
        more = await asyncio.get_running_loop().sock_recv(there, size - len(data))
        if not more:
            raise EOFError("it closed the connection")
        data += more
    return data


def _client_context(tls: TlsConfig | None) -> ssl.SSLContext | None:
    """TLS to a gateway that is known by its proof, and not by who signed its certificate."""
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _fingerprint(tls: TlsConfig | None) -> bytes:
    """The digest of the certificate that members see here."""
    if tls is None:
        return bytes(PROOF_BYTES)
    pem = tls.certificate.read_text()
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = begin + pem.partition(begin)[2].partition(end)[0] + end
    return sha256(ssl.PEM_cert_to_DER_cert(first)).digest()


async def dial_own(
    own: tuple[str, int], context: ssl.SSLContext | None, address: str
) -> StreamPair:
    """Dial this gateway's own port for a member with an address."""
    there = await _connect(*own)
    own_end = there.getsockname()[:2]
    # Before the first byte: with that the gateway asks where the connection comes from.
    forwarded_for[own_end] = address
    try:
        return await asyncio.open_connection(
            sock=there,
            limit=COPY_BYTES,
            ssl=context,
            server_hostname=None if context is None else "meup",
        )
    except BaseException:
        forwarded_for.pop(own_end, None)
        there.close()
        raise


# --- the owner ---


class ForwardingListener:
    """The address at which a gateway takes connections that others forward."""

    def __init__(self, runtime: GatewayRuntime, token: str, own: tuple[str, int]) -> None:
        self._runtime = runtime
        self._token = token
        self._own = own
        self._copies = CopyTasks(runtime.limits.max_connections)
        self._read_certificate()
        runtime.on_reload.append(self._read_certificate)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection of a forwarder."""
        self._copies.start(self._accept(reader, writer), writer)

    async def end(self) -> None:
        """End all connections."""
        await self._copies.end()

    def _read_certificate(self) -> None:
        self._fingerprint = _fingerprint(self._runtime.config.tls)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours = secrets.token_bytes(CHALLENGE_BYTES)
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                writer.write(ours)
                proof = await reader.readexactly(PROOF_BYTES)
                theirs = await reader.readexactly(CHALLENGE_BYTES)
                (length,) = await reader.readexactly(1)
                address = await reader.readexactly(length)
                said = _proof(self._token, b"forwarder", ours, theirs, address)
                if not hmac.compare_digest(proof, said):
                    log.warning(
                        "%s is not a gateway of this cluster: its token is another",
                        address_of(writer.transport),
                    )
                    writer.transport.abort()
                    return
                # Bytes as they come: TLS is between the forwarder and the port. First, so that it
                # finds another owner where this one ends and takes nothing more at its port.
                there = await dial_own(self._own, None, address.decode(errors="replace"))
                proof = _proof(self._token, b"owner", theirs, self._fingerprint)
                writer.write(self._fingerprint + proof)
        except (OSError, EOFError, TimeoutError):
            writer.transport.abort()
            return
        own_end = there[1].get_extra_info("sockname")[:2]
        try:
            await copy_both_ways((reader, writer), there)
        finally:
            forwarded_for.pop(own_end, None)


@asynccontextmanager
async def forward_connections(
    runtime: GatewayRuntime, membership: ClusterMembership, own: tuple[str, int]
) -> AsyncGenerator[ConnectionForwarder | None]:
    """Forward connections to other gateways, and take theirs, for the length of a block.

    Only a gateway that advertises an address does.

    Raises:
        ConfigurationError: The address cannot be listened at.
    """
    nats = runtime.config.journal.nats
    if nats is None or nats.advertise is None:
        yield None
        return
    host, port = split_address(nats.advertise)
    check_encrypted(host, runtime.config.tls, insecure=runtime.config.insecure)
    listener = ForwardingListener(runtime, nats.known_token, own)
    try:
        server = await asyncio.start_server(listener.accept, host, port, limit=COPY_BYTES)
    except OSError as error:
        raise listen_error(host, port, error) from None
    log.info("connections of other gateways come in at %s", nats.advertise)
    forwarder = ConnectionForwarder(runtime, membership, nats.known_token, own)
    runtime.forwards = True
    watching = asyncio.create_task(forwarder.watch(), name="meup forwarding")
    try:
        yield forwarder
    finally:
        runtime.forwards = False
        watching.cancel()
        server.close()
        await forwarder.end()
        await listener.end()
