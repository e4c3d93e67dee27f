"""A connection over HTTP: a POST for each frame that is sent, an event stream for what is heard.

The stream is an observer of its space (PROTOCOL 3): the agent that runs with the same token keeps
its connection, and answers. So a session over this transport only begins exchanges of its own
(``Mode.BESIDE``).

A gateway tells an observer nothing of what became of a POST but in the answer to it. Here that
reads as on any connection: what was taken comes back in the stream, and a refusal becomes the
``system/error`` that a member would get. A POST without an answer ends the connection, since
nothing tells whether it was taken; the next one resumes, and the session sends again what is
missing.
"""

from __future__ import annotations

import json
import os
import ssl
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import anyio
import msgspec

from meup_agent.errors import (
    CannotConnect,
    ConfigurationError,
    InvalidEnvelope,
    TransportClosed,
)
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.dialects import DEFAULT_DIALECT, decode, encode
from meup_agent.protocol.envelope import draft
from meup_agent.protocol.limits import MAX_FRAME_BYTES
from meup_agent.protocol.payloads import as_object
from meup_agent.protocol.resume import numbered
from meup_agent.transport.base import (
    ABNORMAL,
    BESIDE_HEADER,
    CLOSE_TIMEOUT,
    HANDSHAKE_TIMEOUT,
    OBSERVE_HEADER,
    STREAM_MARK,
    TOO_BIG,
    CloseInfo,
    Connector,
    InboxTransport,
    checked_close,
)
from meup_agent.transport.handshake import (
    cannot_connect,
    check_headers,
    explained,
    refused,
    retry_after,
)
from meup_agent.transport.listener_owner import check_listener
from meup_agent.transport.loops import background_tasks
from meup_agent.transport.server_events import EventParser, EventTooLarge, ServerEvent
from meup_agent.transport.unix_socket import short_path, socket_path

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    import httpx

ANSWER_SECONDS: Final = 30.0
"""Seconds for the answer to a POST, and of silence in the stream, in which a gateway sends a sign
of life every 15 s."""

RESEND_SECONDS: Final = 60.0
"""Seconds for which a withdraw, reject or cancel is sent again to a gateway that takes it later."""

LONGEST_PAUSE: Final = 10.0
"""Seconds between two such attempts at most, whatever the gateway asks for."""

SHORTEST_PAUSE: Final = 0.05
"""Seconds between two of them at least: a gateway that asks for none is not to be flooded."""

MAX_UNREAD_EVENTS: Final = 16
"""Frames received and not read yet before the stream is left to fill up, as for a WebSocket."""

MAX_ANSWER_BYTES: Final = MAX_FRAME_BYTES
"""Bytes of an answer that is no stream; a page of proposals has room in a frame."""

MAX_SEQ_DIGITS: Final = 19
"""Digits of an event's number; no gateway counts further, and Python refuses to read thousands."""

_ENVELOPE_TYPE: Final = "application/json"
_FRAME_TYPE: Final = "application/octet-stream"

_TOKEN_REFUSED: Final = 4401
_TOO_MANY: Final = 429
_UNAUTHORIZED: Final = 401

_UNAVAILABLE: Final = frozenset({502, 503, 504})
"""Statuses of a gateway that stops, or of something in between that did not reach it: the frame may
be sent again."""

_CONNECTED: Final = frozenset(
    f"connection.{way}.complete" for way in ("connect_tcp", "connect_unix_socket")
)
"""Events of httpcore that a connection was made, and nothing sent."""

_ENDS: Final = frozenset({kinds.MCP_WITHDRAW, kinds.MCP_REJECT})


class HttpTransport(InboxTransport):
    """One event stream, and the POSTs beside it; made by :func:`http_connector`."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        participant: str,
        response: httpx.Response,
        max_frame_bytes: int,
    ) -> None:
        super().__init__()
        self._client = client
        self._participant = participant
        self._path = f"/participants/{quote(participant, safe='')}/messages"
        self._response = response
        self._max_frame_bytes = max_frame_bytes
        self._seq: int | None = None
        # What waits for the gateway; the end of the connection ends it.
        self._streaming = anyio.CancelScope()
        self._posting: anyio.CancelScope | None = None

    @property
    def response_headers(self) -> Mapping[str, str]:
        """The headers of the stream's answer, by names in lower case."""
        answered = {name.lower(): value for name, value in self._response.headers.items()}
        return {**answered, BESIDE_HEADER.lower(): "1"}

    # --- frames in ---

    async def read_stream(self) -> None:
        """Read the event stream until it or the connection ends."""
        import httpx

        parser = EventParser(self._max_frame_bytes)
        with self._streaming:
            try:
                # Raw: what is compressed has no bound, and none was asked to compress. The end is
                # met by the next read: trio complains of a stream that is left in between.
                async for chunk in self._response.aiter_raw():
                    try:
                        for event in parser.feed(chunk):
                            await self._take_event(event)
                    except EventTooLarge:
                        too_large = f"over {self._max_frame_bytes} bytes"
                        self._end(CloseInfo(TOO_BIG, too_large, local=True))
            except httpx.TransportError:
                pass  # the gateway restarts, or the network fails
            self._end(CloseInfo(ABNORMAL))
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await self._response.aclose()

    async def _take_event(self, event: ServerEvent) -> None:
        if event.type == "close":
            self._end(_read_close(event.data))
        elif not event.type:
            await self._put(event.data)
            # Only now: a refusal that came before this frame must not have its number, or a
            # resume would leave the frame out.
            if event.id.isascii() and event.id.isdigit() and len(event.id) <= MAX_SEQ_DIGITS:
                self._seq = int(event.id)

    async def _put(self, frame: bytes) -> None:
        while len(self._inbox) >= MAX_UNREAD_EVENTS and self._closed is None:
            await self._room.wait()
        if self._closed is None:
            self._inbox.append(frame)
            self._arrived.notify_all()

    # --- frames out ---

    async def send(self, frame: bytes) -> None:
        """POST one frame; returns when the gateway has answered."""
        async with self._turn:
            self._check_open()
            response = await self._post(frame)
            if response.status_code == 200:
                if answer := _read_answer(response.content):
                    await self._put(self._notice(kinds.PROPOSALS, frame, answer))
                return
            problem = _read_object(response.content)
            if response.status_code == _UNAUTHORIZED:
                self._end(CloseInfo(_TOKEN_REFUSED, str(problem.get("message", ""))))
            elif not problem or response.status_code in _UNAVAILABLE:
                self._end(CloseInfo(ABNORMAL))  # it stops, or something in between answered
            else:
                await self._put(self._notice(kinds.SYSTEM_ERROR, frame, problem))
            self._check_open()

    async def _post(self, frame: bytes) -> httpx.Response:
        """POST a frame; what ends something is said again until the gateway takes it (PROTOCOL 3).

        It is taken once, since its id stays. So is a frame of a stream that came too fast: it was
        not taken, and on a WebSocket it would only have been read later.
        """
        with anyio.CancelScope() as self._posting:
            try:
                return await self._post_until_taken(frame)
            finally:
                self._posting = None
        self._check_open()
        raise AssertionError("only the end of the connection cancels a POST")

    async def _post_until_taken(self, frame: bytes) -> httpx.Response:
        import httpx

        until = anyio.current_time() + RESEND_SECONDS
        is_of_stream = frame[:1] == STREAM_MARK
        headers = {"Content-Type": _FRAME_TYPE if is_of_stream else _ENVELOPE_TYPE}
        while True:
            try:
                # In all, not for each read alone: a drip would hold up every later frame.
                with anyio.fail_after(ANSWER_SECONDS):
                    response = await fetch(
                        self._client, "POST", self._path, content=frame, headers=headers
                    )
            except (httpx.TransportError, TimeoutError):
                self._end(CloseInfo(ABNORMAL))
                raise TransportClosed(ABNORMAL, "") from None
            left = until - anyio.current_time()
            again = left > 0 and (is_of_stream or ends_something(frame))
            if response.status_code != _TOO_MANY or not again:
                return response
            asked = retry_after(response.headers.get("Retry-After", ""), datetime.now(UTC))
            await anyio.sleep(min(left, resend_pause(asked)))
            self._check_open()

    def _notice(self, kind: str, frame: bytes, payload: object) -> bytes:
        """The envelope by which a gateway tells a member of a refused frame, or an answer."""
        said = None if frame[:1] == STREAM_MARK else decode(frame)
        notice = draft(
            kind,
            payload,
            id=os.urandom(16).hex(),
            sender=kinds.GATEWAY,
            to=(self._participant,),
            correlation=() if said is None else (said.id,),
        )
        told = encode(notice, DEFAULT_DIALECT if said is None else said.protocol)
        # As on a connection, it has the number of what came last: what was sent before is decided.
        return told if self._seq is None else numbered(told, self._seq)

    # --- its end ---

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection; what had arrived can still be read."""
        self._end(checked_close(code, reason))

    async def abort(self) -> None:
        """End the connection at once."""
        self._end(CloseInfo(ABNORMAL))

    def _end(self, info: CloseInfo) -> None:
        super()._end(info)
        self._streaming.cancel()
        if self._posting is not None:
            self._posting.cancel()


def http_connector(
    url: str,
    *,
    space: str | None = None,
    participant: str | None = None,
    handshake_timeout: float = HANDSHAKE_TIMEOUT,
    max_frame_bytes: int = MAX_FRAME_BYTES,
) -> Connector:
    """Make a connector that speaks with a gateway's HTTP API, beside the participant's agent.

    Args:
        url: The API's address, for example ``http://localhost:8420``, or a Unix socket,
            ``unix:///run/meup.sock``.
        space: The space; ``None``: the one that the token is for.
        participant: The token's participant; ``None``: the gateway is asked.
        handshake_timeout: Seconds to open the stream in.
        max_frame_bytes: The largest frame to take; a larger one ends the connection with 1009.

    Raises:
        ConfigurationError: The address cannot be one of an HTTP API.
    """
    check_http_url(url)
    return _HttpConnector(url, space, participant, handshake_timeout, max_frame_bytes)


@dataclass(frozen=True)
class _HttpConnector:
    where: str
    space: str | None
    participant: str | None
    handshake_timeout: float
    max_frame_bytes: int

    @asynccontextmanager
    async def __call__(self, headers: Mapping[str, str]) -> AsyncGenerator[HttpTransport]:
        check_headers(headers)
        async with open_client(self.where, headers.get("Authorization")) as client:
            async with _open_stream(
                client,
                self.where,
                headers,
                space=self.space,
                participant=self.participant,
                timeout=self.handshake_timeout,
            ) as (me, response):
                transport = HttpTransport(client, me, response, self.max_frame_bytes)
                async with background_tasks() as tasks:
                    tasks.start_soon(transport.read_stream, name="meup connection: events")
                    try:
                        yield transport
                    finally:
                        await transport.aclose()


@asynccontextmanager
async def open_client(url: str, authorization: str | None) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the HTTP API at an address, for one token, for the length of a block.

    Raises:
        CannotConnect: The address is a Unix socket in a folder that is not there.
    """
    # Loaded by those programs alone that use it.
    import httpx

    check_http_url(url)
    path = socket_path(url)
    headers = {"Accept-Encoding": "identity"}
    if authorization is not None:
        headers["Authorization"] = authorization
    check_headers(headers)
    with ExitStack() as held:
        context, short = _make_ssl_context(url), None
        if path is not None:
            with explained(url, ANSWER_SECONDS):
                short = held.enter_context(short_path(path))
        async with httpx.AsyncClient(
            # The name of every gateway at a Unix socket.
            base_url="http://localhost" if path else url.rstrip("/"),
            headers=headers,
            timeout=ANSWER_SECONDS,
            # The environment's proxies would read the token.
            trust_env=False,
            transport=httpx.AsyncHTTPTransport(verify=context, trust_env=False, uds=short),
            # With TLS the certificate shows who answers.
            event_hooks={} if url.startswith("https:") else {"request": [_check_connections]},
        ) as client:
            yield client


async def _check_connections(request: httpx.Request) -> None:
    """Have the connection that is made for a request checked before anything is sent."""
    request.extensions["trace"] = _on_event


async def _on_event(name: str, info: Mapping[str, Any]) -> None:
    import httpx

    if name in _CONNECTED:
        stream = info["return_value"]
        try:
            check_listener(stream.get_extra_info("socket"))
        except BaseException as error:
            await stream.aclose()
            if isinstance(error, OSError):
                raise httpx.ConnectError(str(error)) from error
            raise


def _make_ssl_context(url: str) -> ssl.SSLContext:
    if url.startswith("https:"):
        # What this machine trusts, as for WebSocket; SSL_CERT_FILE counts.
        return ssl.create_default_context()
    # One that trusts nothing: httpx would read all certificates, 0.1 s of CPU for each client.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def fetch(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    *,
    max_bytes: int = MAX_ANSWER_BYTES,
    content: bytes = b"",
    **options: Any,
) -> httpx.Response:
    """Ask, and read the answer as far as it may go."""
    from meup_agent.transport.http_body import RequestBody

    request = client.build_request(method, path, content=content, **options)
    request.stream = RequestBody(content)
    response = await client.send(request, stream=True)
    try:
        return await _read_whole(response, max_bytes)
    finally:
        await response.aclose()


async def _read_whole(response: httpx.Response, max_bytes: int) -> httpx.Response:
    """The answer with its body, of which so much has come as may."""
    import httpx

    body = bytearray()
    try:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_bytes:
                # The next read ends the loop: trio complains of a stream that is left before.
                await response.aclose()
    finally:
        if len(body) > max_bytes:
            raise httpx.ReadError(f"the answer has more than {max_bytes} bytes")
    # Not decompressed: it was not asked for, and has no bound.
    headers = [pair for pair in response.headers.multi_items() if pair[0] != "content-encoding"]
    return httpx.Response(
        response.status_code, headers=headers, content=bytes(body), request=response.request
    )


def check_http_url(url: str) -> None:
    """Raise :exc:`ConfigurationError` if an address is none of an HTTP API."""
    if socket_path(url) is not None:
        return
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it is what checks it
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"the HTTP address {url!r} is none; give one such as http://localhost:8420"
        )


def ends_something(frame: bytes) -> bool:
    """True if a frame is a withdraw, a reject or a cancel."""
    try:
        envelope = decode(frame)
    except InvalidEnvelope:
        return False
    if envelope.kind == kinds.MCP_REQUEST:
        return payloads.read_call(envelope.payload).method == kinds.CANCELLED
    return envelope.kind in _ENDS


@asynccontextmanager
async def _open_stream(
    client: httpx.AsyncClient,
    where: str,
    headers: Mapping[str, str],
    *,
    space: str | None,
    participant: str | None,
    timeout: float,
) -> AsyncGenerator[tuple[str, httpx.Response]]:
    """Open the event stream of the token's participant, as an observer."""
    import httpx

    response: httpx.Response | None = None
    asked_for = {name: value for name, value in headers.items() if name != BESIDE_HEADER}
    try:
        try:
            with anyio.fail_after(timeout):
                if space is None or participant is None:
                    me = await fetch(client, "GET", "/me")
                    _check_answer(me)
                    said = _read_object(me.content)
                    participant = participant or str(said.get("id", ""))
                    space = space or str(said.get("space", ""))
                asked = client.build_request(
                    "GET",
                    f"/spaces/{quote(space, safe='')}/events",
                    headers={**asked_for, OBSERVE_HEADER: "1", "Accept": "text/event-stream"},
                )
                response = await client.send(asked, stream=True)
                if response.status_code != 200:
                    _check_answer(await _read_whole(response, MAX_ANSWER_BYTES))
        except (httpx.TransportError, TimeoutError) as error:
            raise cannot_connect(where, error, timeout) from error
        if OBSERVE_HEADER.lower() not in response.headers:
            raise CannotConnect(
                f"what answers at {where} lets no command act beside a running agent; update the"
                " gateway, or check the address"
            )
        yield participant, response
    finally:
        if response is not None:
            with anyio.CancelScope(shield=True):
                await response.aclose()


def _check_answer(response: httpx.Response) -> None:
    """Raise what an answer means that is no success."""
    if response.status_code != 200:
        said = str(_read_object(response.content).get("message", "")).encode()
        items = response.headers.items()
        raise refused(response.status_code, items, said, datetime.now(UTC))


def _read_object(text: bytes) -> dict[str, Any]:
    """The JSON object of an answer; empty: it has none, so no gateway gave it."""
    try:
        return as_object(json.loads(text))
    except (ValueError, RecursionError):
        return {}


class _Answered(msgspec.Struct):
    answer: msgspec.Raw = msgspec.Raw(b"")


def _read_answer(text: bytes) -> bytes:
    """The answer to a question, byte for byte; empty: the message was none."""
    try:
        return bytes(msgspec.json.decode(text, type=_Answered).answer)
    except msgspec.DecodeError:
        return b""


def _read_close(data: bytes) -> CloseInfo:
    """The end of a stream, as the gateway says it."""
    said = _read_object(data)
    code = said.get("code")
    known = code if isinstance(code, int) and 1000 <= code <= 4999 else ABNORMAL
    return CloseInfo(known, str(said.get("reason", "")))


def resend_pause(asked: float | None) -> float:
    """Seconds until a frame is sent again that a gateway did not take, where it asks for some."""
    return min(LONGEST_PAUSE, max(SHORTEST_PAUSE, 1.0 if asked is None else asked))
