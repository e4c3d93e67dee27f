"""Errors over HTTP, in one form: ``{"error": code, "message": sentence}``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from meup_agent.gateway.admission import NotAdmitted
from meup_agent.gateway.logs import RefusalLog, quote
from meup_agent.protocol.space.decisions import Refusal

BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
TIMEOUT: Final = 408
CONFLICT: Final = 409
TOO_LARGE: Final = 413
WRONG_TYPE: Final = 415
TOO_MANY: Final = 429
UNAVAILABLE: Final = 503

_OF_A_REFUSAL: Final = {
    "too_large": TOO_LARGE,
    "limit_exceeded": TOO_MANY,
    "invalid_json": BAD_REQUEST,
    "invalid_utf8": BAD_REQUEST,
    "invalid_envelope": BAD_REQUEST,
    "too_deep": BAD_REQUEST,
    "several_proposals": BAD_REQUEST,
    "reserved_key": BAD_REQUEST,
    "id_in_use": CONFLICT,
    "not_pending": CONFLICT,
}
"""The status by a refusal's code; whatever else is refused is not allowed to this sender."""

_CODES: Final = {
    UNAUTHORIZED: "token_refused",
    FORBIDDEN: "forbidden",
    404: "not_found",
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
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        super().__init__(content, status, {"Cache-Control": "no-store", **(headers or {})})


class Problem(Exception):
    """A request cannot be answered as it was meant: an error's code for programs, words for people.

    The details are further fields of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.body = {**details, "error": code, "message": message}

    def answer(self) -> Response:
        """The answer that says so."""
        return Json(self.body, self.status, self.headers)


def not_admitted(refused: NotAdmitted) -> Problem:
    """The answer to a caller that is not admitted."""
    headers = {"WWW-Authenticate": "Bearer"} if refused.status == UNAUTHORIZED else {}
    headers.update(getattr(refused, "headers", {}))
    code = _CODES.get(refused.status, "bad_request")
    return Problem(refused.status, code, str(refused), headers=headers)


def refused(decision: Refusal) -> Problem:
    """The answer to the sender of an envelope that was refused."""
    payload = decision.error.payload_object
    code = str(payload.pop("error", decision.code))
    message = str(payload.pop("message", ""))
    status = _OF_A_REFUSAL.get(decision.code, FORBIDDEN)
    seconds = math.ceil(decision.retry_after) or RETRY_SECONDS
    headers = {"Retry-After": str(seconds)} if status == TOO_MANY else {}
    return Problem(status, code, message, headers=headers, **payload)


def log_refusal(refusals: RefusalLog, method: str, path: str, problem: Problem) -> None:
    """Log a refusal, at the path as the API has it: what a stranger wrote there may be a token."""
    if problem.status in (UNAUTHORIZED, FORBIDDEN, TOO_MANY):
        said = "HTTP: %s %s was refused with %d: %s"
        refusals.info(said, method, path, problem.status, quote(str(problem)))


async def on_problem(request: Request, error: Exception) -> Response:
    """Answer a :class:`Problem`."""
    return cast("Problem", error).answer()


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
