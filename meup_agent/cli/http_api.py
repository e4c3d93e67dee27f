"""A gateway's HTTP API: the token's participant, and pages of what was said."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from meup_agent.cli import exit_codes
from meup_agent.cli.address import HttpAddress
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.escape import visible
from meup_agent.protocol.payloads import as_object
from meup_agent.transport.handshake import (
    Advice,
    advice_for,
    reason_for,
    with_tls,
    without_tls,
)
from meup_agent.transport.http import ANSWER_SECONDS, fetch, open_client

if TYPE_CHECKING:
    import httpx


CHECK_ADDRESS: Final = "check --http, MEUP_HTTP or MEUP_URL"
"""Advice where no gateway answers: without an address of its own, HTTP is asked at the other's."""

MAX_PAGE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of an answer; a page of messages has about 4 MiB, or a single larger one."""


class HttpApi:
    """The HTTP API for one token; made by :func:`open_http_api`."""

    def __init__(self, client: httpx.AsyncClient, url: str, me: dict[str, Any]) -> None:
        self._client = client
        self._url = url
        self.me = str(me.get("id", ""))
        self.space = str(me.get("space", ""))

    async def page(self, since: str | None, *, limit: int, dialect: str) -> dict[str, Any]:
        """A page of what was said after a number or a time: ``messages``, ``times``, ``next``."""
        begin = {} if since is None else {"since": since}
        path = f"/participants/{quote(self.me, safe='')}/messages"
        query = {"limit": str(limit), "dialect": dialect, **begin}
        return await _ask(self._client, self._url, path, **query)


@asynccontextmanager
async def open_http_api(where: HttpAddress) -> AsyncGenerator[HttpApi]:
    """The HTTP API, for the length of a block."""
    token = where.token if isinstance(where.token, str) else where.token()
    async with open_client(where.url, f"Bearer {token.strip()}") as client:
        api = HttpApi(client, where.url, await _ask(client, where.url, "/me"))
        if where.space not in (None, api.space):
            raise Misuse(
                f"the token is for the space {visible(api.space, 64)}, not {where.space!r};"
                " check --space or MEUP_SPACE"
            )
        yield api


async def _ask(client: httpx.AsyncClient, url: str, path: str, **query: str) -> dict[str, Any]:
    import httpx

    try:
        response = await fetch(client, path, params=query, max_bytes=MAX_PAGE_BYTES)
    except httpx.ConnectError as error:
        found = advice_for(error, urlsplit(url).scheme)
        found = found or Advice(reason_for(error, ANSWER_SECONDS), CHECK_ADDRESS)
        raise Failure(f"no gateway answers at {url}: {found}", exit_codes.NO_CONNECTION) from error
    except httpx.TransportError as error:
        why = str(error) or type(error).__name__
        # Later on, the address has shown that it is right.
        scheme = urlsplit(url).scheme
        todo = without_tls(scheme) if scheme == "https" else with_tls(scheme)
        advice = f"; {CHECK_ADDRESS}: {todo}" if path == "/me" else ""
        said = f"the gateway did not answer ({why}){advice}"
        raise Failure(said, exit_codes.NO_CONNECTION) from error
    try:
        body = as_object(response.json())
    except (ValueError, RecursionError):
        raise _no_api(response) from None
    if response.status_code == 200:
        return body
    code, message = body.get("error"), body.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        raise _no_api(response)
    said = visible(message, 300)
    if response.status_code == 401:
        advice = "check MEUP_TOKEN, --token-file or --token"
        raise Failure(f"the gateway refuses the token: {said}; {advice}", exit_codes.NO_CONNECTION)
    raise Failure(f"the gateway refused the request: {code} ({said})", exit_codes.NO_CONNECTION)


def _no_api(response: httpx.Response) -> Failure:
    return Failure(
        f"what answers at {response.request.url} is no gateway's HTTP API"
        f" (status {response.status_code}); {CHECK_ADDRESS}",
        exit_codes.NO_CONNECTION,
    )
