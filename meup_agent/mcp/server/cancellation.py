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
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp_types import JSONRPCNotification, RequestId
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import Response

from meup_agent.causes import MAX_REASON_CHARS
from meup_agent.client.messages import CallScope
from meup_agent.errors import printable
from meup_agent.mcp.sdk.messages import ForwardingReader, Item
from meup_agent.mcp.sdk.tasks import Ctx, TaskSession
from meup_agent.mcp.server.catalog import SESSION_KEY, id_of
from meup_agent.mcp.server.client_member import MAX_CLIENT_MEMBERS
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.ttl_map import PerSenderTTLMap

if TYPE_CHECKING:
    from collections.abc import Generator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send


log = logging.getLogger("meup_agent.mcp")

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


_heads: Final = msgspec.json.Decoder(_MessageStart)

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions raised for a body that is not such a message."""


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


class OpenStreams:
    """The calls that run, and by participant, session and request id those that have a session."""

    def __init__(self) -> None:
        self._open: set[OpenStream] = set()
        self._by_key: dict[Key, OpenStream] = {}
        # The calls of sessions that were cancelled lately, whether they have come or not: with the
        # reason, and a share for each participant.
        self.cancelled = PerSenderTTLMap[Key, str](
            senders=MAX_CLIENT_MEMBERS, count=MAX_CANCELLED_CALLS, seconds=CANCELLED_SECONDS
        )

    def __len__(self) -> int:
        return len(self._open)

    def cancel(self, key: Key | None, reason: object) -> bool:
        """End a call; ``False``: it is not here, and if it comes to its session it is not begun."""
        if key is None:
            return False
        said = printable(reason[:MAX_REASON_CHARS]) if isinstance(reason, str) else ""
        participant, session, request_id = key
        # Connections without a session keep the order of a call and its cancel.
        if session and max(len(session), len(str(request_id))) <= MAX_KEY_CHARS:
            self.cancelled.put(participant, key, said, anyio.current_time())
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
            reason = self.cancelled.get(key[0], key, anyio.current_time())
            if reason is not None:
                stream.cancel(reason)
        return stream

    def discard(self, stream: OpenStream) -> None:
        """Forget a call that has ended."""
        self._open.discard(stream)
        if stream.key is not None and self._by_key.get(stream.key) is stream:
            del self._by_key[stream.key]

    @contextmanager
    def track(self, participant: str, ctx: Ctx) -> Generator[OpenStream]:
        """The block in which a call runs, which a cancel ends."""
        stream: OpenStream | None = (
            None if ctx.request is None else ctx.request.scope.get(_SCOPE_KEY)
        )
        if stream is None or stream.started:
            key = key_of(participant, id_of(ctx), ctx.request_id)
            stream = self.add(None if _is_closed_to_cancel(ctx) else key)
        stream.started = True
        why: str | None = None
        try:
            with stream.scope:
                yield stream
        except anyio.get_cancelled_exc_class():
            why = _ended(ctx)
            raise
        finally:
            self.discard(stream)
            why = why if stream.reason is None else stream.reason or NO_REASON
            if why is not None:
                log.info("call %s was cancelled: %s", ctx.request_id, why)


def _is_closed_to_cancel(ctx: Ctx) -> bool:
    return ctx.request is not None and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def key_of(participant: str, session: str, request_id: object) -> Key | None:
    """The key of a request; ``None``: it has no id. Ids compare as the SDK compares them."""
    found = as_request_id(request_id)
    return None if found is None else (participant, session, coerce_request_id(found))


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
        key = key_of(participant, session, head.id)
        if head.method == payloads.TOOL_CALL and key is not None:
            await self._track(key if session else None, scope, replay, send)
        elif head.method == kinds.CANCELLED and self._cancel(participant, session, head):
            answer = Response(status_code=202, headers={"mcp-session-id": session})
            await answer(scope, replay, send)
        else:
            await self._app(scope, replay, send)

    async def _track(self, key: Key | None, scope: Scope, receive: Receive, send: Send) -> None:
        stream = scope[_SCOPE_KEY] = self._streams.add(key)
        complete = False

        async def watched_receive() -> Message:
            message = await receive()
            if key is None and message["type"] == "http.disconnect" and not complete:
                stream.cancel(CLOSED)
            return message

        async def watched_send(message: Message) -> None:
            nonlocal complete
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                complete = True
            await send(message)

        try:
            await self._app(scope, watched_receive, watched_send)
        finally:
            if not stream.started:
                self._streams.discard(stream)

    def _cancel(self, participant: str, session: str, head: _MessageStart) -> bool:
        if not session:
            return False
        try:
            params = payloads.as_object(msgspec.json.decode(head.params))
        except _UNREADABLE:
            return False
        key = key_of(participant, session, params.get("requestId"))
        return self._streams.cancel(key, params.get("reason"))


def _session_of(scope: Scope) -> str:
    """The session that a message is posted to; empty: none, as always in the newest revision."""
    headers = Headers(scope=scope)
    if headers.get("mcp-protocol-version") in MODERN_PROTOCOL_VERSIONS:
        return ""
    return headers.get("mcp-session-id", "")


async def _read(receive: Receive, limit: int) -> tuple[bytes | None, Receive]:
    """A request's body, and what gives it once more; of one over the limit the beginning.

    ``None``: its client has gone before its end.
    """
    messages: list[Message] = []
    body = bytearray()
    while len(body) <= limit:
        message = await receive()
        if message["type"] != "http.request":
            return None, receive
        messages.append(message)
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break

    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return bytes(body), replay


def _decode(body: bytes) -> _MessageStart:
    try:
        return _heads.decode(body)
    except _UNREADABLE:
        return _MessageStart()  # the SDK says what is wrong with it


class CancellingStream(ForwardingReader):
    """The SDK's stream of a client's messages, which cancels calls before the SDK does.

    The SDK does not tell a handler the reason; and it lets a cancelled call end without an answer.

    Args:
        stream: The stream of :func:`mcp.server.stdio.stdio_server`.
        streams: The calls that run.
        participant: The participant that the client is.
    """

    def __init__(self, stream: Any, streams: OpenStreams, participant: str) -> None:
        super().__init__(stream)
        self._streams = streams
        self._participant = participant

    async def receive(self) -> Item:
        """The next message."""
        item = await super().receive()
        match getattr(item, "message", None):
            case JSONRPCNotification(method=kinds.CANCELLED, params=dict(params)):
                key = key_of(self._participant, "", params.get("requestId"))
                self._streams.cancel(key, params.get("reason"))
            case _:
                pass
        return item
