"""Unix sockets: their addresses, and paths that are longer than the system's calls take.

An address is ``unix:///home/ann/.local/state/meup/up/4be2f0a2391cf2ff.sock``, for WebSocket and for
HTTP alike, since a gateway serves both at one socket.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

from meup_agent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Generator

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
