"""Says an envelope, and reads what was said, without a connection (mew/v0.4 section 5.3)."""

from __future__ import annotations

import math
import secrets
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from meup_agent.errors import InvalidEnvelope, NotExpressible
from meup_agent.gateway.admission import BAD_REQUEST
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.edge.handshake import is_seq, read_dialect
from meup_agent.gateway.edge.http.context import (
    TIMEOUT,
    TOO_LARGE,
    WRONG_TYPE,
    Json,
    Problem,
    authorize_participant,
    await_callback,
    bad_query,
    over_limit,
    read_journal,
    refused,
)
from meup_agent.gateway.runtime import GatewayRuntime, wall_clock
from meup_agent.protocol.dialects import encode
from meup_agent.protocol.limits import MAX_DEPTH, check_frame
from meup_agent.protocol.resume import numbered
from meup_agent.protocol.space.decisions import (
    Answer,
    Discard,
    Refusal,
    draft_refusal,
    shown_limit,
)
from meup_agent.protocol.space.inbound import complete_fields
from meup_agent.protocol.space.journal import MAX_SEQ, Entry
from meup_agent.protocol.space.owner import DecisionCallback
from meup_agent.protocol.space.server import SpaceServer
from meup_agent.protocol.streams import is_stream_frame
from meup_agent.protocol.timestamps import rfc3339
from meup_agent.transport.base import DIALECT_HEADER

PAGE: Final = 100
"""Messages of a page, if nothing else is asked for."""

MAX_PAGE: Final = 500
"""Messages of the largest page that can be asked for."""

REGISTER: Final = "system/register"
"""A kind that is dropped on a connection, and that scripts look for a refusal of."""

JSON_TYPE: Final = "application/json"
FRAME_TYPES: Final = ("text/plain", "application/octet-stream")
"""Media types of frames of streams, whose form does not depend on them."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def post_message(runtime: GatewayRuntime, request: Request) -> Response:
    """Take an envelope; the answer comes when it is kept. A frame of a stream is taken as well."""
    identity, host = authorize_participant(runtime, request)
    body = await _body(runtime, identity, request)
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
        over: dict[str, Any] = {}
        if invalid.problem == "too_deep":
            over = {"limit": "max_depth", "max": MAX_DEPTH}
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

    def ask(tell: DecisionCallback) -> None:
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
        raise over_limit(
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
    for entry in page:
        with suppress(NotExpressible):
            messages.append(msgspec.Raw(numbered(encode(entry.envelope, dialect), entry.seq)))
            times.append(rfc3339(entry.at))
    damaged = host.journal.damaged(
        host.name, after=after, until=MAX_SEQ if following is None else following
    )
    return Json(
        {
            "messages": messages,
            "times": times,
            "next": following,
            "gap": gap or bool(damaged),
            "damaged": damaged,
            "now": rfc3339(now),
        }
    )


def page_size(request: Request) -> int:
    """The size of the page that is asked for."""
    said = request.query_params.get("limit", str(PAGE))
    if not (said.isascii() and said.isdigit() and 1 <= int(said[:9]) <= MAX_PAGE):
        raise bad_query(f"limit must be a number from 1 to {MAX_PAGE}")
    return int(said)


def requested_dialect(request: Request) -> str | None:
    """The dialect that is asked for in the query or by header; ``None``: none."""
    return read_dialect(request.query_params.get("dialect") or request.headers.get(DIALECT_HEADER))


async def _after(host: SpaceServer, since: str, until: int) -> int:
    """The number before the first message that is asked for, by a number or a time."""
    if is_seq(since):
        return int(since)
    try:
        # A plus sign in a query means a blank.
        moment = datetime.fromisoformat(since.replace(" ", "+"))
        if moment.tzinfo is None:
            raise ValueError
        at = (moment - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise bad_query(
            "since must be a message's 'seq', or a time such as 2026-01-31T12:00:00Z"
        ) from None
    # By halving what is kept.
    low, high = host.journal.floor(host.name), until
    while low < high:
        middle = (low + high) // 2
        entries = await read_journal(host, after=middle, until=until, limit=1)
        if entries and entries[0].at <= at:
            low = entries[0].seq
        else:
            high = middle
    return low


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
                    raise over_limit(
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
        raise InvalidEnvelope("invalid_json", f"the body is no JSON object: {error}") from None


def _text(given: dict[str, msgspec.Raw], name: str) -> str | None:
    """A field's text; ``None`` if it is missing, null, empty, or something else."""
    try:
        value: Any = msgspec.json.decode(given[name]) if name in given else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return value if isinstance(value, str) and value else None
