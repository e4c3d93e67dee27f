"""Addresses of gateways: of a WebSocket, and of a Unix socket whose path may be long.

A Unix socket's is `unix:///home/ann/.local/state/meup/up/4be2f0a2391cf2ff.sock`, for WebSocket and
for HTTP alike, since a gateway serves both at one socket.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qs, quote, unquote_to_bytes, urlsplit, urlunsplit

from meup_agent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


# --- unix sockets ---

SCHEME: Final = "unix"

MAX_PATH_BYTES: Final = 107 if sys.platform == "linux" else 103
"""Bytes of a path that ``connect`` and ``bind`` take: ``sockaddr_un`` has 108 of them on Linux, 104
on macOS and the BSDs, and one ends it."""


def socket_url(path: str) -> str:
    """The address of a Unix socket."""
    return f"{SCHEME}://{quote(os.fsencode(path))}"


def socket_path(url: str) -> str | None:
    """The path in the address of a Unix socket; ``None``: it is another address.

    Raises:
        ConfigurationError: The address cannot be one, or this system has no Unix sockets.
    """
    if not url.startswith(f"{SCHEME}:"):
        return None
    try:
        parts = urlsplit(url)
        path = unquote_to_bytes(parts.path)
        usable = (
            url.startswith(f"{SCHEME}:///")
            and not (parts.query or parts.fragment)
            and not path.endswith(b"/")
            and b"\0" not in path
        )
    except ValueError:
        usable, path = False, b""
    if not usable:
        raise ConfigurationError(
            f"the address {url!r} cannot be used: it holds no path and nothing else; write it like"
            " unix:///run/meup.sock"
        )
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigurationError(
            f"the address {url!r} cannot be used: Python has no Unix sockets on this system; dial"
            " the gateway's port, like ws://localhost:8420"
        )
    return os.fsdecode(path)


@contextmanager
def short_path(path: str) -> Generator[str]:
    """A path by which a socket can be bound and dialled for the length of a block.

    On Linux one that is too long leads through a descriptor of its folder.

    Raises:
        OSError: There is no such folder.
        ConfigurationError: The path is too long for this system.
    """
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield path
        return
    if sys.platform != "linux":
        raise ConfigurationError(
            f"the socket {path} cannot be used: this system takes {MAX_PATH_BYTES} bytes of a path;"
            " choose a shorter one, of our gateways by MEUP_STATE_DIR"
        )
    folder, name = os.path.split(path)
    held = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{held}/{name}"
    finally:
        os.close(held)


# --- websockets ---

_FORBIDDEN_IN_HEADER = re.compile(r"[\x00-\x1f\x7f]|[^\x00-\x7f]")


def handshake_url(url: str, space: str | None) -> str:
    """The address of a handshake, with the space in its query (PROTOCOL 3)."""
    if socket_path(url) is not None:
        url = "ws://localhost"  # the name of every gateway at a Unix socket
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it is what checks it
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise _unusable(url, str(error)) from None
    if parts.scheme not in ("ws", "wss"):
        raise _unusable(url, "it does not begin with ws:// or wss://", _as_websocket(url, parts))
    if not parts.hostname:
        raise _unusable(url, "it names no host")
    if parts.fragment:
        raise _unusable(url, "a fragment (#) has no meaning there")
    if parts.username is not None:
        raise _unusable(_without_user(parts), "it holds a user; identity is the token's")
    path = parts.path if parts.path not in ("", "/") else "/ws"
    return urlunsplit((parts.scheme, parts.netloc, path, _query(url, parts, space), ""))


def _query(url: str, parts: SplitResult, space: str | None) -> str:
    named = parse_qs(parts.query, keep_blank_values=True).get("space", [])
    if space is None or named == [space]:
        return parts.query
    if named:
        raise _unusable(url, f"it names the space {named[0]!r}, and {space!r} was asked for")
    return "&".join(filter(None, (parts.query, f"space={quote(space, safe='')}")))


def _without_user(parts: SplitResult) -> str:
    """The address as it may be shown: a password must not end up in a log."""
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _as_websocket(url: str, parts: SplitResult) -> str:
    """The address that was probably meant by one of a browser, or by a host and a port alone."""
    if parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc:
        return f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}"
    return f"ws://{url}" if re.fullmatch(r"[\w.-]+:\d{1,5}", url) else ""


def _unusable(url: str, why: str, meant: str = "") -> ConfigurationError:
    how = f"write {meant}" if meant else "write it like ws://localhost:8420"
    return ConfigurationError(f"the address {url!r} cannot be used: {why}; {how}")


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse a header that would break the handshake, such as a token with its line break.

    Its value is not in the error's message, since it may be a secret.
    """
    for name, value in headers.items():
        if _FORBIDDEN_IN_HEADER.search(name) or _FORBIDDEN_IN_HEADER.search(value):
            raise ConfigurationError(
                f"the header {name!r} cannot be sent: it holds a line break or another character"
                " outside printable ASCII; strip it"
            )
