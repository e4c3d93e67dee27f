"""The diagnosis: one check after the other, until one fails that the rest need."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final, NoReturn, Protocol

import anyio

from meup_agent.agent.agent import Agent
from meup_agent.cli.address import Address, SpaceOptions
from meup_agent.cli.doctor.findings import (
    FIRST_CLOSE_CODE,
    NAMES,
    NOT_TRIED,
    Check,
    Report,
    format_permissions,
    no_handshake,
    permissions_of,
    refusal,
)
from meup_agent.cli.doctor.probe import (
    AlreadyDialled,
    HostPort,
    OneShotConnector,
    RecordingTransport,
    Unreachable,
    is_local,
    probe_port,
    probe_socket,
    probe_tls,
    resolve_host,
)
from meup_agent.cli.render.formatting import name_some
from meup_agent.cli.reporting_connector import format_close
from meup_agent.client.space import Space
from meup_agent.errors import (
    ConfigurationError,
    ConnectionFailed,
    HandshakeRefused,
    MeupError,
    SessionEnded,
    TransportError,
)
from meup_agent.escape import visible
from meup_agent.protocol.guarantees import WELCOME_KEY
from meup_agent.session.settings import Settings
from meup_agent.transport.base import CloseInfo, Transport
from meup_agent.transport.handshake import handshake_url
from meup_agent.transport.unix_socket import socket_path
from meup_agent.transport.websocket import WebSocketTransport

PINGS: Final = 5  # pings of which the median is told: the first is slower than the others

MAX_CLOCK_SECONDS: Final = 60.0
"""The difference up to which times of expiry are trusted (PROTOCOL 6)."""

MAX_LISTED: Final = 16  # participants that are named

_NAME: Final = (
    "give --participant or MEUP_PARTICIPANT: this gateway goes by the name that one gives"
)


class DoctorListener(Protocol):
    """Receives the results as they come."""

    def begin_attempt(self, what: str) -> None:
        """Something is begun that may take a while."""
        ...

    async def report_check(self, check: Check) -> None:
        """A check is done."""
        ...


class _CheckFailed(Exception):
    """A check failed, and those after it cannot be tried."""


async def diagnose(given: SpaceOptions, listener: DoctorListener, *, timeout: float) -> Report:
    """Try one thing after the other, each for so many seconds."""
    diagnosis = _Diagnosis(given, listener, timeout)
    with suppress(_CheckFailed):
        await diagnosis.run()
    await diagnosis.tell_untried()
    return diagnosis.report


class _Diagnosis:
    def __init__(self, given: SpaceOptions, listener: DoctorListener, timeout: float) -> None:
        self.report = Report()
        self._given = given
        self._listener = listener
        self._timeout = timeout
        self._participant: str | None = None
        self._socket: str | None = None

    async def run(self) -> None:
        """All checks."""
        await self._address()
        where = await self._settings()
        if self._socket is None:
            await self._way(HostPort.of(self.report.url))
        else:
            await self._way_to_socket(self._socket)
        if where is None:
            raise _CheckFailed
        await self._join(where)

    async def tell_untried(self) -> None:
        """Tell the checks that there was no use in trying."""
        told = {check.name for check in self.report.checks}
        for name in NAMES:
            if name not in told:
                await self._tell(name, None, NOT_TRIED)
        self.report.checks.sort(key=lambda check: NAMES.index(check.name))

    # --- before there is a connection ---

    async def _address(self) -> None:
        try:
            given = self._given.url or ""
            self._socket = socket_path(given)
            self.report.url = handshake_url(given, None) if self._socket is None else given
        except ConfigurationError as error:
            await self._bad("address", *_split(error))
        await self._good("address", visible(self.report.url, 200))

    async def _settings(self) -> Address | None:
        try:
            where = self._given.address()
            token = where.token if isinstance(where.token, str) else where.token()
        except ConfigurationError as error:
            # The way to the gateway can be tried all the same.
            await self._tell("settings", False, *_split(error))
            return None
        self.report.space = where.space
        self._participant = where.participant
        as_whom = "" if where.participant is None else f", as {visible(where.participant, 64)}"
        await self._good("settings", f"space {visible(where.space, 64)}, with a token{as_whom}")
        return where._replace(token=token)

    async def _way(self, place: HostPort) -> None:
        name = "name"
        try:
            self._listener.begin_attempt(f"an address of {place.host}")
            addresses = await resolve_host(place, self._timeout)
            said = "is an address already" if place.is_address else f"is {', '.join(addresses)}"
            await self._good(name, f"{place.host} {said}")
            name = "port"
            self._listener.begin_attempt(f"{place} to take a connection")
            answered = await probe_port(place, self._timeout)
            await self._good(name, f"{HostPort(answered, place.port, False)} takes connections")
            name = "tls"
            if place.is_tls:
                self._listener.begin_attempt(f"{place} to answer in TLS")
                await self._good(name, await probe_tls(place, self._timeout))
            elif is_local([answered]):
                await self._tell(name, None, "none, and none is needed on one machine")
            else:
                await self._good(
                    name,
                    "none: tokens and messages can be read on the way",
                    "put a proxy with TLS in front of the gateway, and write wss://",
                )
        except Unreachable as error:
            await self._bad(name, visible(str(error), 300), error.advice)

    async def _way_to_socket(self, path: str) -> None:
        await self._tell("name", None, "none, and none is needed on one machine")
        try:
            self._listener.begin_attempt(f"{path} to take a connection")
            await probe_socket(path, self._timeout)
        except Unreachable as error:
            await self._bad("port", visible(str(error), 300), error.advice)
        await self._good("port", f"the socket {visible(path, 200)} takes connections")
        await self._tell("tls", None, "none, and none is needed on one machine")

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
            if once.recording is not None and once.recording.welcome is not None:
                self.report.lost = True
                if isinstance(error, SessionEnded):
                    await self._bad(self._next_name(), *_split(error))
                why = format_close(once.closed) if once.closed is not None else str(error)
                await self._bad(
                    self._next_name(),
                    f"the connection ended: {visible(why, 300)}",
                    "try again; if it stays so, look into the gateway's log",
                )
        if once.recording is None or once.recording.welcome is None:
            await self._not_welcome(once)

    async def _made(self, headers: Mapping[str, str]) -> None:
        """The handshake is done; what came with it."""
        said = [
            f"{name} {visible(headers[key], 64)}"
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
        unread = once.recording.unread if once.recording is not None else ""
        await self._bad(
            "welcome",
            f"what came is no welcome: {visible(unread, 200)}"
            if unread
            else f"none came within {self._timeout:g} s",
            "check that a MEUP gateway listens there",
        )

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
        report.guarantees = space.guarantees
        report.said_guarantees = WELCOME_KEY in welcome.payload_object
        report.participants = tuple(each.id for each in space.participants)
        report.capabilities = space.capabilities
        report.permissions = permissions_of(report.capabilities)
        me = visible(space.me, 64)
        if space.guarantees.identity_checked:
            await self._good("token", f"good: the gateway knows it as {me}")
        else:
            await self._good(
                "token",
                "taken, as any would be: this gateway does not check who is who",
                "believe no name in this space; let the network decide who gets to it",
            )
        await self._good("space", visible(report.space, 64))
        await self._good(
            "welcome", f"{(recording.seconds or 0.0) * 1000:.0f} ms after the handshake"
        )
        await self._dialect_and_gateway()
        goes_by_names = not space.guarantees.identity_checked and self._participant is None
        await self._good("me", me, _NAME if goes_by_names else "")
        await self._good("may", format_permissions(report.permissions))
        await self._good("here", _others(report))
        await self._round_trip(recording.inner)
        await self._clock(welcome.ts, recording.welcomed_at)

    async def _dialect_and_gateway(self) -> None:
        report = self.report
        asked = "as asked" if report.adopted == report.asked else f"asked for {report.asked}"
        await self._good("dialect", f"{visible(report.adopted, 64)}, {asked}")
        if report.said_guarantees:
            await self._good("gateway", "it says what it guarantees (below)")
        else:
            await self._good(
                "gateway",
                f"an existing one of {visible(report.adopted, 64)}: it says nothing of itself, so"
                " what gateways of its kind were seen to do is assumed (below)",
            )

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
        try:
            moment = datetime.fromisoformat(said or "")
        except ValueError:
            moment = None
        if at is None or moment is None or moment.tzinfo is None:
            await self._tell("clock", None, "the welcome tells no time")
            return
        ahead = (moment - at).total_seconds() + (self.report.round_trip or 0.0) / 2
        self.report.clock_difference = ahead
        if abs(ahead) < 1:
            await self._good("clock", "the gateway's and ours differ by less than a second")
            return
        words = f"the gateway's is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} ours"
        if abs(ahead) <= MAX_CLOCK_SECONDS:
            await self._good("clock", words)
        else:
            advice = "set the clocks: times of expiry are not believed beyond 60 s of difference"
            await self._tell("clock", False, words, advice)

    # --- telling ---

    async def _tell(self, name: str, ok: bool | None, said: str, advice: str = "") -> None:
        check = Check(name, ok, said, advice)
        self.report.checks.append(check)
        await self._listener.report_check(check)

    async def _good(self, name: str, said: str, advice: str = "") -> None:
        await self._tell(name, True, said, advice)

    async def _bad(self, name: str, said: str, advice: str) -> NoReturn:
        await self._tell(name, False, said, advice)
        raise _CheckFailed

    def _next_name(self) -> str:
        told = {check.name for check in self.report.checks}
        return next(name for name in NAMES if name not in told)


def _others(report: Report) -> str:
    others = [name for name in report.participants if name != report.me]
    return name_some(others, MAX_LISTED) or "no others"


def _split(error: MeupError) -> tuple[str, str]:
    """The two halves of an error's sentence: what happened, and what to do."""
    said, _, advice = visible(str(error), 400).rpartition("; ")
    return (said, advice) if said else (advice, "")
