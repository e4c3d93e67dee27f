"""HTTP: a client of a gateway's API, and where a request says that it comes from."""

from __future__ import annotations

import re
import ssl
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from meup_agent.errors import ConfigurationError
from meup_agent.transport.connect_failure import explained
from meup_agent.transport.listener_owner import check_listener
from meup_agent.transport.urls import (
    check_headers,
    short_path,
    socket_path,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence

    import httpx

ANSWER_SECONDS: Final = 30.0
"""Seconds of silence after which no answer is waited for."""

_CONNECTED: Final = frozenset(
    f"connection.{way}.complete" for way in ("connect_tcp", "connect_unix_socket")
)
"""Events of httpcore that a connection was made, and nothing sent."""


@asynccontextmanager
async def open_client(url: str, authorization: str | None) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the HTTP API at an address, for one token, for the length of a block.

    Raises:
        CannotConnect: The address is a Unix socket in a folder that is not there.
    """
    # Loaded by those programs alone that use it.
    import httpx

    check_http_url(url)
    path = socket_path(url)
    headers = {"Accept-Encoding": "identity"}
    if authorization is not None:
        headers["Authorization"] = authorization
    check_headers(headers)
    with ExitStack() as held:
        if url.startswith("https:"):
            # What this machine trusts, as for WebSocket; SSL_CERT_FILE counts.
            context = ssl.create_default_context()
        else:
            # One that trusts nothing: httpx would read all certificates, 0.1 s of CPU for each.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        short = None
        if path is not None:
            with explained(url, ANSWER_SECONDS):
                short = held.enter_context(short_path(path))
        async with httpx.AsyncClient(
            # The name of every gateway at a Unix socket.
            base_url="http://localhost" if path else url.rstrip("/"),
            headers=headers,
            timeout=ANSWER_SECONDS,
            # The environment's proxies would read the token.
            trust_env=False,
            transport=httpx.AsyncHTTPTransport(verify=context, trust_env=False, uds=short),
            # With TLS the certificate shows who answers.
            event_hooks={} if url.startswith("https:") else {"request": [_check_connections]},
        ) as client:
            yield client


async def _check_connections(request: httpx.Request) -> None:
    """Have the connection that is made for a request checked before anything is sent."""
    request.extensions["trace"] = _on_event


async def _on_event(name: str, info: Mapping[str, Any]) -> None:
    import httpx

    if name in _CONNECTED:
        stream = info["return_value"]
        try:
            check_listener(stream.get_extra_info("socket"))
        except BaseException as error:
            await stream.aclose()
            if isinstance(error, OSError):
                raise httpx.ConnectError(str(error)) from error
            raise


async def fetch(
    client: httpx.AsyncClient,
    path: str,
    *,
    params: Mapping[str, str | Sequence[str]],
    max_bytes: int,
    method: str = "GET",
) -> httpx.Response:
    """Ask, and read the answer as far as it may go."""
    import httpx

    body = bytearray()
    response = await client.send(client.build_request(method, path, params=params), stream=True)
    try:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > max_bytes:
                # The next read ends the loop: trio complains of a stream that is left before.
                await response.aclose()
    finally:
        await response.aclose()
        if len(body) > max_bytes:
            raise httpx.ReadError(f"the answer has more than {max_bytes} bytes")
    # Not decompressed: it was not asked for, and has no bound.
    headers = [pair for pair in response.headers.multi_items() if pair[0] != "content-encoding"]
    return httpx.Response(
        response.status_code, headers=headers, content=bytes(body), request=response.request
    )


def check_http_url(url: str) -> None:
    """Raise :exc:`ConfigurationError` if an address is none of an HTTP API."""
    if socket_path(url) is not None:
        return
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it is what checks it
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"the HTTP address {url!r} is none; give one such as http://localhost:8420"
        )


# --- request headers ---
# Headers by which an HTTP server tells where a request comes from.
#
# What a stranger's proxy adds is taken in its widest sense; what names this machine, in its
# narrowest.

_FORWARDING: Final = (
    *("forwarded", "via", "x-forwarded", "x-real-", "x-original-", "x-client-", "client-ip"),
    *("x-cluster-client-", "true-client-ip", "proxy-", "x-proxy", "x-envoy-", "x-remote-"),
    *("cf-", "cdn-", "fastly-", "fly-", "x-amz", "x-appengine-", "x-azure-", "x-vercel-"),
)
"""Beginnings of the headers that proxies, tunnels and clouds add."""

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[0-9a-z_.-]+)(?::([0-9]{1,5}))?", re.ASCII)


def is_forwarded(names: Iterable[str]) -> bool:
    """True if a request came through a proxy, by the names of its headers, in lower case.

    Some proxies write ``_`` for ``-``.
    """
    return any(name.replace("_", "-").startswith(_FORWARDING) for name in names)


def host_name(host: str) -> str:
    """The name in a ``Host``, in lower case and without its port; empty: it has another form."""
    found = _HOST.fullmatch(host.strip().lower())
    return "" if found is None else found[1].removeprefix("[").removesuffix("]")


def is_served(host: str, served: Collection[str]) -> bool:
    """True if a ``Host`` is one of these; one that ends with ``:*`` stands for any port.

    The port has to be a number: ``localhost:1.example.com`` is not a port of ``localhost``.
    """
    said = host.strip().lower()
    found = _HOST.fullmatch(said)
    if found is None:
        return False
    return said in served or (found[2] is not None and f"{found[1]}:*" in served)
