"""Cancelled event streams: a client's cancel finds the call that runs, and ends it as it should.

The SDK ends a cancelled call with a JSON-RPC error, drops what its handler returns, and shows the
notification to its middleware after that. So over streamable HTTP a layer in front of its session
manager reads the notification first, and cancels a scope of ours inside the handler, which then
returns a result. The key of a call is (participant, session, request id), so that no client
reaches another's call by guessing ids.

Over HTTP a cancel comes on another connection than its call, and may overtake it: a call that was
cancelled is not begun.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.responses import Response

from meup_agent.causes import MAX_REASON_CHARS
from meup_agent.client.running_handler import CallScope
from meup_agent.errors import printable
from meup_agent.mcp.sdk.tasks import TaskSession
from meup_agent.mcp.server.catalog import SESSION_KEY, id_of
from meup_agent.mcp.server.principal import MAX_PRINCIPALS
from meup_agent.protocol.wire import payloads

if TYPE_CHECKING:
    from types import TracebackType

    from mcp.server.context import ServerRequestContext
    from mcp_types import RequestId
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    Ctx = ServerRequestContext[Any, Any]

log = logging.getLogger("meup_agent.mcp")

CANCELLED: Final = "notifications/cancelled"
NO_REASON: Final = "no reason given"
CLOSED: Final = "stream closed by the client"

SDK_SECONDS: Final = 5.0
"""Wait of a handler that we cancelled for the SDK to do so, too, where the SDK is to have the last
word: it reads the notification after us, and would send on what had been returned before."""

BODY_SECONDS: Final = 30.0
"""Wait for a request's body: who sends it byte by byte holds a connection, and is known."""

CANCELLED_SECONDS: Final = 60.0
"""Time for which a cancelled call is not begun when it comes, or comes again; its body may take
half of that."""

MAX_CANCELLED_CALLS: Final = 256
"""Cancelled calls of one token that are remembered; the one that was cancelled first makes room."""

MAX_KEY_CHARS: Final = 256
"""Characters of a session or a request id; of a call with a longer one no cancel is remembered."""

_SCOPE_KEY: Final = "meup_agent.stream"

Key = tuple[str, str, "RequestId"]
"""Participant, session and request id of a call."""


class _MessageStart(msgspec.Struct):
    """The beginning of a JSON-RPC message, as far as a cancel needs it."""

    method: str = ""
    id: Any = None
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _CancelledParams(msgspec.Struct):
    """The parameters of ``notifications/cancelled``."""

    requestId: Any = None  # noqa: N815 - MCP's own name
    reason: Any = None


_heads: Final = msgspec.json.Decoder(_MessageStart)
_cancels: Final = msgspec.json.Decoder(_CancelledParams)

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions raised for a body that is no such message."""


class OpenStream:
    """A call that runs for a client, and can be cancelled.

    Args:
        key: Its key; ``None``: its client cancels it by closing the stream, and not by its id.

    Attributes:
        scope: What a cancel ends.
        reason: The client's reason, empty where it gave none; ``None``: it has not cancelled.
    """

    def __init__(self, key: Key | None) -> None:
        self.key = key
        self.scope = CallScope()
        self.started = False
        self.reason: str | None = None

    def cancel(self, reason: str) -> None:
        """End it; what it began in the space is told the client's reason, in every process."""
        if self.reason is None:
            self.reason = reason
            self.scope.cancel(text=reason)


class CancelledCalls:
    """The calls of HTTP sessions that were cancelled lately, whether they have come or not."""

    def __init__(self) -> None:
        # By participant, in the order of their last cancels: a flood pushes out its own.
        self._calls: OrderedDict[str, OrderedDict[Key, tuple[str, float]]] = OrderedDict()

    def __len__(self) -> int:
        """Number of calls that are remembered."""
        return sum(map(len, self._calls.values()))

    def add(self, key: Key, reason: str) -> None:
        """Remember that a call was cancelled."""
        if max(len(key[1]), len(str(key[2]))) > MAX_KEY_CHARS:
            return
        calls = self._calls.setdefault(key[0], OrderedDict())
        self._calls.move_to_end(key[0])
        calls[key] = (reason, anyio.current_time() + CANCELLED_SECONDS)
        calls.move_to_end(key)
        if len(calls) > MAX_CANCELLED_CALLS:
            calls.popitem(last=False)
        if len(self._calls) > MAX_PRINCIPALS:
            self._calls.popitem(last=False)

    def reason(self, key: Key) -> str | None:
        """The reason with which a call was cancelled; ``None`` if it was not, or long ago."""
        calls = self._calls.get(key[0])
        reason, until = ("", 0.0) if calls is None else calls.get(key, ("", 0.0))
        return reason if until > anyio.current_time() else None


class OpenStreams:
    """The calls that run, and by participant, session and request id those that have a session."""

    def __init__(self) -> None:
        self._open: set[OpenStream] = set()
        self._by_key: dict[Key, OpenStream] = {}
        self.cancelled = CancelledCalls()

    def __len__(self) -> int:
        return len(self._open)

    def cancel(self, key: Key, reason: object) -> bool:
        """End a call; ``False``: it is not here, and if it comes to its session it is not begun."""
        said = printable(reason[:MAX_REASON_CHARS]) if isinstance(reason, str) else ""
        if key[1]:  # other connections keep the order of a call and its cancel
            self.cancelled.add(key, said)
        stream = self._by_key.get(key)
        if stream is None:
            return False
        stream.cancel(said)
        return True

    def add(self, key: Key | None) -> OpenStream:
        """A call whose request is on its way to its handler: it can be cancelled already."""
        stream = OpenStream(key)
        self._open.add(stream)
        if key is not None:
            self._by_key[key] = stream
            reason = self.cancelled.reason(key)
            if reason is not None:
                stream.cancel(reason)
        return stream

    def discard(self, stream: OpenStream) -> None:
        """Forget a call that has ended."""
        self._open.discard(stream)
        if stream.key is not None and self._by_key.get(stream.key) is stream:
            del self._by_key[stream.key]

    def track(self, participant: str, ctx: Ctx) -> TrackedCall:
        """A call for the length of a block, which a cancel ends."""
        stream: OpenStream | None = None
        if ctx.request is not None:
            stream = ctx.request.scope.get(_SCOPE_KEY)
        if stream is None or stream.started:
            stream = self.add(None if _is_closed_to_cancel(ctx) else key_of(participant, ctx))
        return TrackedCall(self, stream, ctx)


class TrackedCall:
    """The block of :meth:`OpenStreams.track`."""

    __slots__ = ("_ctx", "_stream", "_streams")

    def __init__(self, streams: OpenStreams, stream: OpenStream, ctx: Ctx) -> None:
        self._streams = streams
        self._stream = stream
        self._ctx = ctx

    def __enter__(self) -> OpenStream:
        self._stream.started = True
        self._stream.scope.__enter__()
        return self._stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        stream, ctx = self._stream, self._ctx
        ended = False
        try:
            ended = stream.scope.__exit__(kind, error, traceback)
        finally:
            self._streams.discard(stream)
            if stream.reason is not None:
                log.info("call %s was cancelled: %s", ctx.request_id, stream.reason or NO_REASON)
            elif not ended and isinstance(error, anyio.get_cancelled_exc_class()):
                log.info("call %s was cancelled: %s", ctx.request_id, _ended(ctx))
        return ended


def _is_closed_to_cancel(ctx: Ctx) -> bool:
    """True if the revision over this transport cancels by closing the stream."""
    return ctx.request is not None and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def key_of(participant: str, ctx: Ctx) -> Key:
    """The key of a request; ids compare as the SDK compares them."""
    request_id = ctx.request_id
    return participant, id_of(ctx), coerce_request_id("" if request_id is None else request_id)


def _ended(ctx: Ctx) -> str:
    """The reason for which a call ends without a cancel of its client's."""
    if isinstance(ctx.session, TaskSession):
        return ctx.session.task.status_message or "its task ended"
    if ctx.request is None:
        return "the connection ended"
    return CLOSED if _is_closed_to_cancel(ctx) else "the session ended"


class CancellationLayer:
    """An ASGI layer that cancels calls itself, in front of the SDK's session manager.

    Args:
        app: The session manager.
        streams: The calls that run.
        max_body: Bytes of a request's body.
    """

    def __init__(self, app: ASGIApp, streams: OpenStreams, max_body: int) -> None:
        self._app = app
        self._streams = streams
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a cancel, note a call, and pass on all else."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        session = scope[SESSION_KEY] = _session_of(scope)
        found = None
        with anyio.move_on_after(BODY_SECONDS):
            found = await _read(receive, self._max_body)
        if found is None:
            await Response("Request body came too slowly", 408)(scope, receive, send)
            return
        body, replay = found
        if body is None:
            return  # the client has gone in between
        if len(body) > self._max_body:
            await Response("Request body too large", 413)(scope, receive, send)
            return
        head = _decode(body)
        participant = getattr(scope.get("user"), "key", "")
        request_id = as_request_id(head.id)
        if head.method == payloads.TOOL_CALL and request_id is not None:
            key = (participant, session, coerce_request_id(request_id)) if session else None
            await self._track(key, scope, replay, send)
        elif head.method == CANCELLED and self._cancel(participant, session, head):
            answer = Response(status_code=202, headers={"mcp-session-id": session})
            await answer(scope, replay, send)
        else:
            await self._app(scope, replay, send)

    async def _track(self, key: Key | None, scope: Scope, receive: Receive, send: Send) -> None:
        stream = scope[_SCOPE_KEY] = self._streams.add(key)
        try:
            if key is None:
                watched = _DisconnectWatch(stream, receive, send)
                await self._app(scope, watched.receive, watched.send)
            else:
                await self._app(scope, receive, send)
        finally:
            if not stream.started:
                self._streams.discard(stream)

    def _cancel(self, participant: str, session: str, head: _MessageStart) -> bool:
        if not session:
            return False
        try:
            said = _cancels.decode(head.params)
        except _UNREADABLE:
            return False
        request_id = as_request_id(said.requestId)
        if request_id is None:
            return False
        key = (participant, session, coerce_request_id(request_id))
        return self._streams.cancel(key, said.reason)


class _DisconnectWatch:
    """Cancels a call whose client closes its stream before the answer is complete."""

    def __init__(self, stream: OpenStream, receive: Receive, send: Send) -> None:
        self._stream = stream
        self._receive = receive
        self._send = send
        self._complete = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._complete:
            self._stream.cancel(CLOSED)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._complete = True
        await self._send(message)


def _session_of(scope: Scope) -> str:
    """The session that a message is posted to; empty: none, as always in the newest revision."""
    session = ""
    for name, value in scope["headers"]:
        if name == b"mcp-protocol-version" and value.decode("latin-1") in MODERN_PROTOCOL_VERSIONS:
            return ""
        if name == b"mcp-session-id":
            session = value.decode("latin-1")
    return session


async def _read(receive: Receive, limit: int) -> tuple[bytes | None, Receive]:
    """A request's body, and what gives it once more; of one over the limit the beginning.

    ``None``: its client has gone before its end.
    """
    messages: list[Message] = []
    size = 0
    while size <= limit:
        message = await receive()
        if message["type"] != "http.request":
            return None, receive
        messages.append(message)
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            break
    body = b"".join(each.get("body", b"") for each in messages)

    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return body, replay


def _decode(body: bytes) -> _MessageStart:
    try:
        return _heads.decode(body)
    except _UNREADABLE:
        return _MessageStart()  # the SDK says what is wrong with it


class CancellingStream:
    """The SDK's stream of a client's messages, which cancels calls before the SDK does.

    The SDK does not tell a handler the reason; and it lets a cancelled call end without an answer.

    Args:
        stream: The stream of :func:`mcp.server.stdio.stdio_server`.
        streams: The calls that run.
        participant: The participant that the client is.
    """

    def __init__(self, stream: Any, streams: OpenStreams, participant: str) -> None:
        self._stream = stream
        self._streams = streams
        self._participant = participant

    @property
    def last_context(self) -> Any:
        """The context of the last message's sender, for the SDK."""
        return self._stream.last_context

    async def receive(self) -> Any:
        """The next message."""
        item = await self._stream.receive()
        message = getattr(item, "message", None)
        if getattr(message, "method", None) == CANCELLED:
            params = payloads.as_object(getattr(message, "params", None))
            request_id = as_request_id(params.get("requestId"))
            if request_id is not None:
                key = (self._participant, "", coerce_request_id(request_id))
                self._streams.cancel(key, params.get("reason"))
        return item

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> CancellingStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> CancellingStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
