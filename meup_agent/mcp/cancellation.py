"""Cancelled event streams: a client's cancel finds the call that runs, and ends it as it should.

The SDK ends a cancelled call with a JSON-RPC error, drops what its handler returns, and shows the
notification to its middleware after that. So over streamable HTTP a layer in front of its session
manager reads the notification first, and cancels a scope of ours inside the handler, which then
returns a result. The key of a call is (participant, session, request id), so that no client
reaches another's call by guessing ids.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.responses import Response

from meup_agent.errors import printable
from meup_agent.mcp.announcements import id_of
from meup_agent.mcp.tool_task import TaskSession
from meup_agent.reasons import MAX_REASON_CHARS

if TYPE_CHECKING:
    from collections.abc import Generator

    from mcp.server.context import ServerRequestContext
    from mcp_types import RequestId
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("meup_agent.mcp")

CANCELLED: Final = "notifications/cancelled"
CALL: Final = "tools/call"

_SCOPE_KEY: Final = "meup_agent.stream"

Key = tuple[str, str, "RequestId"]
"""Participant, session and request id of a call."""


class _Head(msgspec.Struct):
    """The beginning of a JSON-RPC message, as far as a cancel needs it."""

    method: str = ""
    id: Any = None
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _Cancel(msgspec.Struct):
    """The parameters of ``notifications/cancelled``."""

    requestId: Any = None  # noqa: N815 - MCP's own name
    reason: Any = None


_heads: Final = msgspec.json.Decoder(_Head)
_cancels: Final = msgspec.json.Decoder(_Cancel)


class OpenStream:
    """A call that runs for a client, and can be cancelled.

    Attributes:
        scope: What a cancel ends.
        reason: The client's reason; empty: it gave none.
        cancelled: The client has cancelled it.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.scope = anyio.CancelScope()
        self.started = False
        self.cancelled = False
        self.reason = ""

    def cancel(self, reason: object) -> None:
        """End it, for the client's reason."""
        self.note(reason)
        self.cancelled = True
        self.scope.cancel()

    def note(self, reason: object) -> None:
        """Keep the client's reason."""
        said = reason if isinstance(reason, str) else ""
        self.reason = printable(said[:MAX_REASON_CHARS])


class OpenStreams:
    """The calls that run, by participant, session and request id."""

    def __init__(self) -> None:
        self._streams: dict[Key, OpenStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def cancel(self, key: Key, reason: object) -> bool:
        """End a call; ``False``: there is none of that key."""
        stream = self._streams.get(key)
        if stream is None:
            return False
        stream.cancel(reason)
        return True

    def note(self, key: Key, reason: object) -> None:
        """Keep the reason of a cancel that the SDK is about to carry out itself."""
        stream = self._streams.get(key)
        if stream is not None:
            stream.note(reason)

    def expect(self, key: Key) -> OpenStream:
        """A call whose request is on its way to its handler: it can be cancelled already."""
        stream = self._streams[key] = OpenStream(key)
        return stream

    def forget(self, stream: OpenStream) -> None:
        """The end of a call."""
        if self._streams.get(stream.key) is stream:
            del self._streams[stream.key]

    @contextmanager
    def track(self, participant: str, ctx: ServerRequestContext[Any, Any]) -> Generator[OpenStream]:
        """A call for the length of a block, which a cancel ends; see ``cancelled`` then."""
        key = key_of(participant, ctx)
        stream: OpenStream | None = None
        if ctx.request is not None:
            stream = ctx.request.scope.get(_SCOPE_KEY)
        if stream is None or stream.started:
            stream = OpenStream(key)
        self._streams[key] = stream
        stream.started = True
        try:
            with stream.scope:
                yield stream
            if stream.cancelled:
                log.info("call %s was cancelled: %s", ctx.request_id, stream.reason or "no reason")
        except anyio.get_cancelled_exc_class():
            log.info("call %s was cancelled: %s", ctx.request_id, stream.reason or _ended(ctx))
            raise
        finally:
            self.forget(stream)


def key_of(participant: str, ctx: ServerRequestContext[Any, Any]) -> Key:
    """The key of a request; ids compare as the SDK compares them."""
    request_id = ctx.request_id
    return participant, id_of(ctx), coerce_request_id("" if request_id is None else request_id)


def _ended(ctx: ServerRequestContext[Any, Any]) -> str:
    """Why a call ends without a notification."""
    if isinstance(ctx.session, TaskSession):
        return ctx.session.task.status_message or "its task ended"
    if ctx.request is None:
        return "no reason, or the client has gone"
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return "stream closed by the client"
    return "its session ended"


class CancellationLayer:
    """An ASGI layer that ends calls itself, in front of the SDK's session manager.

    Args:
        app: The session manager.
        streams: The calls that run.

    The body's size must have been limited before.
    """

    def __init__(self, app: ASGIApp, streams: OpenStreams) -> None:
        self._app = app
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a cancel, note a call, and pass on all else."""
        session = _session_of(scope)
        if session is None:
            await self._app(scope, receive, send)
            return
        body, replay = await _read(receive)
        head = _decode(body)
        participant = getattr(scope.get("user"), "principal_key", "")
        if head.method == CANCELLED:
            if self._cancel(participant, session, head):
                await Response(status_code=202, headers={"mcp-session-id": session})(
                    scope, replay, send
                )
                return
        elif head.method == CALL and (request_id := as_request_id(head.id)) is not None:
            key = (participant, session, coerce_request_id(request_id))
            stream = scope[_SCOPE_KEY] = self._streams.expect(key)
            try:
                await self._app(scope, replay, send)
            finally:
                if not stream.started:
                    self._streams.forget(stream)
            return
        await self._app(scope, replay, send)

    def _cancel(self, participant: str, session: str, head: _Head) -> bool:
        try:
            said = _cancels.decode(head.params)
        except msgspec.DecodeError:
            return False
        request_id = as_request_id(said.requestId)
        if request_id is None:
            return False
        key = (participant, session, coerce_request_id(request_id))
        return self._streams.cancel(key, said.reason)


def _session_of(scope: Scope) -> str | None:
    """The session that a message is posted to; ``None``: it is no such message."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    for name, value in scope["headers"]:
        if name == b"mcp-session-id":
            return value.decode("latin-1") or None
    return None


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """A request's body, and what gives it once more."""
    messages: list[Message] = []
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request" or not message.get("more_body", False):
            break
    body = b"".join(each.get("body", b"") for each in messages)

    async def replay() -> Message:
        return messages.pop(0) if messages else await receive()

    return body, replay


def _decode(body: bytes) -> _Head:
    try:
        return _heads.decode(body)
    except msgspec.DecodeError:
        return _Head()  # the SDK says what is wrong with it


class NotingStream:
    """The SDK's stream of a client's messages, which notes the reason of a cancel before the SDK.

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
            params = getattr(message, "params", None) or {}
            request_id = as_request_id(params.get("requestId"))
            if request_id is not None:
                key = (self._participant, "", coerce_request_id(request_id))
                self._streams.note(key, params.get("reason"))
        return item

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> NotingStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> NotingStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
