"""A space over HTTP: says envelopes as a participant, and hears what is said."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn
from urllib.parse import quote

import anyio
import msgspec

from meup_agent.cli import exit_codes
from meup_agent.cli.beside.address import HttpAddress
from meup_agent.cli.failures import Failure
from meup_agent.cli.render.escape import visible
from meup_agent.errors import InvalidEnvelope, Refused
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.capability import Capabilities, compile_announced
from meup_agent.protocol.dialects import decode, encode
from meup_agent.protocol.envelope import Envelope, draft
from meup_agent.protocol.payloads import as_object, objects_in
from meup_agent.transport.advice import Advice, advice_for, with_tls, without_tls
from meup_agent.transport.base import LAST_SEEN_HEADER

if TYPE_CHECKING:
    import httpx

TOO_MANY: Final = 429

ANSWER_SECONDS: Final = 30.0
"""How long the gateway may take for an answer, and be silent while it streams: it sends a sign of
life every 15 s."""

ENDS: Final = frozenset({kinds.MCP_WITHDRAW, kinds.MCP_REJECT})
"""Kinds that are sent again until the gateway takes them, as a cancel is (PROTOCOL 3)."""

SAY_AGAIN_SECONDS: Final = 60.0
"""For how long that is said again to a gateway that says to come later."""

LONGEST_PAUSE: Final = 10.0
"""Seconds between two attempts at most, whatever the gateway asks for."""

AGAIN_SECONDS: Final = 1.0
"""After which a stream that has ended is asked for again."""


class Said(NamedTuple):
    """An envelope of ours that was kept.

    Attributes:
        id: Its id.
        seq: Its number in the space's order.
    """

    id: str
    seq: int


class Heard(NamedTuple):
    """An envelope of the space, and its number."""

    seq: int
    envelope: Envelope


class HttpSpace:
    """A space, as one participant; made by :func:`open_http`.

    Attributes:
        me: Who we are.
        name: The space's name.
        capabilities: What we may send.
    """

    def __init__(self, client: httpx.AsyncClient, me: dict[str, Any]) -> None:
        self._client = client
        self.me = str(me.get("id", ""))
        self.name = str(me.get("space", ""))
        self._dialect = str(me.get("dialect", ""))
        self.capabilities: Capabilities = compile_announced(objects_in(me.get("capabilities")))

    async def say(
        self,
        kind: str,
        payload: dict[str, Any],
        *,
        id: str,
        to: tuple[str, ...] = (),
        correlation: tuple[str, ...] = (),
    ) -> Said:
        """Say something; returns when it is kept.

        A withdraw, reject or cancel is said again to a gateway that takes it later, for
        :data:`SAY_AGAIN_SECONDS` at most; it is taken once, since its id stays.

        Raises:
            Refused: The gateway does not let it through.
            Failure: There is no answer, so it may have been said.
        """
        envelope = draft(kind, payload, id=id, sender=self.me, to=to, correlation=correlation)
        fields = msgspec.json.decode(encode(envelope, self._dialect), type=dict[str, msgspec.Raw])
        answer = await self._ask(
            "POST",
            f"/participants/{quote(self.me, safe='')}/messages",
            patience=SAY_AGAIN_SECONDS if _ends(envelope) else 0.0,
            content=msgspec.json.encode(fields),
            headers={"Content-Type": "application/json"},
        )
        return Said(id, int(answer.get("seq") or 0))

    async def participants(self) -> list[dict[str, Any]]:
        """Who is in the space, and what they may send."""
        answer = await self._ask("GET", f"{self._path}/participants")
        return objects_in(answer.get("participants"))

    async def proposals(self, proposal: str) -> list[dict[str, Any]]:
        """The proposals with an id, or the beginning of it, and what became of them."""
        answer = await self._ask("GET", f"{self._path}/proposals", params={"id": proposal})
        return objects_in(answer.get("proposals"))

    async def envelope(self, seq: int) -> Envelope:
        """The envelope with a number.

        Raises:
            Failure: The gateway does not know it any more.
        """
        path = f"/participants/{quote(self.me, safe='')}/messages"
        answer = await self._ask("GET", path, params={"since": str(seq - 1), "limit": "1"})
        for message in objects_in(answer.get("messages")):
            if message.get("seq") == seq:
                return decode(json.dumps(message))
        raise Failure(f"the gateway does not know the envelope {seq} any more")

    async def page(self, since: str | None, *, limit: int, dialect: str) -> dict[str, Any]:
        """A page of what was said: ``messages``, ``times``, and ``next``.

        Args:
            since: The number of the last one that is known, or a time; ``None``: from the first.
            limit: How many at most.
            dialect: The dialect in which they are said.
        """
        path = f"/participants/{quote(self.me, safe='')}/messages"
        asked = {"limit": str(limit), "dialect": dialect}
        if since is not None:
            asked["since"] = since
        return await self._ask("GET", path, params=asked)

    async def events(self, after: int) -> AsyncGenerator[Heard]:
        """What is said after a number, without an end; goes on where a stream has ended.

        Raises:
            Failure: The gateway refuses us, or some of it is not known any more.
        """
        import httpx

        seen = after
        while True:
            try:
                headers = {LAST_SEEN_HEADER: str(seen), "Accept": "text/event-stream"}
                path = f"{self._path}/events"
                async with self._client.stream("GET", path, headers=headers) as response:
                    if response.status_code != 200:
                        await response.aread()
                        if response.status_code < 500:
                            _refuse(response)
                    else:
                        async for seq, data in _read(response.aiter_lines()):
                            seen = seq
                            envelope = _decoded(data)
                            if envelope is not None:
                                yield Heard(seq, envelope)
            except httpx.TransportError:
                pass  # the gateway restarts, or the network fails; what is missed is read later
            await anyio.sleep(AGAIN_SECONDS)

    @property
    def _path(self) -> str:
        return f"/spaces/{quote(self.name, safe='')}"

    async def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        return await _ask(self._client, method, path, **more)


@asynccontextmanager
async def open_http(where: HttpAddress) -> AsyncGenerator[HttpSpace]:
    """A space over HTTP, for the length of a block.

    Raises:
        Failure: No gateway answers, or the token is refused, or is for somebody or somewhere else.
    """
    # Loaded by those commands alone that use it.
    import httpx

    token = where.token if isinstance(where.token, str) else where.token()
    async with httpx.AsyncClient(
        base_url=where.url,
        headers={"Authorization": f"Bearer {token.strip()}"},
        timeout=ANSWER_SECONDS,
        # The environment's proxies would read the token.
        trust_env=False,
        # What this machine trusts, as for WebSocket; SSL_CERT_FILE counts.
        verify=ssl.create_default_context() if where.url.startswith("https:") else True,
    ) as client:
        me = await _ask(client, "GET", "/me")
        space = HttpSpace(client, me)
        if where.participant not in (None, space.me):
            raise Failure(
                f"the token is {visible(space.me, 64)}'s, not {where.participant!r}'s;"
                " set MEUP_TOKEN to theirs",
                exit_codes.USAGE,
            )
        if where.space not in (None, space.name):
            raise Failure(
                f"the token is for the space {visible(space.name, 64)}, not {where.space!r};"
                " check --space or MEUP_SPACE",
                exit_codes.USAGE,
            )
        yield space


async def _ask(
    client: httpx.AsyncClient, method: str, path: str, *, patience: float = 0.0, **more: Any
) -> dict[str, Any]:
    import httpx

    until = anyio.current_time() + patience
    try:
        response = await client.request(method, path, **more)
        while response.status_code == TOO_MANY and anyio.current_time() < until:
            left = until - anyio.current_time()
            await anyio.sleep(min(left, _retry_after(response)))
            response = await client.request(method, path, **more)
    except httpx.ConnectError as error:
        found = advice_for(error, client.base_url.scheme)
        found = found or Advice(str(error), "check --http or MEUP_HTTP")
        raise Failure(
            f"no gateway answers at {client.base_url}: {found}", exit_codes.NO_CONNECTION
        ) from error
    except httpx.TransportError as error:
        why = str(error) or type(error).__name__
        code = exit_codes.UNKNOWN if method == "POST" else exit_codes.NO_CONNECTION
        also = ", so it may have been said" if method == "POST" else ""
        # Later on, the address has shown that it is right.
        scheme = client.base_url.scheme
        todo = with_tls(scheme) if scheme == "http" else without_tls(scheme)
        advice = f"; check --http or MEUP_HTTP: {todo}" if path == "/me" else ""
        raise Failure(f"the gateway did not answer ({why}){also}{advice}", code) from error
    if response.status_code != 200:
        _refuse(response)
    try:
        return as_object(response.json())
    except ValueError:
        raise _no_api(response) from None


def _ends(envelope: Envelope) -> bool:
    """Tell whether an envelope is a withdraw, a reject or a cancel."""
    if envelope.kind == kinds.MCP_REQUEST:
        return payloads.read_call(envelope.payload).method == kinds.CANCELLED
    return envelope.kind in ENDS


def _retry_after(response: httpx.Response) -> float:
    """Seconds after which to say the same again; a second if the gateway does not tell."""
    said = response.headers.get("Retry-After", "")
    return min(float(said), LONGEST_PAUSE) if said.isascii() and said.isdigit() else AGAIN_SECONDS


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
    if response.request.method == "POST" and response.status_code < 500:
        raise Refused(code, f"the gateway refused it: {code} ({message})", body)
    raise Failure(f"the gateway refused the request: {code} ({said})", exit_codes.NO_CONNECTION)


def _no_api(response: httpx.Response) -> Failure:
    return Failure(
        f"what answers at {response.request.url} is no gateway's HTTP API"
        f" (status {response.status_code}); check --http or MEUP_HTTP",
        exit_codes.NO_CONNECTION,
    )


async def _read(lines: AsyncIterator[str]) -> AsyncGenerator[tuple[int, str]]:
    """The events of a stream, each with its number.

    Raises:
        Failure: Some of what was asked for is not known any more.
    """
    kind, seq, data = "", 0, list[str]()
    async for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "" if line:
                pass  # a comment: a sign of life
            case "":
                if kind == "gap":
                    raise Failure(
                        "the gateway does not know any more what was said meanwhile, so what"
                        " became of it is not known; meup audit may tell",
                        exit_codes.UNKNOWN,
                    )
                if data and seq:
                    yield seq, "\n".join(data)
                kind, data = "", []
            case "event":
                kind = value
            case "id" if value.isdigit():
                seq = int(value)
            case "data":
                data.append(value)
            case _:
                pass


def _decoded(data: str) -> Envelope | None:
    try:
        return decode(data)
    except InvalidEnvelope:
        return None
