"""Sign-in at MCP servers that ask for one: OAuth, by the client of the official SDK.

A server that answers 401 says where its users sign in. A person opens the link that the log shows,
in a browser on this machine; the answer comes to a port of this machine. What the server gives for
it is kept in a file that only its user can read, and renewed without a person as long as the server
renews it. A client that was configured to signs in by itself, at the issuer that was named with it.
Nobody is asked for a server whose ``Authorization`` header was configured.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

import anyio
from anyio import to_thread
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)

from meup_agent.atomic_file import replace_file
from meup_agent.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anyio.abc import SocketStream
    from mcp.client.auth.oauth2 import OAuthContext

    from meup_agent.mcp.bridge.config import HttpServer

log = logging.getLogger("meup_agent.mcp")

SIGN_IN_SECONDS: Final = 300.0
"""Wait for a person who signs in; then the server is tried again later, with another link."""

MAX_ANSWER_BYTES: Final = 16_384
"""Of the request by which a browser brings the answer."""

ANSWER_SECONDS: Final = 10.0
"""For a browser, or whoever else connects to the port, to send its request."""

MAX_FILE_BYTES: Final = 262_144
"""Of a file of tokens."""

MAX_LINK_CHARS: Final = 4_096
"""Of the address of a sign-in page, which a person opens."""

CALLBACK: Final = "/callback"

_PAGE: Final = (
    "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    "Cache-Control: no-store\r\nContent-Length: {length}\r\n\r\n{text}"
)


class _TokenFile:
    """The tokens of a server in a file: the SDK's ``TokenStorage``.

    Beside them are kept the client that we are registered as, and the server's endpoints, without
    which a token could not be renewed after a restart. A client that was ``given`` belongs to the
    place at which a person signed in first: elsewhere its secret would be shown to strangers.
    """

    context: OAuthContext  # of the provider that reads it

    def __init__(self, path: Path, given: OAuthClientInformationFull | None) -> None:
        self._path = path
        self._given = given
        self._kept: dict[str, Any] = {}

    async def read(self) -> None:
        """Read the file; one that is not there, or is damaged, is an empty one."""
        with suppress(OSError, ValueError):
            text = await to_thread.run_sync(_read, self._path)
            kept = json.loads(text)
            if isinstance(kept, dict):
                self._kept = kept

    @property
    def port(self) -> int | None:
        """The port that we are registered with."""
        kept: Any = self._kept.get("port")
        return kept if isinstance(kept, int) and 0 < kept < 65536 else None

    async def get_tokens(self) -> OAuthToken | None:
        with suppress(ValueError):
            found = OAuthToken.model_validate(self._kept.get("tokens"))
            expires = self._kept.get("expires")
            if isinstance(expires, int | float):
                self.context.token_expiry_time = float(expires)
            if self._kept.get("server") is not None:
                self.context.oauth_metadata = OAuthMetadata.model_validate(self._kept["server"])
            return found
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._kept["tokens"] = _as_json(tokens)
        seconds = tokens.expires_in
        self._kept["expires"] = None if seconds is None else time.time() + seconds
        server = self.context.oauth_metadata
        self._kept["server"] = None if server is None else _as_json(server)
        if self._given is not None and server is not None:
            self._kept["issuer"] = str(server.issuer)
        await self._write()

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        if self._given is not None:
            issuer: Any = self._kept.get("issuer")
            return self._given.model_copy(update={"issuer": issuer})
        with suppress(ValueError):
            return OAuthClientInformationFull.model_validate(self._kept.get("client"))
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        if self._given is not None:
            raise OAuthFlowError(
                "it names another place to sign in than before, which may not know our client; if"
                f" it has moved, remove {self._path}"
            )
        self._kept["client"] = _as_json(client_info)
        for redirect in self.context.client_metadata.redirect_uris or ():
            self._kept["port"] = redirect.port
        await self._write()

    async def _write(self) -> None:
        text = json.dumps(self._kept)
        try:
            await to_thread.run_sync(_write, self._path, text)
        except OSError as error:
            log.warning("a sign-in is not kept, %s cannot be written: %s", self._path, error)


def _as_json(model: Any) -> Any:
    return model.model_dump(mode="json", exclude_none=True)


def _read(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(MAX_FILE_BYTES)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, text.encode())


def _show(name: str, url: str) -> None:
    log.warning("%s: asks for a sign-in; open this link on this machine: %s", name, url)


async def sign_in_at(
    name: str,
    server: HttpServer,
    folder: Path,
    open_link: Callable[[str], object] | None = None,
) -> OAuthClientProvider:
    """Signs the requests to a server, once it asks for that.

    Args:
        name: The server's name, for the log.
        server: The server.
        folder: The folder of the files of tokens.
        open_link: Shows a link to a person, in place of the log.
    """
    ours = server.oauth
    known, given = f"{server.url} {ours.client_id or ''}", None
    if ours.issuer is not None:
        known = f"{known} {ours.issuer}"
    elif ours.client_id is not None:
        given = OAuthClientInformationFull(
            client_id=ours.client_id,
            client_secret=ours.client_secret,
            token_endpoint_auth_method="client_secret_basic" if ours.client_secret else "none",
        )
    digest = hashlib.sha256(known.encode()).hexdigest()[:32]
    storage = _TokenFile(folder / f"{digest}.json", given)
    await storage.read()
    provider: OAuthClientProvider
    if ours.issuer is not None:
        assert ours.client_id is not None, "its configuration was checked"
        assert ours.client_secret is not None, "its configuration was checked"
        provider = ClientCredentialsOAuthProvider(
            server.url, storage, ours.client_id, ours.client_secret, issuer=ours.issuer
        )
    else:
        port = ours.callback_port or storage.port or _free_port()
        browser = _Browser(name, port, open_link or partial(_show, name))
        provider = OAuthClientProvider(
            server.url,
            OAuthClientMetadata.model_validate(
                {
                    "client_name": "meup",
                    "redirect_uris": [f"http://127.0.0.1:{port}{CALLBACK}"],
                    "grant_types": ["authorization_code", "refresh_token"],
                }
            ),
            storage,
            browser.note_link,
            browser.wait_for_answer,
            ours.client_metadata_url,
        )
    storage.context = provider.context
    return provider


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


class _Browser:
    """A person's browser: it is shown a link, and brings the answer to a port of this machine."""

    def __init__(self, name: str, port: int, open_link: Callable[[str], object]) -> None:
        self._name = name
        self._port = port
        self._open_link = open_link
        self._url = ""

    async def note_link(self, url: str) -> None:
        """Note the link, which is shown once its answer can be taken.

        Raises:
            OAuthFlowError: It leads to what is not a page of the web.
        """
        parts = urlsplit(url)
        is_here = parts.hostname in ("127.0.0.1", "::1", "localhost")
        if parts.scheme != "https" and not (parts.scheme == "http" and is_here):
            raise OAuthFlowError("its sign-in page has no https address")
        if parts.username is not None or len(url) > MAX_LINK_CHARS:
            raise OAuthFlowError("its sign-in page has an address that people cannot read")
        self._url = printable(url)

    async def wait_for_answer(self) -> AuthorizationCodeResult:
        """Show the link, and wait for the answer.

        Raises:
            OAuthFlowError: There is none in time, or it says no.
        """
        expected = _query_of(self._url).get("state")
        answers: list[dict[str, str]] = []
        answered = anyio.Event()

        async def handle(stream: SocketStream) -> None:
            async with stream:
                with anyio.move_on_after(ANSWER_SECONDS), suppress(anyio.BrokenResourceError):
                    query = await _read_query(stream)
                    # Whoever else connects to the port does not know the state.
                    ours = query is not None and query.get("state") == expected
                    status = "200 OK" if ours else "404 Not Found"
                    text = "You can close this page.\n" if ours else "There is nothing here.\n"
                    page = _PAGE.format(status=status, length=len(text), text=text)
                    await stream.send(page.encode())
                    if ours and query is not None and not answers:
                        answers.append(query)
                        answered.set()

        try:
            listener = await anyio.create_tcp_listener(
                local_host="127.0.0.1", local_port=self._port
            )
        except OSError:
            raise OAuthFlowError(
                f"port {self._port} of this machine, to which its sign-in page answers, is taken"
            ) from None
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, handle)
            self._open_link(self._url)
            with anyio.move_on_after(SIGN_IN_SECONDS):
                await answered.wait()
            tasks.cancel_scope.cancel()
        if not answers:
            raise OAuthFlowError(f"nobody has signed in within {SIGN_IN_SECONDS / 60:g} min")
        (query,) = answers
        if refused := query.get("error"):
            raise OAuthFlowError(f"its sign-in page answers {printable(refused[:100])!r}")
        log.info("%s: signed in", self._name)
        return AuthorizationCodeResult(
            code=query.get("code", ""), state=query.get("state"), iss=query.get("iss")
        )


async def _read_query(stream: SocketStream) -> dict[str, str] | None:
    """The query of a request for our address; ``None``: it is another one."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < MAX_ANSWER_BYTES:
        try:
            head += await stream.receive()
        except anyio.EndOfStream:
            return None
    method, _, rest = head.partition(b" ")
    target = rest.partition(b" ")[0].decode("ascii", "replace")
    if method != b"GET" or urlsplit(target).path != CALLBACK:
        return None
    return _query_of(target)


def _query_of(url: str) -> dict[str, str]:
    """The query of an address; of what stands there twice the first."""
    return dict(reversed(parse_qsl(urlsplit(url).query)))
