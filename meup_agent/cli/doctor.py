"""``meup doctor``: checks of the way to a gateway, and of the gateway.

The diagnosis runs the checks in their order until one fails that the rest need; the steps to the
port and its certificate it takes alone, and records the one connection that is made. Findings are
the results, with advice. Nothing is sent into the space.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import statistics
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from errno import ECONNREFUSED
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol, Self
from urllib.parse import SplitResult, urlsplit

import anyio
from anyio import RunFinishedError, from_thread
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import current_token
from anyio.streams.tls import TLSAttribute, TLSStream

from meup_agent.agent.agent import Agent
from meup_agent.cli.address import Address, SpaceOptions
from meup_agent.cli.render.formatting import name_some
from meup_agent.cli.session import format_close
from meup_agent.client.space import Space
from meup_agent.errors import (
    ConfigurationError,
    ConnectionFailed,
    HandshakeRefused,
    InvalidEnvelope,
    InvalidPattern,
    MeupError,
    SessionEnded,
    TransportError,
)
from meup_agent.escape import compact, visible
from meup_agent.protocol.capability import compile_kind
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import microseconds, read_moment
from meup_agent.protocol.wire.membership import WELCOME_KEY, Guarantees
from meup_agent.protocol.wire.payloads import TOOL_CALL, as_object, one_or_more, unwrapped
from meup_agent.session.settings import Settings
from meup_agent.transport.base import CloseInfo, Transport
from meup_agent.transport.connect_failure import reason_for, untrusted, with_tls, without_tls
from meup_agent.transport.listener_owner import ForeignListener
from meup_agent.transport.urls import (
    handshake_url,
    short_path,
    socket_path,
)
from meup_agent.transport.websocket import WebSocketTransport, websocket_connector
from meup_agent.wording import shown_name

if TYPE_CHECKING:
    from meup_agent.protocol.wire.envelope import Envelope


# --- findings ---
# The results of `meup doctor`: its checks, facts about a gateway, and advice on refusals.

NAMES: Final = (
    "address",
    "settings",
    "name",
    "port",
    "tls",
    "handshake",
    "token",
    "space",
    "welcome",
    "dialect",
    "gateway",
    "me",
    "may",
    "here",
    "round trip",
    "clock",
)
"""The checks, in their order."""

NEEDED: Final = frozenset(NAMES[2:9])  # the checks without which there is no connection
NOT_TRIED: Final = "not tried"
NOT_NEEDED: Final = "none, and none is needed on one machine"
FIRST_CLOSE_CODE: Final = 1000  # below it are HTTP's statuses
_TOKEN: Final = "check MEUP_TOKEN, --token-file or --token; a space's configuration has its tokens"
_SPACE: Final = "check --space or MEUP_SPACE, and the path in the address"

_REFUSALS: Final[dict[int, tuple[str, str, str]]] = {
    401: ("token", "the gateway refuses the token", _TOKEN),
    403: ("token", "the gateway refuses the token", _TOKEN),
    404: ("space", "there is no such space, or no gateway at this path", _SPACE),
    4401: ("token", "the gateway refuses the token", _TOKEN),
    4403: ("welcome", "the participant is kept out of the space", "ask the operator of the space"),
    4404: ("space", "there is no such space", _SPACE),
    4409: ("welcome", "another program joined with the same token", "give each one of its own"),
    429: ("handshake", "the gateway has too much to do", "try again later"),
    503: ("handshake", "the gateway has too much to do, or is not up yet", "try again later"),
    1013: ("welcome", "the gateway has too much to do", "try again later"),
}
"""By HTTP status or close code (PROTOCOL 3): the check that fails, what happened, what to do."""

_FORBIDDEN: Final = 403

_NO_REASON: Final = (
    "handshake",
    "no gateway is at this path, or something in front of it refuses the token",
    "check the path in the address, which for a mounted gateway begins with the path of its mount;"
    " then the token",
)
"""For 403 without a reason: an ASGI server answers so where nothing is at a path."""

MAX_LIMIT: Final = 80  # characters of one pattern that are shown

_VERBS: Final = {
    "call tools": kinds.MCP_REQUEST,
    "propose": kinds.MCP_PROPOSAL,
    "reject": kinds.MCP_REJECT,
    "chat": kinds.CHAT,
    "grant capabilities": "capability/grant",
}


class Permission(NamedTuple):
    """The permission to send one kind of envelope."""

    verb: str
    allowed: bool
    limits: tuple[str, ...] = ()  # in words; empty: all of it

    def __str__(self) -> str:
        """``call tools (only read_*, list_*)``."""
        return f"{self.verb} (only {', '.join(self.limits)})" if self.limits else self.verb


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    ok: bool | None  # None: not tried, or there was nothing to look at
    said: str  # safe to print
    advice: str = ""  # what to do; where all is good, to think of


MAX_SAID: Final = 400
"""Characters of a sentence."""


def failed_check(name: str, error: MeupError) -> Check:
    """A check that failed by an error, whose last part is the advice."""
    said, _, advice = str(error).rpartition("; ")
    words = visible(said or advice, MAX_SAID)
    return Check(name, False, words, visible(advice, MAX_SAID) if said else "")


def failed_names(checks: Iterable[Check]) -> list[str]:
    """The names of the checks that failed."""
    return [check.name for check in checks if check.ok is False]


@dataclass(slots=True)
class Report:
    """All results of one run."""

    url: str = ""  # empty: there was none to dial
    space: str = ""  # as asked for
    checks: list[Check] = field(default_factory=list[Check])
    lost: bool = False  # the connection ended before everything was looked at
    me: str = ""
    asked: str = ""  # the dialect, as is the next
    adopted: str = ""
    guarantees: Guarantees | None = None  # None: the gateway was not reached
    said_guarantees: bool = False  # by the gateway itself
    capabilities: tuple[Any, ...] = ()
    permissions: list[Permission] = field(default_factory=list[Permission])
    participants: tuple[str, ...] = ()  # all that are present, ours included
    round_trip: float | None = None  # seconds
    clock_difference: float | None = None  # seconds that the gateway's is ahead of ours

    @property
    def ok(self) -> bool:
        return not failed_names(self.checks)

    @property
    def connected(self) -> bool:
        return not self.lost and NEEDED.isdisjoint(failed_names(self.checks))


def refusal(code: int, reason: str) -> tuple[str, str, str]:
    """The check that fails by a status or a close code, what happened, and what to do."""
    if code == _FORBIDDEN and not reason:
        return _NO_REASON
    advice = "check the address: host, port and path"
    other = ("welcome", "the connection was closed before the welcome", advice)
    if code < FIRST_CLOSE_CODE:
        other = ("handshake", "what answers is not a gateway", advice)
    return _REFUSALS.get(code, other)


def no_handshake(error: TransportError, timeout: float) -> tuple[str, str]:
    """The reason why a port that took a connection made no WebSocket of it, and what to do."""
    match error.__cause__:
        case TimeoutError():
            return (
                f"no answer within {timeout:g} s: the port takes connections and says nothing",
                "check the port; if it is the gateway's, the gateway hangs: restart it",
            )
        case ForeignListener() as foreign:
            return str(foreign), foreign.advice
        case cause:
            root = cause if cause is None or cause.__cause__ is None else cause.__cause__
            why = visible(str(root or error), 120)
            return (f"what listens there answers no WebSocket handshake: {why}", with_tls("ws"))


# --- what capabilities allow ---


def permissions_of(capabilities: Sequence[Any]) -> list[Permission]:
    """The permissions that capabilities give, as far as they can be understood."""
    return [_ability(verb, kind, capabilities) for verb, kind in _VERBS.items()]


def format_permissions(permissions: Sequence[Permission]) -> str:
    """Format permissions as a sentence; who may call tools may fulfill proposals (PROTOCOL 4.4)."""
    allowed = [str(each) for each in permissions if each.allowed]
    said = ", ".join(allowed) or "nothing but look on"
    lacking = [each.verb for each in permissions if not each.allowed]
    return f"{said}; not: {', '.join(lacking)}" if allowed and lacking else said


def _ability(verb: str, kind: str, capabilities: Sequence[Any]) -> Permission:
    limits: list[str] = []
    for capability in capabilities:
        item = as_object(capability)
        if not _fits(item.get("kind"), kind):
            continue
        if "payload" not in item:
            return Permission(verb, True)
        limits.append(_limit(as_object(item["payload"])))
    return Permission(verb, bool(limits), tuple(dict.fromkeys(limits)))


def _fits(pattern: object, kind: str) -> bool:
    patterns = (each for each in one_or_more(pattern) if isinstance(each, str))
    try:
        return any(compile_kind(each)(kind) for each in patterns)
    except InvalidPattern:
        return False


def _limit(pattern: dict[str, Any]) -> str:
    """The limit that a payload's pattern sets: tool's name or method, else the pattern."""
    pattern = unwrapped(pattern)
    names: object = None
    match pattern:
        case {"params": {"name": named, **more}, **rest} if (
            not more and rest.get("method", TOOL_CALL) == TOOL_CALL and rest.keys() <= {"method"}
        ):
            names = named
        case {"method": method, **rest} if not rest:
            names = method
        case _:
            pass
    values = one_or_more(names)
    said = [visible(each, MAX_LIMIT) for each in values if isinstance(each, str)]
    return ", ".join(said) if said and len(said) == len(values) else compact(pattern, MAX_LIMIT)


# --- the way to a gateway, one step at a time ---
# Its name, port and certificate, then one connection.
#
# A connection takes these steps by itself; here each is taken alone, so that a failure says which.
# The connection is the only one that a diagnosis makes; its handshake and welcome are recorded.

_START: Final = "start the gateway there, or check the address"


class Unreachable(Exception):
    """A step of the way failed: what happened, and what to do."""

    def __init__(self, said: str, advice: str) -> None:
        super().__init__(said)
        self.advice = advice


class HostPort(NamedTuple):
    """The host and port at which a gateway listens."""

    host: str
    port: int

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
            why = "this is not a host's name"
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


async def probe_tls(stream: ByteStream, place: HostPort, timeout: float) -> str:
    """Go over to TLS; what was agreed on, in words."""
    with anyio.move_on_after(timeout):
        try:
            wrapped = await TLSStream.wrap(stream, hostname=place.host, standard_compatible=False)
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


async def connect(place: HostPort, timeout: float) -> ByteStream:
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
        self.response_headers = inner.response_headers
        self.send, self.aclose, self.abort = inner.send, inner.aclose, inner.abort
        self.welcome: Envelope | None = None
        self.welcomed_at: datetime | None = None
        self.seconds: float | None = None
        self.unread = ""
        self._made_at = anyio.current_time()

    @property
    def closed(self) -> CloseInfo | None:
        """The end of the connection; ``None`` while it is open or still closing."""
        return self.inner.closed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        frame = await self.inner.__anext__()
        if self.welcome is None:
            self._read_frame(frame)
        return frame

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
            if self.waiting is not None and not self.is_welcome:
                self.waiting.cancel()

    @property
    def is_welcome(self) -> bool:
        """True once there was a welcome."""
        return self.recording is not None and self.recording.welcome is not None


# --- the diagnosis ---
# One check after the other, until one fails that the rest need.

PINGS: Final = 5  # pings of which the median is told: the first is slower than the others

MAX_CLOCK_SECONDS: Final = 60.0
"""The difference up to which times of expiry are trusted (PROTOCOL 6)."""

MAX_LISTED: Final = 16  # participants that are named

_NAME: Final = (
    "give --participant or MEUP_PARTICIPANT: this gateway goes by the name that one gives"
)


class DoctorListener(Protocol):
    """Receives the results as they come."""

    def begin_attempt(self, what: str, seconds: float | None = None) -> None:
        """Note what begins and may take a while; of what is no step, with its seconds."""
        ...

    async def report_check(self, check: Check) -> None: ...


class _CheckFailed(Exception):
    """A check failed, and those after it cannot be tried."""


async def diagnose(given: SpaceOptions, listener: DoctorListener, *, timeout: float) -> Report:
    """Try one thing after the other, each for so many seconds."""
    diagnosis = _Diagnosis(given, listener, timeout)
    with suppress(_CheckFailed):
        await diagnosis.run()
    await diagnosis.tell_untried()
    return diagnosis.report


@dataclass(slots=True)
class _Diagnosis:
    _given: SpaceOptions
    _listener: DoctorListener
    _timeout: float
    report: Report = field(default_factory=Report)
    _participant: str | None = None

    async def run(self) -> None:
        """All checks."""
        path = await self._address()
        where = await self._settings()
        if path is None:
            await self._way(urlsplit(self.report.url))
        else:
            await self._way_to_socket(path)
        if where is None:
            raise _CheckFailed
        await self._join(where)

    async def tell_untried(self) -> None:
        """Tell the checks that there was no use in trying."""
        for name in self._untried():
            await self._tell(name, None, NOT_TRIED)
        self.report.checks.sort(key=lambda check: NAMES.index(check.name))

    # --- before there is a connection ---

    async def _address(self) -> str | None:
        """The path of a Unix socket, if that is the address."""
        try:
            given = self._given.url or ""
            path = socket_path(given)
            self.report.url = handshake_url(given, None) if path is None else given
        except ConfigurationError as error:
            await self._fail(failed_check("address", error))
        await self._good("address", visible(self.report.url, 200))
        return path

    async def _settings(self) -> Address | None:
        try:
            where = self._given.address()
            token = where.token if isinstance(where.token, str) else where.token()
        except ConfigurationError as error:
            # The way to the gateway can be tried all the same.
            await self._report(failed_check("settings", error))
            return None
        self.report.space = where.space
        self._participant = where.participant
        as_whom = "" if where.participant is None else f", as {shown_name(where.participant)}"
        await self._good("settings", f"space {shown_name(where.space)}, with a token{as_whom}")
        return where._replace(token=token)

    async def _way(self, url: SplitResult) -> None:
        is_tls, host = url.scheme == "wss", url.hostname or ""
        place = HostPort(host, (443 if is_tls else 80) if url.port is None else url.port)
        name = "name"
        try:
            self._listener.begin_attempt(f"an address of {host}")
            addresses = await resolve_host(place, self._timeout)
            said = "an address already" if _address(host) else ", ".join(addresses)
            await self._good(name, f"{host} is {said}")
            name = "port"
            self._listener.begin_attempt(f"{place} to take a connection")
            async with await connect(place, self._timeout) as stream:
                answered = str(stream.extra(SocketAttribute.remote_address)[0])
                await self._good(name, f"{HostPort(answered, place.port)} takes connections")
                name = "tls"
                address = _address(answered.partition("%")[0])
                if is_tls:
                    self._listener.begin_attempt(f"{place} to answer in TLS")
                    await self._good(name, await probe_tls(stream, place, self._timeout))
                elif address is not None and address.is_loopback:
                    await self._tell(name, None, NOT_NEEDED)
                else:
                    await self._good(
                        name,
                        "none: tokens and messages can be read on the way",
                        "put a proxy with TLS in front of the gateway, and write wss://",
                    )
        except Unreachable as error:
            await self._bad(name, visible(str(error), 300), error.advice)

    async def _way_to_socket(self, path: str) -> None:
        await self._tell("name", None, NOT_NEEDED)
        try:
            self._listener.begin_attempt(f"{path} to take a connection")
            await probe_socket(path, self._timeout)
        except Unreachable as error:
            await self._bad("port", visible(str(error), 300), error.advice)
        await self._good("port", f"the socket {visible(path, 200)} takes connections")
        await self._tell("tls", None, NOT_NEEDED)

    # --- the connection ---

    async def _join(self, where: Address) -> None:
        self._listener.begin_attempt("an answer to the handshake")
        once = OneShotConnector(where, self._timeout, self._made)
        settings = Settings(first_welcome=None)
        self.report.asked = settings.dialect
        joining = Agent("meup doctor").join(
            once,
            **where.identity,
            settings=settings,
            grace=0.0,
            observe=True,
            take_over=True,
        )
        try:
            with anyio.CancelScope() as waiting:
                once.waiting = waiting
                async with joining as space:
                    waiting.deadline = float("inf")
                    assert once.recording is not None
                    await self._look_around(space, once.recording)
        except (ConnectionFailed, AlreadyDialled) as error:
            if once.is_welcome:
                self.report.lost = True
                if isinstance(error, SessionEnded):
                    await self._fail(failed_check(self._next_name(), error))
                why = format_close(once.closed) if once.closed is not None else str(error)
                await self._bad(
                    self._next_name(),
                    f"the connection ended: {visible(why, 300)}",
                    "try again; if it stays so, look into the gateway's log",
                )
        if not once.is_welcome:
            await self._not_welcome(once)

    async def _made(self, headers: Mapping[str, str]) -> None:
        """The handshake is done; what came with it."""
        said = [
            f"{name} {shown_name(headers[key])}"
            for key, name in (("meup-protocol", "MEUP-Protocol"), ("server", "Server"))
            if headers.get(key)
        ]
        await self._good("handshake", ", ".join(["a WebSocket (status 101)", *said]))
        self._listener.begin_attempt("the welcome")

    async def _not_welcome(self, once: OneShotConnector) -> NoReturn:
        """Say why there is no welcome."""
        match once.failure, once.closed:
            case HandshakeRefused() as error, _:
                await self._refused(error.status, f"status {error.status}", error.body)
            case TransportError() as error, _:
                said, advice = no_handshake(error, self._timeout)
                await self._bad("handshake", said, advice)
            case _, CloseInfo(local=False) as info:
                await self._refused(info.code, f"code {info.code}", info.reason)
            case _:
                pass
        said = f"none came within {self._timeout:g} s"
        if once.recording is not None and once.recording.unread:
            said = f"what came is not a welcome: {visible(once.recording.unread, 200)}"
        await self._bad("welcome", said, "check that a MEUP gateway listens there")

    async def _refused(self, code: int, shown: str, body: str) -> NoReturn:
        name, said, advice = refusal(code, body)
        # A sentence tells something; a page of a web server does not.
        words = "" if body.startswith("<") or "\\n" in body else visible(body, 120)
        if code < FIRST_CLOSE_CODE and name != "handshake":
            await self._good("handshake", f"answered with status {code}")
        await self._bad(name, f"{said} ({shown}{f': {words}' if words else ''})", advice)

    # --- in the space ---

    async def _look_around(self, space: Space, recording: RecordingTransport) -> None:
        report, welcome = self.report, recording.welcome
        assert welcome is not None
        report.me = space.me
        report.adopted = welcome.protocol
        report.guarantees = space.gateway.guarantees
        report.said_guarantees = WELCOME_KEY in welcome.payload_object
        report.participants = tuple(each.id for each in space.participants)
        report.capabilities = space.capabilities
        report.permissions = permissions_of(report.capabilities)
        me, checked = shown_name(space.me), report.guarantees.identity_checked
        if checked:
            await self._good("token", f"good: the gateway knows it as {me}")
        else:
            await self._good(
                "token",
                "taken, as any would be: this gateway does not check who is who",
                "believe no name in this space; let the network decide who gets to it",
            )
        await self._good("space", shown_name(report.space))
        await self._good(
            "welcome", f"{(recording.seconds or 0.0) * 1000:.0f} ms after the handshake"
        )
        asked = "as asked" if report.adopted == report.asked else f"asked for {report.asked}"
        await self._good("dialect", f"{shown_name(report.adopted)}, {asked}")
        await self._good(
            "gateway",
            "it says what it guarantees (below)"
            if report.said_guarantees
            else f"an existing one of {shown_name(report.adopted)}: it says nothing of itself, so"
            " what gateways of its kind were seen to do is assumed (below)",
        )
        await self._good("me", me, "" if checked or self._participant else _NAME)
        await self._good("may", format_permissions(report.permissions))
        others = [name for name in report.participants if name != report.me]
        await self._good("here", name_some(others, MAX_LISTED) or "no others")
        await self._round_trip(recording.inner)
        await self._clock(welcome.ts, recording.welcomed_at)

    async def _round_trip(self, transport: Transport) -> None:
        if not isinstance(transport, WebSocketTransport):
            return
        self._listener.begin_attempt("the answers to pings")
        taken: list[float] = []
        with anyio.move_on_after(self._timeout):
            for _ in range(PINGS):
                began = anyio.current_time()
                await transport.round_trip()
                taken.append(anyio.current_time() - began)
        if not taken:
            await self._tell(
                "round trip",
                False,
                f"no ping was answered within {self._timeout:g} s",
                "the gateway or the network is overloaded: the connection will not last",
            )
            return
        self.report.round_trip = statistics.median(taken)
        shown = [f"{each * 1000:.2f}" for each in (self.report.round_trip, min(taken), max(taken))]
        await self._good(
            "round trip",
            f"{shown[0]} ms (median of {len(taken)} pings, {shown[1]} to {shown[2]} ms)",
        )

    async def _clock(self, said: str | None, at: datetime | None) -> None:
        moment = read_moment(said)
        if at is None or moment is None:
            await self._tell("clock", None, "the welcome tells no time")
            return
        ahead = (moment - microseconds(at)) / 1_000_000 + (self.report.round_trip or 0.0) / 2
        self.report.clock_difference = ahead
        if abs(ahead) < 1:
            await self._good("clock", "the gateway's and ours differ by less than a second")
            return
        words = f"the gateway's is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} ours"
        advice = "set the clocks: times of expiry are not believed beyond 60 s of difference"
        ok = abs(ahead) <= MAX_CLOCK_SECONDS
        await self._tell("clock", ok, words, "" if ok else advice)

    # --- telling ---

    async def _tell(self, name: str, ok: bool | None, said: str, advice: str = "") -> None:
        await self._report(Check(name, ok, said, advice))

    async def _report(self, check: Check) -> None:
        self.report.checks.append(check)
        await self._listener.report_check(check)

    async def _good(self, name: str, said: str, advice: str = "") -> None:
        await self._tell(name, True, said, advice)

    async def _bad(self, name: str, said: str, advice: str) -> NoReturn:
        await self._fail(Check(name, False, said, advice))

    async def _fail(self, check: Check) -> NoReturn:
        await self._report(check)
        raise _CheckFailed

    def _next_name(self) -> str:
        return self._untried()[0]

    def _untried(self) -> list[str]:
        told = {check.name for check in self.report.checks}
        return [name for name in NAMES if name not in told]
