"""News to browsers: an event stream, the one page whose answer goes on, and push."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, cast

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from meup_agent.errors import UsageError
from meup_agent.gateway.auth import BAD_REQUEST, NOT_FOUND, TOO_MANY
from meup_agent.gateway.console.context import PageContext
from meup_agent.gateway.console.event_queue import NOTHING_NEW, EventQueue, pack
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.edge.connection import CHUNK_WRITER, ChunkWriter
from meup_agent.gateway.edge.http.context import CONFLICT
from meup_agent.gateway.edge.http.messages import cancel_when_gone
from meup_agent.gateway.reach.services import PushSubscriptions

MAX_EVENT_STREAMS: Final = 256
"""Event streams of a participant's browsers at once: one of each browser, or of each tab where the
browser lets no page keep anything."""


async def get_events(context: PageContext) -> Response:
    """The events of the topics that the browser's tabs show."""
    query = context.request.query_params
    shown = context.signed_in.shown_identity
    if query.get("as", shown) != shown:
        # The cookie is that of the browser's last sign-in; a tab shows the one before.
        raise RequestDenied(CONFLICT, "Another tab of this browser signed in as somebody else.")
    topics = query.get("topics", "inbox").split(",")
    # All that is asked of a response is that it can be called so.
    return cast("Response", EventStreamResponse(context, topics))


class EventStreamResponse:
    """The event stream of one browser; an ASGI response."""

    def __init__(self, context: PageContext, topics: Iterable[str]) -> None:
        self._context = context
        self._queue = EventQueue(topics)
        self._ends = False
        if context.presence.event_streams >= MAX_EVENT_STREAMS:
            raise RequestDenied(
                TOO_MANY, f"You have {MAX_EVENT_STREAMS} browsers open; close one first."
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the browser goes, its session ends, or the gateway stops."""
        context, queue = self._context, self._queue
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        # Held before anything waits, so that each of many that come at once is counted.
        with context.presence.holding(queue), context.feed.queues.holding(queue):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_gone, receive, tasks.cancel_scope)
                tasks.start_soon(self._until_closed, tasks.cancel_scope)
                queue.on_beat = partial(self._look_at_session, tasks.cancel_scope)
                queue.put(b"retry: 1000\n\n" + context.presence.feed.hello())
                writer = scope.get("state", {}).get(CHUNK_WRITER)
                has_chunks = scope["method"] == "GET" and scope["http_version"] == "1.1"
                if writer is not None and has_chunks:
                    queue.push = partial(self._push, writer)
                while True:
                    chunk = await queue.take()
                    # What came after the session had ended is not for it any more.
                    if not self._may_go_on():
                        break
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                if not self._is_signed_in():
                    gone = pack("gone", {})
                    await send({"type": "http.response.body", "body": gone, "more_body": True})
                tasks.cancel_scope.cancel()
        # At the end of the gateway the browser comes back by itself.
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1.0):
            await send({"type": "http.response.body", "body": b""})

    def _look_at_session(self, scope: anyio.CancelScope) -> None:
        """End a stream whose session has ended, whether its browser reads or not."""
        if self._may_go_on():
            return
        if self._ends:
            scope.cancel()
        self._ends = True
        self._queue.put(NOTHING_NEW)

    def _push(self, writer: ChunkWriter, chunk: bytes) -> bool:
        # What is queued instead wakes the response, which looks at the session itself.
        return self._may_go_on() and writer.write(chunk)

    def _may_go_on(self) -> bool:
        return not self._context.presence.ended and self._is_signed_in()

    def _is_signed_in(self) -> bool:
        state, session = self._context.state, self._context.signed_in
        space = state.runtime.spaces.get(session.identity.space)
        return state.sessions.is_open(session, state.runtime.tokens) and not (
            space is not None and space.owner.is_kicked(session.identity.participant)
        )

    async def _until_closed(self, scope: anyio.CancelScope) -> None:
        await self._context.state.closing.wait()
        scope.cancel()


# --- web push ---
# A person lets this browser be told while no page is open, or not any more.


async def subscribe(context: PageContext) -> Response:
    """Tell the browser, for as long as it is not signed out."""
    push = _subscriptions(context)
    endpoint, session = context.typed("endpoint"), context.signed_in
    keys = context.typed("p256dh"), context.typed("auth")
    # Now, since it may be signed out while the disk takes its time.
    before, session.push = session.push, endpoint
    try:
        await push.add(context.identity, endpoint, *keys, session.token)
    except UsageError as error:
        session.push = before
        raise RequestDenied(BAD_REQUEST, f"Nothing is sent to this browser: {error}.") from None
    return Response(None, 204)


async def unsubscribe(context: PageContext) -> Response:
    """Tell the browser no more."""
    context.signed_in.push = ""
    await _subscriptions(context).remove(context.identity, context.typed("endpoint"))
    return Response(None, 204)


def _subscriptions(context: PageContext) -> PushSubscriptions:
    push = context.state.runtime.push
    if push is None:
        raise RequestDenied(
            NOT_FOUND, "Web Push is off here: start the gateway with --notify push."
        )
    return push
