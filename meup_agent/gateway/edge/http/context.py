"""The ground that endpoints share: the caller, the journal's answer, and errors in one form.

An error's body is ``{"error": code, "message": sentence}``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, TypeVar, cast

import msgspec
from anyio.lowlevel import checkpoint
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meup_agent.gateway.auth import (
    BAD_REQUEST,
    FORBIDDEN,
    NOT_FOUND,
    TOO_MANY,
    UNAUTHORIZED,
    UNAVAILABLE,
    Identity,
    NotAdmitted,
)
from meup_agent.gateway.edge.handshake import bearer
from meup_agent.gateway.edge.listener import address_of_client
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.owner import SpaceServer
from meup_agent.protocol.space.state.grants import REMOVED
from meup_agent.protocol.space.state.indexes import Refusal

JOURNAL_SECONDS: Final = 10.0
"""Seconds that a request waits for the journal: a slower disk does not answer any more."""

T = TypeVar("T")


async def await_callback(ask: Callable[[Callable[[T], None]], object]) -> T:
    """Wait for the value that a callback gets; a :exc:`Problem` if the journal does not answer."""
    found: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def settle(value: T) -> None:
        # The request may have given up before the journal answers.
        if not found.done():
            found.set_result(value)

    ask(settle)
    try:
        async with asyncio.timeout(JOURNAL_SECONDS):
            return await found
    except TimeoutError:
        raise Problem(
            UNAVAILABLE,
            "journal_unavailable",
            "the journal does not answer, and whether this was kept is not known; ask again later",
        ) from None


async def read_journal(
    host: SpaceServer, *, after: int, until: int, limit: int
) -> tuple[Entry, ...]:
    """Entries of a space's journal, oldest first; see :meth:`Journal.read`."""
    journal = host.journal
    entries: tuple[Entry, ...] = await await_callback(
        lambda tell: journal.read(host.name, after=after, until=until, limit=limit, then=tell)
    )
    # One in memory answers at once: a reader of many pages lets others run in between.
    await checkpoint()
    return entries


async def newest_number(host: SpaceServer, until: int, at: float = math.inf) -> int:
    """The number of the newest entry up to another number, and up to a time in microseconds.

    It is found by halving what is kept; where there is none, it is the journal's floor.
    """
    low, high = host.journal.floor(host.name), until
    while low < high:
        middle = (low + high) // 2
        entries = await read_journal(host, after=middle, until=high, limit=1)
        if entries and entries[0].at <= at:
            low = entries[0].seq
        else:
            high = middle
    return low


def authenticate(
    runtime: GatewayRuntime, request: HTTPConnection, named: str | None = None
) -> Identity:
    """The identity of the header's token; one in the address counts not, since that is logged."""
    authorization = request.headers.get("authorization")
    try:
        if authorization is None:
            raise NotAdmitted(UNAUTHORIZED, "send the header Authorization: Bearer <token>")
        return runtime.identify(bearer(authorization), address_of_client(request.scope), named)
    except NotAdmitted as refused:
        runtime.counters.not_admitted[refused.status] += 1
        raise


def authorize_space(
    runtime: GatewayRuntime, request: HTTPConnection
) -> tuple[Identity, SpaceServer]:
    """The caller, and the space in the path, which must be that of its token."""
    space: str = request.path_params["space"]
    # Before its token: who was invited is known where the space is.
    runtime.check_open(space)
    identity = authenticate(runtime, request, space)
    if space not in runtime.spaces:
        raise Problem(404, "no_such_space", "no space here has this name")
    if identity.space != space:
        raise Problem(FORBIDDEN, "forbidden", "the token is for another space")
    return identity, _entered(runtime, request, identity)


def authorize_participant(
    runtime: GatewayRuntime, request: HTTPConnection
) -> tuple[Identity, SpaceServer]:
    """The caller, which must be the participant in the path, and its space."""
    identity = authenticate(runtime, request)
    if identity.participant != request.path_params["participant"]:
        raise Problem(FORBIDDEN, "forbidden", "the token is another participant's")
    return identity, _entered(runtime, request, identity)


ABOUT: Final = "meup.space"
"""Key at which the scope of a request has the space that it is about."""


def _entered(runtime: GatewayRuntime, request: HTTPConnection, identity: Identity) -> SpaceServer:
    """The space of a participant, unless it was removed or the gateway ends with its journal."""
    if not runtime.accepting:
        raise Problem(UNAVAILABLE, "unavailable", "the gateway stops; come back soon")
    host = runtime.spaces[identity.space]
    if host.owner.is_kicked(identity.participant):
        raise Problem(FORBIDDEN, "kicked", REMOVED)
    request.scope[ABOUT] = identity.space
    return host


TIMEOUT: Final = 408
CONFLICT: Final = 409
TOO_LARGE: Final = 413
WRONG_TYPE: Final = 415

_OF_A_REFUSAL: Final = {
    "too_large": TOO_LARGE,
    "limit_exceeded": TOO_MANY,
    **dict.fromkeys(
        (
            "invalid_json",
            "invalid_utf8",
            "invalid_envelope",
            "too_deep",
            "several_proposals",
            "ambiguous_executor",
            "reserved_key",
            "invalid_request",
            "invalid_stream_frame",
            "invalid_operation",
        ),
        BAD_REQUEST,
    ),
    **dict.fromkeys(
        (
            "stream_not_found",
            "target_not_found",
            "participant_not_found",
            "unknown_participant",
            "unknown_yes",
        ),
        NOT_FOUND,
    ),
    **dict.fromkeys(
        (
            "id_in_use",
            "look_alike",
            "participant_exists",
            "already_exists",
            "not_answering",
            "not_pending",
            "not_renewed",
            "not_reported",
            "invalid_yes",
        ),
        CONFLICT,
    ),
}
"""The status by a refusal's code; whatever else is refused is not allowed to this sender."""

_CODES: Final = {
    UNAUTHORIZED: "token_refused",
    FORBIDDEN: "forbidden",
    NOT_FOUND: "not_found",
    405: "method_not_allowed",
    TOO_MANY: "too_many_attempts",
    UNAVAILABLE: "unavailable",
}

RETRY_SECONDS: Final = 1
"""Seconds after which a caller that was too fast may try again."""


class Json(Response):
    """A JSON answer that no cache keeps."""

    media_type = "application/json"

    def __init__(
        self, body: object, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        # Compact, as scripts of existing spaces search for it.
        super().__init__(
            msgspec.json.encode(body), status, {"Cache-Control": "no-store", **(headers or {})}
        )


class Problem(Exception):
    """A request cannot be answered as it was meant: an error's code for programs, words for people.

    The details are further fields of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        /,
        *,
        headers: Mapping[str, str] | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.body = {**details, "error": code, "message": message}


def not_admitted(refused: NotAdmitted) -> Problem:
    """The answer to a caller that is not admitted."""
    asks = {"WWW-Authenticate": "Bearer"} if refused.status == UNAUTHORIZED else {}
    code = _CODES.get(refused.status, "bad_request")
    return Problem(refused.status, code, str(refused), headers={**asks, **refused.headers})


def refused(decision: Refusal) -> Problem:
    """The answer to the sender of an envelope that was refused."""
    payload = decision.error.payload_object
    code = str(payload.pop("error", decision.code))
    message = str(payload.pop("message", ""))
    status = _OF_A_REFUSAL.get(decision.code, FORBIDDEN)
    seconds = math.ceil(decision.retry_after) or RETRY_SECONDS
    headers = {"Retry-After": str(seconds)} if status == TOO_MANY else {}
    return Problem(status, code, message, headers=headers, **payload)


def limit_problem(
    message: str, limit: str, most: float, *, seconds: int = RETRY_SECONDS, **headers: str
) -> Problem:
    """The answer to a caller that may do so later."""
    return Problem(
        TOO_MANY,
        "limit_exceeded",
        message,
        headers={"Retry-After": str(seconds), **headers},
        limit=limit,
        max=most,
    )


def bad_query(message: str) -> Problem:
    """The answer to a query that means nothing."""
    return Problem(BAD_REQUEST, "bad_query", message)


def read_flag(request: Request, name: str, default: bool) -> bool:
    """A parameter of the query that is true or false."""
    said = request.query_params.get(name, str(default).lower())
    if said not in ("true", "false"):
        raise bad_query(f"{name} must be true or false")
    return said == "true"


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def read_time(said: str, expected: str) -> int:
    """A time with its zone (RFC 3339), in microseconds since 1970 (UTC)."""
    try:
        # A plus sign in a query means a blank.
        moment = datetime.fromisoformat(said.replace(" ", "+"))
        if moment.tzinfo is None:
            raise ValueError
        # Its zone may put it before the year 1, or after 9999, where no page could say it.
        return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise bad_query(expected) from None


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the routing refuses: an unknown path, a method that it does not take."""
    found = cast("HTTPException", error)
    code = _CODES.get(found.status_code, "error")
    said = {
        404: "there is nothing at this path; /openapi.json lists what there is",
        405: "this path does not take this method; the header Allow lists those that it takes",
    }.get(found.status_code, HTTPStatus(found.status_code).phrase)
    return Json({"error": code, "message": said}, found.status_code, found.headers)


async def on_failure(request: Request, error: Exception) -> Response:
    """Answer a failure of our own, without a word of its cause."""
    return Json({"error": "internal", "message": "the gateway failed; its log says more"}, 500)


def with_headers(app: ASGIApp, more: Callable[[Message], Iterable[tuple[bytes, bytes]]]) -> ASGIApp:
    """An application, with more headers in its answers.

    Args:
        app: The application.
        more: The headers for the message with which an answer starts.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.setdefault("headers", []), *more(message)]
            await send(message)

        await app(scope, receive, send_more)

    return answer
