"""The way to a gateway, one step at a time: its name, port and certificate, then one connection.

A connection takes these steps by itself; here each is taken alone, so that a failure says which.
The connection is the only one that a diagnosis makes; its handshake and welcome are recorded.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from errno import ECONNREFUSED
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import anyio
from anyio import RunFinishedError, from_thread
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import current_token
from anyio.streams.tls import TLSAttribute, TLSStream

from meup_agent.cli.address import Address
from meup_agent.errors import InvalidEnvelope, TransportError
from meup_agent.protocol import kinds
from meup_agent.protocol.dialects import decode
from meup_agent.transport.handshake import reason_for, untrusted, without_tls
from meup_agent.transport.unix_socket import short_path
from meup_agent.transport.websocket import websocket_connector

if TYPE_CHECKING:
    from typing import Self

    from meup_agent.protocol.envelope import Envelope
    from meup_agent.transport.base import CloseInfo, Transport

_START: Final = "start the gateway there, or check the address"

_PORTS: Final = {"ws": 80, "wss": 443}


class Unreachable(Exception):
    """A step of the way failed: what happened, and what to do."""

    def __init__(self, said: str, advice: str) -> None:
        super().__init__(said)
        self.advice = advice


class HostPort(NamedTuple):
    """The host and port at which a gateway listens."""

    host: str
    port: int
    is_tls: bool

    @classmethod
    def of(cls, url: str) -> HostPort:
        """The place that a checked address names."""
        parts = urlsplit(url)
        port = _PORTS[parts.scheme] if parts.port is None else parts.port
        return cls(parts.hostname or "", port, parts.scheme == "wss")

    @property
    def is_address(self) -> bool:
        """True if the host is an address and no name."""
        return _address(self.host) is not None

    def __str__(self) -> str:
        """``host:port``, as in an address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def resolve_host(place: HostPort, timeout: float) -> list[str]:
    """The addresses of a host."""
    with anyio.move_on_after(timeout):
        try:
            return await _resolve(place)
        except OSError as error:
            why = reason_for(error, timeout).lower()
        except UnicodeError:
            why = "this is no host's name"
        raise Unreachable(
            f"{place.host} has no address: {why}", "check the host in the address, and the network"
        )
    raise Unreachable(
        f"the name servers gave no address of {place.host} within {timeout:g} s",
        "check this machine's network and its name servers",
    )


async def _resolve(place: HostPort) -> list[str]:
    """Ask the system, in a thread that is not waited for at the end: it may take half a minute."""
    done, token = anyio.Event(), current_token()
    found: list[str] = []
    failures: list[Exception] = []

    def ask() -> None:
        try:
            infos = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
            found.extend(dict.fromkeys(str(info[4][0]) for info in infos))
        except (OSError, UnicodeError) as error:
            failures.append(error)
        with suppress(RunFinishedError, RuntimeError):
            from_thread.run_sync(done.set, token=token)

    threading.Thread(target=ask, name="meup doctor: name", daemon=True).start()
    await done.wait()
    if failures:
        raise failures[0]
    return found


async def probe_port(place: HostPort, timeout: float) -> str:
    """Connect and leave; the address that took it."""
    async with await _connect(place, timeout) as stream:
        return str(stream.extra(SocketAttribute.remote_address)[0])


async def probe_socket(path: str, timeout: float) -> None:
    """Connect to a Unix socket and leave."""
    try:
        with anyio.fail_after(timeout), short_path(path) as short:
            async with await anyio.connect_unix(short):
                pass
    except TimeoutError:
        raise Unreachable(f"{path} did not answer within {timeout:g} s", _START) from None
    except (FileNotFoundError, ConnectionRefusedError):
        raise Unreachable(f"nothing listens at {path}", _START) from None
    except OSError as error:
        raise Unreachable(
            f"{path} cannot be reached: {reason_for(error, timeout)}",
            "check the path and who owns it",
        ) from None


async def probe_tls(place: HostPort, timeout: float) -> str:
    """Connect in TLS and leave; what was agreed on, in words."""
    async with await _connect(place, timeout) as stream:
        with anyio.move_on_after(timeout):
            try:
                wrapped = await TLSStream.wrap(
                    stream, hostname=place.host, standard_compatible=False
                )
            except ssl.SSLCertVerificationError as error:
                raise Unreachable(*untrusted(error)) from None
            except (ssl.SSLError, OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
                why = error.reason if isinstance(error, ssl.SSLError) else ""
                raise Unreachable(
                    f"{place} speaks no TLS{f': {why}'.lower() if why else ''}", without_tls("wss")
                ) from None
            certificate = wrapped.extra(TLSAttribute.peer_certificate) or {}
            until = str(certificate.get("notAfter", "an unknown time"))
            return f"{wrapped.extra(TLSAttribute.tls_version)}, certificate good until {until}"
    raise Unreachable(f"{place} did not answer in TLS within {timeout:g} s", without_tls("wss"))


async def _connect(place: HostPort, timeout: float) -> ByteStream:
    try:
        with anyio.fail_after(timeout):
            return await anyio.connect_tcp(place.host, place.port)
    except TimeoutError:
        raise Unreachable(
            f"{place} did not answer within {timeout:g} s",
            "check host and port, and whether a firewall stands in between",
        ) from None
    except OSError as error:
        why = reason_for(error, timeout)
        refused = why == os.strerror(ECONNREFUSED).lower()
        raise Unreachable(
            f"nothing listens at {place}" if refused else f"{place} cannot be reached: {why}",
            "start the gateway there, or check host and port"
            if refused
            else "check the host in the address, and the network",
        ) from None


def is_local(addresses: Sequence[str]) -> bool:
    """True if all of these addresses are this machine's own."""
    found = [_address(each.partition("%")[0]) for each in addresses]
    return bool(found) and all(each is not None and each.is_loopback for each in found)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


# --- the connection ---


class RecordingTransport:
    """A transport that keeps the first welcome that comes over it."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.welcome: Envelope | None = None
        self.welcomed_at: datetime | None = None
        self.seconds: float | None = None
        self.unread = ""
        self._made_at = anyio.current_time()

    @property
    def closed(self) -> CloseInfo | None:
        """The end of the connection; ``None`` while it is open or still closing."""
        return self.inner.closed

    @property
    def response_headers(self) -> Mapping[str, str]:
        """The headers of the handshake's answer, by names in lower case."""
        return self.inner.response_headers

    async def send(self, frame: bytes) -> None:
        """Send one message."""
        await self.inner.send(frame)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        frame = await self.inner.__anext__()
        if self.welcome is None:
            self._read_frame(frame)
        return frame

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection."""
        await self.inner.aclose(code, reason)

    async def abort(self) -> None:
        """End the connection at once."""
        await self.inner.abort()

    def _read_frame(self, frame: bytes) -> None:
        try:
            envelope = decode(frame)
        except InvalidEnvelope as error:
            self.unread = str(error)
            return
        if envelope.kind != kinds.SYSTEM_WELCOME:
            self.unread = f"an envelope of kind {envelope.kind}"
            return
        self.welcome = envelope
        self.welcomed_at = datetime.now(UTC)
        self.seconds = anyio.current_time() - self._made_at


class AlreadyDialled(Exception):
    """The only attempt to connect is over."""


class OneShotConnector:
    """A connector that dials once, and keeps what is learned on the way.

    ``timeout`` holds for the handshake, and again for the welcome: ``waiting`` ends when that is
    overdue. A second call raises :class:`AlreadyDialled`.
    """

    def __init__(
        self, where: Address, timeout: float, made: Callable[[Mapping[str, str]], Awaitable[None]]
    ) -> None:
        self.where = where.url
        self.waiting: anyio.CancelScope | None = None
        self.recording: RecordingTransport | None = None
        self.failure: TransportError | None = None
        self.closed: CloseInfo | None = None
        self._connector = websocket_connector(
            where.url, space=where.space, handshake_timeout=timeout
        )
        self._timeout = timeout
        self._made = made
        self._dialled = False

    @asynccontextmanager
    async def __call__(self, headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
        """Open the connection; leaving the block closes it."""
        if self._dialled:
            raise AlreadyDialled
        self._dialled = True
        try:
            async with self._connector(headers) as transport:
                await self._made(transport.response_headers)
                self.recording = RecordingTransport(transport)
                if self.waiting is not None:
                    self.waiting.deadline = anyio.current_time() + self._timeout
                yield self.recording
                self.closed = transport.closed
        except TransportError as error:
            self.failure = error
            raise
        finally:
            # No use in waiting any more, least of all as long as a Retry-After asks for.
            if self.waiting is not None and (
                self.recording is None or self.recording.welcome is None
            ):
                self.waiting.cancel()
