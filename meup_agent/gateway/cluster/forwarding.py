"""Forwarding between the gateways of a cluster: each passes connections on to a space's owner.

The head of a connection's first request says which space it is for, or else its join frame
(:mod:`~meup_agent.gateway.cluster.routing`); if that is not here, the forwarder copies bytes to the
address that its owner advertises. There it first proves by the cluster's token, which it does not
send, that it is one of them, and sends the member's address, so that wrong tokens count where they
came from. The owner dials its own port for each such connection, of the two the one at which it
came in, and copies on: a forwarded connection is decided there, as if it had come by itself, and is
not forwarded again.

Where members talk TLS, they talk it with the forwarder, and that talks it with the owner's port:
the owner's proof has the fingerprint of the certificate that the forwarder will see there, so that
nobody can stand in between.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from meup_agent.gateway.auth import UNAVAILABLE
from meup_agent.gateway.cluster.relay import (
    COPY_BYTES,
    RelayTasks,
    StreamPair,
    close_soon,
    copy,
    relay,
)
from meup_agent.gateway.cluster.routing import space_of, space_of_messages
from meup_agent.gateway.edge.listener import (
    ConnectionEnds,
    HandshakeLimiter,
    address_of,
    ends_of,
    forwarded_for,
    max_handshakes,
    pack_close,
)
from meup_agent.gateway.logs import quote
from meup_agent.gateway.network import check_encrypted, listen_error
from meup_agent.gateway.runtime import RESTARTING, STOPS

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

LAST_SECONDS: Final = 0.2
"""Wait for the last bytes of an owner whose space is elsewhere by now, its close frame among them:
one that hangs sends none."""

CHALLENGE_BYTES: Final = 32
"""Random bytes with which each side of a greeting begins."""

PROOF_BYTES: Final = 32

MAX_ADDRESS: Final = 254
"""Bytes of a member's address."""

SWITCHES: Final = b"HTTP/1.1 101 "
"""The answer to a handshake that is accepted."""

NOWHERE: Final = "the space is at no gateway now; connect again"

FAREWELL: Final = pack_close(RESTARTING, STOPS)
"""The end of a connection whose forwarder stops, or whose owner does not end it itself in time."""

OwnPort = Callable[[bool], tuple[str, int] | None]
"""Host and port of this gateway's port for WebSocket, or of that for HTTP; ``None``: it has none.
"""


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``, as another gateway says it; a :exc:`ValueError` else."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def proof_of(token: str, *said: bytes) -> bytes:
    """The proof that its sender has a token, for what both sides of a greeting said."""
    return hmac.digest(token.encode(), b"".join(said), sha256)


class ForeignPeer(Exception):
    """A program without the cluster's token listens at the address of a gateway."""


class Unforwarded(Exception):
    """A connection cannot be forwarded; says why, in one sentence."""


class Arrival(NamedTuple):
    """A connection as it came in: the head of its first request, and at which port."""

    head: bytes
    is_upgrade: bool
    at_http_port: bool
    address: str  # the member's


# --- a gateway that forwards connections ---


class ConnectionForwarder:
    """Forwards connections to spaces of other gateways."""

    def __init__(
        self, runtime: GatewayRuntime, membership: ClusterMembership, token: str, own: OwnPort
    ) -> None:
        self._runtime = runtime
        self._membership = membership
        self._token = token
        self._own = own
        self._relays = RelayTasks(runtime.limits.max_connections)
        # The space of each connection that is forwarded, and the nonce of the gateway it is at.
        self._forwarded: dict[asyncio.Task[None], tuple[str, str]] = {}

    def protocol_for(
        self,
        head: bytes,
        transport: asyncio.BaseTransport,
        *,
        is_upgrade: bool,
        at_http_port: bool = False,
    ) -> asyncio.BaseProtocol | None:
        """The protocol that takes over a connection whose first request has come.

        ``None``: it is answered here.
        """
        runtime = self._runtime
        if not runtime.accepting or ends_of(transport) in forwarded_for:
            return None  # forwarded once is enough: a space may be on its way
        space = space_of(head, runtime)
        if space is None:
            if not is_upgrade or at_http_port or len(runtime.spaces) == len(runtime.config.spaces):
                return None
        elif not self._is_elsewhere(space):
            return None
        arrival = Arrival(head, is_upgrade, at_http_port, address_of(transport))
        reader = asyncio.StreamReader(limit=COPY_BYTES)

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._relays.start(self._take_over(arrival, space, (reader, writer)), writer)

        return asyncio.StreamReaderProtocol(reader, begin)

    async def watch(self) -> None:
        """End connections whose space moves, until cancelled: an owner that hangs ends none."""
        ending = set[asyncio.Task[None]]()
        while True:
            spaces = {space for space, _ in self._forwarded.values()}
            owners = {space: self._membership.owner_of(space) for space in spaces}
            for relaying, (space, nonce) in tuple(self._forwarded.items()):
                owner = owners[space]
                if owner is not None and owner.nonce != nonce and relaying not in ending:
                    ending.add(relaying)
                    relaying.add_done_callback(ending.discard)
                    asyncio.get_running_loop().call_later(LAST_SECONDS, relaying.cancel)
            await self._membership.changed.wait()

    async def end(self) -> None:
        """Close all connections with 1012: their members dial again."""
        await self._relays.end()

    def _is_elsewhere(self, space: str) -> bool:
        """True for a space that another gateway has, or will have in a moment."""
        runtime = self._runtime
        if space in runtime.spaces or runtime.config.space(space) is None:
            return False
        return space not in runtime.stopped or self._membership.owner_of(space) is not None

    async def _take_over(self, arrival: Arrival, space: str | None, member: StreamPair) -> None:
        began = False
        try:
            if space is not None:
                await self._forward(space, arrival, member)
                return
            await member[0].readexactly(len(arrival.head))
            here = await self._dial_here(arrival)
            ends = ends_dialled(here[1])
            try:
                here[1].write(arrival.head)
                answer = await _read_head(here[0])
                member[1].write(answer)
                came = b""
                if answer.startswith(SWITCHES):
                    began = True
                    came, space = await self._read_join(member, here)
                if space is None:
                    here[1].write(came)
                    await relay(member, here)
                    return
            finally:
                close_soon(here[1])
                forwarded_for.pop(ends, None)
            # This gateway counted a connection that does not join; the owner counts it anew.
            of_page = b"\norigin:" in arrival.head.lower()
            self._runtime.join_throttle.joined(arrival.address, of_page=of_page)
            await self._forward(space, arrival, member, came)
        except Unforwarded as error:
            self._runtime.refusals.info(
                "a connection to %s is not forwarded: %s", quote(space or ""), error
            )
            member[1].write(pack_close(1013, NOWHERE) if began else _refusal(arrival))
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # as any other end of it
        finally:
            close_soon(member[1])

    async def _read_join(self, member: StreamPair, here: StreamPair) -> tuple[bytes, str | None]:
        """The bytes up to the join frame, and the space elsewhere that it names, or ``None``.

        Meanwhile this gateway pings the connection, and ends it if no join frame comes.
        """
        reading = asyncio.ensure_future(space_of_messages(member[0], self._runtime))
        copying = asyncio.ensure_future(copy(here[0], member[1]))
        try:
            await asyncio.wait({reading, copying}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise EOFError("it did not join")
            came, space = reading.result()
        finally:
            reading.cancel()
            copying.cancel()
            await asyncio.gather(reading, copying, return_exceptions=True)
        return came, space if space is not None and self._is_elsewhere(space) else None

    async def _forward(
        self, space: str, arrival: Arrival, member: StreamPair, came: bytes | None = None
    ) -> None:
        """Forward a connection; of one whose handshake was answered here, with what came since."""
        owner, there, ends = await self._dial_in_time(space, arrival)
        farewell = b""
        try:
            if arrival.is_upgrade:
                if came is None:
                    await member[0].readexactly(len(arrival.head))
                there[1].write(arrival.head)
                answer = await _read_head(there[0])
                is_begun = answer.startswith(SWITCHES)
                if came is None:
                    member[1].write(answer)
                elif is_begun:
                    there[1].write(came)
                else:
                    raise Unforwarded(answer.partition(b"\r")[0].decode("ascii", "replace"))
                farewell = FAREWELL if is_begun else b""
            relaying = asyncio.ensure_future(relay(member, there, farewell))
            if owner is not None:
                self._forwarded[relaying] = space, owner.nonce
            try:
                await asyncio.wait([relaying])
            finally:
                relaying.cancel()
                self._forwarded.pop(relaying, None)
                # It may still have to say farewell.
                await asyncio.wait([relaying])
        finally:
            close_soon(there[1])
            forwarded_for.pop(ends, None)

    async def _dial_in_time(
        self, space: str, arrival: Arrival
    ) -> tuple[NodeHeartbeat | None, StreamPair, ConnectionEnds]:
        """The gateway that has a space, a connection to it, and the ends of that."""
        problem = "nobody has it"
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                while True:
                    owner = await self._find_owner(space)
                    try:
                        there = await self._dial(owner, arrival)
                        # Now: a connection over TLS that has ended does not say it any more.
                        return owner, there, ends_dialled(there[1])
                    except (OSError, EOFError, ValueError) as failed:
                        problem = str(failed) or repr(failed)
                        if owner is not None:
                            self._membership.suspect(owner.nonce)
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            raise Unforwarded(problem) from None
        except ForeignPeer as error:
            log.warning("a connection to %s is not forwarded: %s", quote(space), error)
            raise Unforwarded(str(error)) from None

    async def _find_owner(self, space: str) -> NodeHeartbeat | None:
        """The gateway that has a space, as soon as one has; ``None``: this one."""
        while space not in self._runtime.spaces:
            owner = self._membership.owner_of(space)
            if owner is not None and owner.nonce != self._membership.nonce and owner.advertise:
                return owner
            await self._membership.changed.wait()
        return None

    async def _dial(self, owner: NodeHeartbeat | None, arrival: Arrival) -> StreamPair:
        """Dial a gateway, and have it take a member's connection."""
        if owner is None:  # the space has come here meanwhile
            return await self._dial_here(arrival)
        loop = asyncio.get_running_loop()
        there = await _connect(*split_address(owner.advertise))
        try:
            theirs = await _receive(there, CHALLENGE_BYTES)
            ours, address = secrets.token_bytes(CHALLENGE_BYTES), arrival.address.encode()
            told = bytes([arrival.at_http_port]) + address[:MAX_ADDRESS]
            proof = proof_of(self._token, b"forwarder", theirs, ours, told)
            await loop.sock_sendall(there, proof + ours + bytes([len(told)]) + told)
            fingerprint = await _receive(there, PROOF_BYTES)
            proof = await _receive(there, PROOF_BYTES)
            if not hmac.compare_digest(proof, proof_of(self._token, b"owner", ours, fingerprint)):
                raise ForeignPeer(f"{owner.advertise} does not have the token of this cluster")
            streams = await _open_streams(there, _client_context(self._runtime.config.tls))
        except BaseException:
            there.close()
            raise
        secure: ssl.SSLObject | None = streams[1].get_extra_info("ssl_object")
        if secure is not None:
            seen = sha256(secure.getpeercert(binary_form=True) or b"").digest()
            if not hmac.compare_digest(seen, fingerprint):
                streams[1].transport.abort()
                raise ForeignPeer(f"{owner.advertise} showed another certificate than it said")
        return streams

    async def _dial_here(self, arrival: Arrival) -> StreamPair:
        """Dial this gateway's own port for a member."""
        context = _client_context(self._runtime.config.tls)
        return await dial_own(self._own(arrival.at_http_port), context, arrival.address)


def _refusal(arrival: Arrival) -> bytes:
    """The answer to a request that reaches no gateway."""
    body, kind = NOWHERE.encode(), b"text/plain"
    if not arrival.is_upgrade:
        body = msgspec.json.encode({"error": "unavailable", "message": NOWHERE})
        kind = b"application/json"
    phrase = HTTPStatus(UNAVAILABLE).phrase.encode()
    return (
        b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (UNAVAILABLE, phrase, kind, len(body), body)
    )


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """The head of the answer to a handshake."""
    async with asyncio.timeout(GREETING_SECONDS):
        return await reader.readuntil(b"\r\n\r\n")


async def _open_streams(there: socket.socket, context: ssl.SSLContext | None) -> StreamPair:
    return await asyncio.open_connection(
        sock=there,
        limit=COPY_BYTES,
        ssl=context,
        server_hostname=None if context is None else "meup",
    )


async def _connect(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    error, kind = OSError(f"{host} has no address"), socket.SOCK_STREAM
    try:
        # An address needs no thread, which takes milliseconds on a busy machine.
        found = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await loop.getaddrinfo(host, port, type=kind)
    for family, kind, number, _, place in found:
        there = socket.socket(family, kind, number)
        there.setblocking(False)
        try:
            await loop.sock_connect(there, place)
            return there
        except BaseException as failed:
            there.close()
            if not isinstance(failed, OSError):
                raise
            error = failed
    raise error


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
    own: tuple[str, int] | None, context: ssl.SSLContext | None, address: str
) -> StreamPair:
    """Dial this gateway's own port for a member with an address."""
    if own is None:
        raise ConnectionRefusedError("this gateway does not serve HTTP")
    there = await _connect(*own)
    ends = ConnectionEnds(there.getsockname()[:2], there.getpeername()[:2])
    # Before the first byte: with that the gateway asks where the connection comes from.
    forwarded_for[ends] = address
    try:
        return await _open_streams(there, context)
    except BaseException:
        forwarded_for.pop(ends, None)
        there.close()
        raise


def ends_dialled(writer: asyncio.StreamWriter) -> ConnectionEnds:
    """The ends of a connection that was dialled here."""
    near, far = (writer.get_extra_info(name)[:2] for name in ("sockname", "peername"))
    return ConnectionEnds(near, far)


# --- the owner ---


class _Greeting:
    """A connection that has not shown yet that it is another gateway's."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self.drop = transport.abort


class ForwardingListener:
    """The address at which a gateway takes connections that others forward."""

    def __init__(self, runtime: GatewayRuntime, token: str, own: OwnPort) -> None:
        self._runtime = runtime
        self._token = token
        self._own = own
        limits = runtime.limits
        # By themselves: strangers that only hold a place keep no member out.
        greetings = max_handshakes(limits)
        self._greetings = HandshakeLimiter(greetings, GREETING_SECONDS)
        self._relays = RelayTasks(limits.max_connections + greetings)
        self._read_certificate()
        runtime.on_reload.append(self._read_certificate)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection of a forwarder."""
        self._relays.start(self._accept(reader, writer), writer)

    async def end(self) -> None:
        """End all connections."""
        self._greetings.drop_all()
        await self._relays.end()

    def _read_certificate(self) -> None:
        self._fingerprint = _fingerprint(self._runtime.config.tls)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            greeting = _Greeting(writer.transport)
            self._greetings.begin(greeting)
            try:
                told, theirs = await self._greet(reader, writer)
            finally:
                self._greetings.end(greeting)
            # Bytes as they come: TLS is between the forwarder and the port. First, so that it
            # finds another owner where this one ends and takes nothing more at its port.
            async with asyncio.timeout(GREETING_SECONDS):
                address = told[1:].decode(errors="replace")
                own = await dial_own(self._own(told[0] == 1), None, address)
        except BaseException as error:
            writer.transport.abort()
            if isinstance(error, ForeignPeer):
                self._runtime.refusals.info("%s", error)
            elif not isinstance(error, (OSError, EOFError)):
                raise
            return
        ends = ends_dialled(own[1])
        try:
            proof = proof_of(self._token, b"owner", theirs, self._fingerprint)
            writer.write(self._fingerprint + proof)
            await relay((reader, writer), own)
        finally:
            forwarded_for.pop(ends, None)

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[bytes, bytes]:
        """Have the other side show that it is a gateway: what it tells, and its challenge."""
        ours = secrets.token_bytes(CHALLENGE_BYTES)
        writer.write(ours)
        proof = await reader.readexactly(PROOF_BYTES)
        theirs = await reader.readexactly(CHALLENGE_BYTES)
        (length,) = await reader.readexactly(1)
        told = await reader.readexactly(length)
        expected = proof_of(self._token, b"forwarder", ours, theirs, told)
        if not hmac.compare_digest(proof, expected) or not told:
            where = address_of(writer.transport)
            raise ForeignPeer(f"{where} is not a gateway of this cluster: its token is another")
        return told, theirs


@asynccontextmanager
async def forward_connections(
    runtime: GatewayRuntime, membership: ClusterMembership, own: OwnPort
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
