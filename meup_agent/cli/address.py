"""The address of a space, the participant's token, and the gateway's HTTP API."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypedDict
from urllib.parse import urlsplit

from msgspec import structs

from meup_agent.cli import exit_codes
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.cli.options import Json, NoColour, OptionGroup, Timeout, option, seconds
from meup_agent.errors import ConfigurationError, MeupError
from meup_agent.escape import visible
from meup_agent.protocol.wire.payloads import as_object
from meup_agent.transport.connect_failure import (
    Advice,
    advice_for,
    reason_for,
    with_tls,
    without_tls,
)
from meup_agent.transport.http import ANSWER_SECONDS, check_http_url, fetch, open_client
from meup_agent.transport.urls import (
    handshake_url,
    socket_path,
)
from meup_agent.wording import shown_name

if TYPE_CHECKING:
    import httpx


# --- address ---

Space = Annotated[str | None, option("NAME", "The space; else MEUP_SPACE.")]
Token = Annotated[
    str | None,
    option(
        "TOKEN",
        "The participant's token; else MEUP_TOKEN. Others on this machine can read it in the"
        " list of processes: prefer the variable, or --token-file.",
    ),
]
TokenFile = Annotated[
    Path | None,
    option(
        "PATH", "A file that holds the token; it is read anew for each connection, a pipe once."
    ),
]


class SpaceIdentity(TypedDict):
    """The space to join, and the participant to join it as."""

    space: str
    token: str | Callable[[], str]
    participant: str | None


class Address(NamedTuple):
    """The address of a space, and the identity to join it with; the token, or what reads it."""

    url: str
    space: str
    token: str | Callable[[], str]
    participant: str | None = None  # for a gateway that does not know it by the token
    only_beside: bool = False  # no agent of the participant may lose its connection

    @property
    def identity(self) -> SpaceIdentity:
        """All but the gateway, as an agent takes it to join."""
        return {"space": self.space, "token": self.token, "participant": self.participant}


class HttpAddress(NamedTuple):
    """Address of the HTTP API, and the caller's identity."""

    url: str  # without a slash at its end
    token: str | Callable[[], str]
    space: str | None = None  # the token must be for it; None: any


class SpaceOptions(OptionGroup, frozen=True):
    """The options that name a space and a participant."""

    url: Annotated[
        str | None,
        option(
            "URL",
            "The gateway, for example ws://localhost:8420, or unix:///run/meup.sock; else"
            " MEUP_URL.",
        ),
    ] = None
    space: Space = None
    token: Token = None
    token_file: TokenFile = None
    participant: Annotated[
        str | None,
        option(
            "NAME",
            "Your name, for a gateway that does not know it by the token; else MEUP_PARTICIPANT.",
        ),
    ] = None

    def address(self) -> Address:
        """The address from options and environment."""
        url, space = _given(self.url, "MEUP_URL"), _given(self.space, "MEUP_SPACE")
        token = token_from(self.token, self.token_file)
        if not (url and space and token):
            raise _missing_settings(url=url, space=space, token=token)
        handshake_url(url, space)  # a wrong address is better known before anything begins
        return Address(url, space, token, _given(self.participant, "MEUP_PARTICIPANT"))


class HttpOptions(OptionGroup, frozen=True):
    """The options of a command that asks the gateway's HTTP API."""

    http: Annotated[
        str | None,
        option(
            "URL",
            "The gateway's HTTP address, for example http://localhost:8420; else MEUP_HTTP, or"
            " where MEUP_URL leads to.",
        ),
    ] = None
    space: Space = None
    token: Token = None
    token_file: TokenFile = None

    def address(self) -> HttpAddress:
        """The address from options and environment."""
        found = find_http_url(self.http)
        if found is None:
            raise ConfigurationError(
                "the gateway's HTTP address is missing; give --http, or set MEUP_HTTP or MEUP_URL"
                + running_here()
            )
        token = token_from(self.token, self.token_file)
        if token is None:
            raise _missing_settings(token=token)
        return HttpAddress(found, token, _given(self.space, "MEUP_SPACE"))


class JoinOptions(SpaceOptions, frozen=True):
    """The options of a command that joins a space, does one thing, and leaves."""

    as_json: Json = False
    no_colour: NoColour = False


class TimedOptions(JoinOptions, frozen=True):
    """Options of a command that joins, and waits for the gateway alone."""

    timeout: Timeout = 10.0

    @property
    def seconds(self) -> float | None:
        """The wait for the gateway; ``None``: as long as it takes."""
        return seconds(self.timeout, "--timeout")


class ActingOptions(JoinOptions, frozen=True):
    """Options of a command that joins, and can insist on acting beside the participant's agent."""

    act_as: Annotated[
        str | None,
        option(
            "NAME",
            "Act as NAME, whose token you have, beside the agent that runs under this name, or"
            " not at all: where the gateway knows no connection beside, nothing is said.",
            "--as",
        ),
    ] = None

    def address(self) -> Address:
        """The address; with ``--as`` it is joined beside, or not at all."""
        return SpaceOptions.address(self) if self.act_as is None else self.beside()

    def beside(self) -> Address:
        where = SpaceOptions.address(self)
        return where._replace(participant=self.act_as or where.participant, only_beside=True)

    def beneath(self, outer: ActingOptions) -> ActingOptions:
        """These options, and those of the group of commands that are not among them."""
        given = structs.asdict(self)
        # One of two ways to say the same takes the place of both.
        for group in (("token", "token_file"), ("url",), ("space",), ("act_as", "participant")):
            if all(given[name] is None for name in group):
                given |= {name: getattr(outer, name) for name in group}
        flags = {name: given[name] or getattr(outer, name) for name in ("as_json", "no_colour")}
        return structs.replace(self, **given | flags)


def find_http_url(given: str | None, *, at: str | None = None) -> str | None:
    """The HTTP address that is given, else the one of the gateway at an address, else MEUP_HTTP's.

    Without these, the one of the gateway that MEUP_URL leads to.

    In the environment a Unix socket comes first, at which no other user can listen.
    """
    known = at or os.environ.get("MEUP_URL") or None
    is_socket = known is not None and socket_path(known) is not None
    if given is None and is_socket:
        return known
    url = _given(given, "MEUP_HTTP") if at is None else given
    if url is not None:
        check_http_url(url)
        return url.rstrip("/")
    if known is None or is_socket:
        return known
    # It serves both at one port.
    parts = urlsplit(handshake_url(known, None))
    path = parts.path.removesuffix("/ws").rstrip("/")
    return f"http{parts.scheme.removeprefix('ws')}://{parts.netloc}{path}"


def _given(option: str | None, variable: str) -> str | None:
    """An option, or else a variable; what is given counts, also an empty text."""
    return (os.environ.get(variable) if option is None else option) or None


def token_from(token: str | None, token_file: Path | None) -> str | Callable[[], str] | None:
    """The token from options and environment, or what reads it; ``None`` if there is none."""
    if token is not None and token_file is not None:
        raise ConfigurationError("the token is given twice; give --token or --token-file, not both")
    if token_file is not None:
        found = _read_token(token_file)  # a wrong path is better known now than when it is needed
        # What comes out of a pipe, as of a shell's <(…), comes only once.
        return (lambda: _read_token(token_file)) if token_file.is_file() else found
    found = os.environ.get("MEUP_TOKEN", "") if token is None else token
    return found if found.strip() else None


def _read_token(path: Path) -> str:
    token = read_text(path, "the token file").strip()
    if not token or not token.isprintable():
        raise ConfigurationError(f"the token file {path} must hold one token, and nothing else")
    return token


def read_text(path: Path, what: str) -> str:
    """The text in a file that the command line names."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "no text"
        raise ConfigurationError(f"{what} {path} cannot be read: {why}") from None


def _missing_settings(**values: object) -> ConfigurationError:
    """The error for missing settings, all in one sentence."""
    names = [name for name, value in values.items() if not value]
    if len(names) == 1 and names != ["token"]:
        name = names[0]
        said = f"the {name} is missing; give --{name} or set MEUP_{name.upper()}"
    else:
        options = ["--token-file" if name == "token" else f"--{name}" for name in names]
        said = (
            f"{_and(f'the {name}' for name in names)} {'are' if names[1:] else 'is'} missing; set"
            f" {_and(f'MEUP_{name.upper()}' for name in names)}, or give {_and(options)}"
            f"{'' if names[1:] else ' or --token'}"
        )
    return ConfigurationError(said + running_here())


def running_here() -> str:
    """Advice for a terminal that was made no participant of a gateway that this user runs."""
    try:
        from meup_agent.cli.up.state import running_gateways

        found = running_gateways()
    except (ImportError, MeupError, OSError):
        return ""  # without the extra, or with a folder that `meup env` complains about
    if not found:
        return ""
    names = list(found[0].token_files)
    name = "you" if "you" in names else "NAME"
    port = f" --port {found[0].port}" if len(found) > 1 else ""
    which = "" if name in names else f"; NAME is one of {', '.join(names)}"
    return (
        f'. A gateway of yours runs here: eval "$(meup env {name}{port})" sets all of them{which}'
    )


def _and(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


# --- a gateway's HTTP API ---
# The token's participant, and pages of what was said.

CHECK_ADDRESS: Final = "check --http, MEUP_HTTP or MEUP_URL"
"""Advice where no gateway answers: without an address of its own, HTTP is asked at the other's."""

MAX_PAGE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of an answer; a page of messages has about 4 MiB, or a single larger one."""


AskHttp = Callable[..., Awaitable[dict[str, Any]]]
"""Asks the HTTP API for the JSON at a path, by ``method`` and a query; raises :exc:`Failure`."""


@asynccontextmanager
async def open_http(where: HttpAddress) -> AsyncGenerator[tuple[dict[str, Any], AskHttp]]:
    """The participant of a token (``id``, ``space``), and what asks, for the length of a block."""
    token = where.token if isinstance(where.token, str) else where.token()
    async with open_client(where.url, f"Bearer {token.strip()}") as client:
        ask = partial(_ask, client, where.url)
        me = await ask("/me")
        space = str(me.get("space", ""))
        if where.space not in (None, space):
            raise Misuse(
                f"the token is for the space {shown_name(space)}, not {where.space!r};"
                " check --space or MEUP_SPACE"
            )
        yield me, ask


async def _ask(
    client: httpx.AsyncClient,
    url: str,
    path: str,
    /,
    *,
    method: str = "GET",
    **query: str | Sequence[str],
) -> dict[str, Any]:
    import httpx

    try:
        response = await fetch(client, path, method=method, params=query, max_bytes=MAX_PAGE_BYTES)
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
        body = {}
    if response.status_code == 200 and body:
        return body
    code, message = body.get("error"), body.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        raise Failure(
            f"what answers at {response.request.url} is not a gateway's HTTP API"
            f" (status {response.status_code}); {CHECK_ADDRESS}",
            exit_codes.NO_CONNECTION,
        )
    said = visible(message, 300)
    if response.status_code == 401:
        advice = "check MEUP_TOKEN, --token-file or --token"
        raise Failure(f"the gateway refuses the token: {said}; {advice}", exit_codes.NO_CONNECTION)
    raise Failure(f"the gateway refused the request: {code} ({said})", exit_codes.NO_CONNECTION)
