"""Messages without a connection (mew/v0.4 section 5.3): said, read, and as events."""

from __future__ import annotations

import math
import secrets
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final, cast

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from meup_agent.errors import InvalidEnvelope, NotExpressible
from meup_agent.gateway.auth import BAD_REQUEST, Identity, TokenUse, digest_of_token
from meup_agent.gateway.edge.connection import SendQueue
from meup_agent.gateway.edge.handshake import bearer, is_seq, read_dialect, read_place
from meup_agent.gateway.edge.http.context import (
    TIMEOUT,
    TOO_LARGE,
    WRONG_TYPE,
    Json,
    Problem,
    authorize_participant,
    authorize_space,
    await_callback,
    bad_query,
    limit_problem,
    newest_number,
    read_flag,
    read_journal,
    read_time,
    refused,
)
from meup_agent.gateway.edge.listener import NORMAL
from meup_agent.gateway.frame_queue import FrameQueue, GatewayMember
from meup_agent.gateway.runtime import GatewayRuntime, wall_clock
from meup_agent.protocol.dialects import encode
from meup_agent.protocol.space.journal import MAX_SEQ, Entry
from meup_agent.protocol.space.link import FrameFormat, Place
from meup_agent.protocol.space.owner import SpaceServer, VerdictCallback
from meup_agent.protocol.space.state.grants import (
    KICKED_CODE,
    NO_EFFECT,
    REMOVED,
    GrantEffect,
)
from meup_agent.protocol.space.state.indexes import (
    Answer,
    Discard,
    Refusal,
    draft_refusal,
    shown_limit,
)
from meup_agent.protocol.space.state.rules import complete_fields
from meup_agent.protocol.wire.envelope import MAX_DEPTH, check_frame, rfc3339
from meup_agent.protocol.wire.membership import numbered
from meup_agent.protocol.wire.streams import is_stream_frame
from meup_agent.transport.base import DIALECT_HEADER, LAST_SEEN_HEADER, OBSERVE_HEADER

# --- messages ---

PAGE: Final = 100
"""Messages of a page, if nothing else is asked for."""

MAX_PAGE: Final = 500
"""Messages of the largest page that can be asked for."""

REGISTER: Final = "system/register"
"""A kind that is dropped on a connection, and that scripts look for a refusal of."""

JSON_TYPE: Final = "application/json"
FRAME_TYPES: Final = ("text/plain", "application/octet-stream")
"""Media types of frames of streams, whose form does not depend on them."""

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def post_message(runtime: GatewayRuntime, request: Request) -> Response:
    """Take an envelope; the answer comes when it is kept. A frame of a stream is taken as well."""
    identity, host = authorize_participant(runtime, request)
    body = await _body(runtime, identity, request)
    # Its token may be void by now, and its space another one.
    identity, host = authorize_participant(runtime, request)
    runtime.enter_output(identity)
    if is_stream_frame(body):
        # It has no id, and is not kept.
        _check_pace(host, identity.participant, len(body))
        refusal = host.owner.relay_as(identity.participant, body)
        if refusal is not None:
            raise refused(refusal)
        return Json({"status": "accepted", "timestamp": rfc3339(wall_clock())})
    _check_type(request, JSON_TYPE)
    try:
        check_frame(body)
        given = _fields(body)
        named = read_dialect(_text(given, "protocol") or request.headers.get(DIALECT_HEADER))
    except InvalidEnvelope as invalid:
        is_deep = invalid.problem == "too_deep"
        over: dict[str, Any] = {"limit": "max_depth", "max": MAX_DEPTH} if is_deep else {}
        raise Problem(BAD_REQUEST, invalid.problem, str(invalid), **over) from None
    dialect = named or runtime.dialect(identity)
    now = rfc3339(wall_clock())
    envelope_id = _text(given, "id") or secrets.token_hex(16)
    defaults: dict[str, object] = {
        "protocol": dialect,
        "id": envelope_id,
        "ts": now,
        "from": identity.participant,
        "payload": {},
    }
    frame = complete_fields(body, given, defaults) or body
    _check_pace(host, identity.participant, len(frame))
    told: dict[str, Any] = {}

    def ask(tell: VerdictCallback) -> None:
        host.owner.receive_as(identity.participant, frame, dialect, tell, private=told.update)

    answer = await await_callback(ask)
    if isinstance(answer, Discard) and answer.kind == REGISTER:
        said = "system/register is reserved for the gateway; use capability/grant instead"
        answer = draft_refusal(identity.participant, "invalid_request", said, about=envelope_id)
    if isinstance(answer, Refusal):
        runtime.tell_output(identity, answer)
        raise refused(answer)
    if isinstance(answer, Answer):
        page = msgspec.Raw(answer.write(host.fanout.delivered).raw_payload)
        told = {"seq": None, "timestamp": now, "answer": page}
        return Json({"id": envelope_id, "status": "answered", **told})
    seq = answer.seq if isinstance(answer, Entry) else None
    became = "dropped" if seq is None else "accepted"
    # The token of an invitation is told to the inviter alone, by its connection and here.
    return Json({"id": envelope_id, "status": became, "seq": seq, "timestamp": now, **told})


def _check_pace(host: SpaceServer, participant: str, size: int) -> None:
    pace = host.owner.check_rate(participant, size)
    if pace is not None:
        said = "you say more in a second than is taken here"
        if pace.limit == "slow_reader_seconds":
            said = "a reader does not keep up with you"
        raise limit_problem(
            f"{said}; send it again later",
            pace.limit,
            shown_limit(pace.most),
            seconds=math.ceil(pace.seconds),
        )


async def get_messages(runtime: GatewayRuntime, request: Request) -> Response:
    """A page of what was said, from a number or a time on."""
    identity, host = authorize_participant(runtime, request)
    limit = page_size(request)
    dialect = requested_dialect(request) or runtime.dialect(identity)
    since = request.query_params.get("since", "")
    now = host.now()  # before what is delivered by now
    floor, until = host.journal.floor(host.name), host.fanout.delivered
    after = await _after(host, since, until) if since else floor
    # It is not known any more what was said between a time and the first that is kept.
    gap = after < floor if is_seq(since) else bool(since) and after == floor
    after = max(after, floor)
    page = await read_journal(host, after=after, until=until, limit=limit)
    following = page[-1].seq if page and page[-1].seq < until else None
    messages, times = list[msgspec.Raw](), list[str]()
    grants = dict[str, GrantEffect]()
    for entry in page:
        with suppress(NotExpressible):
            messages.append(msgspec.Raw(numbered(encode(entry.envelope, dialect), entry.seq)))
            times.append(rfc3339(entry.at))
            if (effect := GrantEffect.of(entry)) != NO_EFFECT:
                grants[str(entry.seq)] = effect
    damaged = host.journal.damaged(
        host.name, after=after, until=MAX_SEQ if following is None else following
    )
    return Json(
        {
            "messages": messages,
            "times": times,
            "grants": grants,
            "next": following,
            "gap": gap or bool(damaged),
            "damaged": damaged,
            "now": rfc3339(now),
        }
    )


def page_size(request: Request) -> int:
    """The size of the page that is asked for."""
    said = request.query_params.get("limit", str(PAGE))
    if not (is_seq(said) and 1 <= int(said) <= MAX_PAGE):
        raise bad_query(f"limit must be a number from 1 to {MAX_PAGE}")
    return int(said)


def requested_dialect(request: Request) -> str | None:
    """The dialect that is asked for in the query or by header; ``None``: none."""
    return read_dialect(request.query_params.get("dialect") or request.headers.get(DIALECT_HEADER))


async def _after(host: SpaceServer, since: str, until: int) -> int:
    """The number before the first message that is asked for, by a number or a time."""
    if is_seq(since):
        return int(since)
    expected = "since must be a message's 'seq', or a time such as 2026-01-31T12:00:00Z"
    return await newest_number(host, until, read_time(since, expected))


# --- the envelope that is sent ---


async def _body(runtime: GatewayRuntime, identity: Identity, request: Request) -> bytes:
    """The body, as far as it may go; while it comes, it counts among what waits for its sender."""
    _check_type(request, JSON_TYPE, *FRAME_TYPES)
    most = runtime.limits.max_message_bytes
    body, backlogs = bytearray(), runtime.backlogs
    try:
        with anyio.fail_after(runtime.limits.join_timeout):
            async for chunk in request.stream():
                if not backlogs.reserve(identity, len(chunk)):
                    raise limit_problem(
                        "you send too many messages at the same time; send this one again later",
                        "max_participant_queued_bytes",
                        runtime.limits.max_participant_queued_bytes,
                        Connection="close",
                    )
                body += chunk
                if len(body) > most:
                    raise Problem(
                        TOO_LARGE,
                        "too_large",
                        f"an envelope may have at most {most} bytes",
                        headers={"Connection": "close"},
                        limit="max_message_bytes",
                        max=most,
                    )
    except TimeoutError:
        raise Problem(
            TIMEOUT, "too_slow", "the body did not arrive in time", headers={"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise Problem(BAD_REQUEST, "bad_request", "the body is cut") from None
    finally:
        backlogs.release(identity, len(body))
    return bytes(body)


def _check_type(request: Request, *taken: str) -> None:
    said = request.headers.get("content-type", JSON_TYPE).partition(";")[0].strip().lower()
    if said not in taken:
        raise Problem(WRONG_TYPE, "unsupported_media_type", "send JSON, as application/json")


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _decode_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidEnvelope("invalid_json", f"the body is not a JSON object: {error}") from None


def _text(given: dict[str, msgspec.Raw], name: str) -> str | None:
    """A field's text; ``None`` if it is missing, null, empty, or something else."""
    try:
        return msgspec.json.decode(given[name], type=str) or None
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError):
        return None


# --- the event stream of a space ---
# What is said in it, as it is said (server-sent events).

KEEP_ALIVE_SECONDS: Final = 15.0
"""Seconds of silence after which a comment is sent, so that nothing on the way takes the stream
for dead."""

RETRY_MILLISECONDS: Final = 1_000
"""After which a reader should come back when its stream has ended."""

PIECE_BYTES: Final = 64 * 1024
"""Bytes of a stream that are handed to the server at a time; it waits for the reader in between."""

CATCH_UP_PAGE: Final = 100
"""Entries that are read at a time for a reader who does not follow."""

_SEQ: Final = b'"seq":'


def pack_event(frame: bytes) -> bytes:
    """A numbered frame as an event: its number is the event's id."""
    seq = frame[frame.rindex(_SEQ) + len(_SEQ) : -1]
    # JSON has line ends only between its words.
    lines = frame.replace(b"\r", b"\n").split(b"\n")
    return b"id: %b\n%b\n" % (seq, b"".join(b"data: %b\n" % line for line in lines))


class EventResponse:
    """Streams a space's events to one reader, from now or from ``last_seen`` on; an ASGI response.

    It ends when there is nothing more for now, unless it is to ``follow``. One that ``observes`` is
    an observer of the space (PROTOCOL 3): a welcome comes first, and an event ``close`` says why it
    ends.
    """

    def __init__(
        self,
        runtime: GatewayRuntime,
        host: SpaceServer,
        identity: Identity,
        form: FrameFormat,
        last_seen: int | None,
        *,
        follow: bool,
        observes: bool,
        token_use: TokenUse,
    ) -> None:
        self._host = host
        self._identity = identity
        self.token_use = token_use
        self._limits = runtime.limits
        if not runtime.backlogs.add_stream(identity):
            most = runtime.limits.max_streams
            said = f"you have {most} event streams, as many as you may; end one first"
            raise limit_problem(said, "max_streams", most)
        self._sending = SendQueue(lambda: self._stream.pause(), lambda: self._stream.resume())
        # Its participant's agent keeps its connection.
        member = partial(GatewayMember, last_seen=last_seen, place=Place.OBSERVING)
        make = member if observes else FrameQueue
        self._stream = stream = make(runtime, identity, form, self._sending)
        self._last_seen = last_seen
        self._follow = follow
        runtime.event_streams.add(self)
        # Leaves the space, and makes room for another stream.
        self._held = held = ExitStack()
        held.callback(runtime.backlogs.remove_stream, identity)
        held.callback(stream.lost)
        if isinstance(stream, GatewayMember):
            held.callback(host.leave, stream)
        else:
            held.callback(host.fanout.unsubscribe, stream)
        held.callback(runtime.event_streams.discard, self)

    def shut(self, code: int, reason: str) -> None:
        """End after what is queued: its token is not known any more."""
        self._stream.close(code, reason)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the reader goes, is too slow, or the gateway stops."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        headers += [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        stream, host = self._stream, self._host
        if isinstance(stream, GatewayMember):
            answered = {DIALECT_HEADER: stream.form.dialect, OBSERVE_HEADER: "1"}
            headers += [(name.lower().encode(), said.encode()) for name, said in answered.items()]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            stream.deliver(b"retry: %d\n\n" % RETRY_MILLISECONDS)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_gone, receive, tasks.cancel_scope)
                tasks.start_soon(self._until_stuck, tasks.cancel_scope)
                if isinstance(stream, GatewayMember):
                    host.join(stream)
                else:
                    host.journal.call_when_kept(self._announce_gap)
                    if self._follow:
                        host.fanout.subscribe(stream, self._last_seen)
                    else:
                        tasks.start_soon(self._read_what_there_is)
                while (events := await self._sending.take(KEEP_ALIVE_SECONDS)) is not None:
                    chunk = events or b": nothing new\n\n"
                    # In pieces, so that the server copies no more than one before it waits.
                    for begin in range(0, len(chunk), PIECE_BYTES):
                        piece = chunk[begin : begin + PIECE_BYTES]
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                    if host.owner.is_kicked(self._identity.participant):
                        stream.close(KICKED_CODE, REMOVED)
                # Before its reader can know that it has ended, and ask for another.
                self._held.close()
                await send({"type": "http.response.body", "body": self._last_words()})
                tasks.cancel_scope.cancel()
        finally:
            self._held.close()

    def _last_words(self) -> bytes:
        """The event that tells an observer's reader what a close frame would tell."""
        if not isinstance(self._stream, GatewayMember):
            return b""
        said = msgspec.json.encode({"code": self._sending.code, "reason": self._sending.reason})
        return b"event: close\ndata: %b\n\n" % said

    def _announce_gap(self) -> None:
        host, seen = self._host, self._last_seen
        begin = seen if seen is None else host.journal.resume_from(host.name, seen)
        if begin is not None and begin != seen:
            self._stream.deliver(b'event: gap\ndata: {"after":%d}\n\n' % begin)

    async def _read_what_there_is(self) -> None:
        """Hand over what is known by now, page by page, and end."""
        host, stream = self._host, self._stream
        until = host.fanout.delivered
        last_seen = self._last_seen
        seen = until if last_seen is None else host.journal.resume_from(host.name, last_seen)
        while seen < until and not stream.closed:
            entries = await read_journal(host, after=seen, until=until, limit=CATCH_UP_PAGE)
            for entry in entries:
                packed = host.fanout.pack(entry, stream.form)
                if packed is not None:
                    stream.deliver(packed)
            seen = entries[-1].seq if entries else until
            taken = anyio.Event()
            stream.ready(taken.set)
            await taken.wait()
        stream.close(NORMAL, "")

    async def _until_stuck(self, scope: anyio.CancelScope) -> None:
        """Give a stream that has ended its time, and no more, to be read."""
        await self._sending.closed.wait()
        await anyio.sleep(self._limits.close_timeout)
        scope.cancel()


async def get_events(runtime: GatewayRuntime, request: Request) -> Response:
    """The events of a space, from now on or from a number on."""
    identity, host = authorize_space(runtime, request)
    said = request.query_params.get("since") or request.headers.get(LAST_SEEN_HEADER)
    if said is not None and not is_seq(said):
        raise bad_query(f"{LAST_SEEN_HEADER} must be the 'seq' of an envelope")
    follow = read_flag(request, "follow", True)
    place = read_place(request.headers.get)
    observes = place is Place.OBSERVING and follow
    if observes:
        # As for any other connection that observes.
        runtime.check_members(identity, place)
        runtime.join_throttle.join(identity, place)
    dialect = requested_dialect(request) or runtime.dialect(identity)
    response = EventResponse(
        runtime,
        host,
        identity,
        FrameFormat(dialect, True, pack=pack_event),
        None if said is None else int(said),
        follow=follow,
        observes=observes,
        token_use=TokenUse(digest_of_token(bearer(request.headers["authorization"])), identity),
    )
    # All that is asked of a response is that it can be called so.
    return cast("Response", response)


async def cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
