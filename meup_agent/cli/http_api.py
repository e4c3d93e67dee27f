"""Questions to a gateway's HTTP API: the token's participant, proposals, and what was said."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from meup_agent.cli import exit_codes
from meup_agent.cli.address import HttpAddress
from meup_agent.cli.failures import Failure
from meup_agent.cli.render.escape import visible
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.payloads import as_object, objects_in
from meup_agent.transport.advice import Advice, advice_for, with_tls, without_tls
from meup_agent.transport.http import open_client

if TYPE_CHECKING:
    import httpx

    from meup_agent.protocol.envelope import Envelope


class HttpApi:
    """The HTTP API for one token; made by :func:`open_http_api`.

    Attributes:
        me: The token's participant.
        space: The name of its space.
    """

    def __init__(self, client: httpx.AsyncClient, me: dict[str, Any]) -> None:
        self._client = client
        self.me = str(me.get("id", ""))
        self.space = str(me.get("space", ""))

    async def proposals(self, proposal: str) -> list[dict[str, Any]]:
        """The proposals with an id, or the beginning of it, and what became of them."""
        path = f"/spaces/{quote(self.space, safe='')}/proposals"
        answer = await _ask(self._client, path, id=proposal)
        return objects_in(answer.get("proposals"))

    async def envelope(self, seq: int) -> Envelope:
        """The envelope with a number.

        Raises:
            Failure: The gateway does not know it any more.
        """
        answer = await _ask(self._client, self._messages, since=str(seq - 1), limit="1")
        for message in objects_in(answer.get("messages")):
            if message.get("seq") == seq:
                return decode(json.dumps(message))
        raise Failure(f"the gateway does not know the envelope {seq} any more")

    async def page(self, since: str | None, *, limit: int, dialect: str) -> dict[str, Any]:
        """A page of what was said: ``messages``, ``times``, and ``next``.

        Args:
            since: The number of the last one that is known, or a time; ``None``: from the first.
            limit: The most of them.
            dialect: The dialect in which they are said.
        """
        begin = {} if since is None else {"since": since}
        return await _ask(self._client, self._messages, limit=str(limit), dialect=dialect, **begin)

    @property
    def _messages(self) -> str:
        return f"/participants/{quote(self.me, safe='')}/messages"


@asynccontextmanager
async def open_http_api(where: HttpAddress) -> AsyncGenerator[HttpApi]:
    """The HTTP API, for the length of a block.

    Raises:
        Failure: No gateway answers, or the token is refused, or is for another participant or
            space than ``where`` says.
    """
    token = where.token if isinstance(where.token, str) else where.token()
    async with open_client(where.url, f"Bearer {token.strip()}") as client:
        api = HttpApi(client, await _ask(client, "/me"))
        if where.participant not in (None, api.me):
            raise Failure(
                f"the token is {visible(api.me, 64)}'s, not {where.participant!r}'s;"
                " set MEUP_TOKEN to theirs",
                exit_codes.USAGE,
            )
        if where.space not in (None, api.space):
            raise Failure(
                f"the token is for the space {visible(api.space, 64)}, not {where.space!r};"
                " check --space or MEUP_SPACE",
                exit_codes.USAGE,
            )
        yield api


async def _ask(client: httpx.AsyncClient, path: str, **query: str) -> dict[str, Any]:
    import httpx

    try:
        response = await client.get(path, params=query)
    except httpx.ConnectError as error:
        found = advice_for(error, client.base_url.scheme)
        found = found or Advice(str(error), "check --http or MEUP_HTTP")
        raise Failure(
            f"no gateway answers at {client.base_url}: {found}", exit_codes.NO_CONNECTION
        ) from error
    except httpx.TransportError as error:
        why = str(error) or type(error).__name__
        # Later on, the address has shown that it is right.
        scheme = client.base_url.scheme
        todo = with_tls(scheme) if scheme == "http" else without_tls(scheme)
        advice = f"; check --http or MEUP_HTTP: {todo}" if path == "/me" else ""
        said = f"the gateway did not answer ({why}){advice}"
        raise Failure(said, exit_codes.NO_CONNECTION) from error
    if response.status_code != 200:
        _refuse(response)
    try:
        return as_object(response.json())
    except ValueError:
        raise _no_api(response) from None


def _refuse(response: httpx.Response) -> NoReturn:
    """Raise what an answer that is no success means."""
    try:
        body = as_object(response.json())
    except ValueError:
        raise _no_api(response) from None
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
        f" (status {response.status_code}); check --http or MEUP_HTTP",
        exit_codes.NO_CONNECTION,
    )
