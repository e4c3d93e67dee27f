"""The space that a connection is for, as its first request or its join frame says it.

Each is a hint for the forwarder alone: who may be in a space is decided where that is.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote

from meup_agent.gateway.auth import digest_of_token
from meup_agent.gateway.edge.handshake import MAX_JOIN_BYTES, space_of_join
from meup_agent.gateway.edge.listener import STRANGER_READ_BYTES

if TYPE_CHECKING:
    from meup_agent.gateway.runtime import GatewayRuntime

LOCAL_PATHS: Final = frozenset((b"/healthz", b"/health", b"/readyz", b"/metrics", b"/openapi.json"))
"""Paths that each gateway answers itself, about itself."""

SPACE_COOKIE: Final = "_space"
"""Ending of the name of the cookie by which the console says which space it shows."""

_AUTHORIZATION: Final = re.compile(rb"\nauthorization:[ \t]*bearer[ \t]+([^\r\n]+)", re.IGNORECASE)
_PORT: Final = re.compile(rb"\nhost:[^\r\n]*:(\d+)[ \t]*\r?\n", re.IGNORECASE)


def space_of(head: bytes, runtime: GatewayRuntime) -> str | None:
    """The space that a connection is for, as the head of its first request says it.

    ``None``: it does not say so.
    """
    _, _, rest = head.partition(b" ")
    target = rest.partition(b" ")[0]
    path, _, query = target.partition(b"?")
    spaces = runtime.config.spaces
    if path in LOCAL_PATHS:
        return None
    if len(spaces) == 1:
        return spaces[0].id
    if path.startswith(b"/spaces/"):
        return unquote(path.split(b"/")[2].decode("ascii", "replace"))
    try:
        named = parse_qs(query.decode("ascii", "replace"), max_num_fields=64).get("space")
    except ValueError:
        return None
    if named:
        return named[0]
    if token := _AUTHORIZATION.search(head):
        text = token[1].strip().decode("latin-1")
        holder = runtime.tokens.holder(digest_of_token(text))
        return None if holder is None else holder.space
    if path.startswith(b"/console"):
        return _space_of_console(head, is_secure=runtime.config.tls is not None)
    return None


def _space_of_console(head: bytes, *, is_secure: bool) -> str | None:
    """The space that a browser shows, by the cookie for the port by which it dials."""
    prefix, port = (b"__Secure-", b"443") if is_secure else (b"", b"80")
    asked = _PORT.search(head)
    name = b"%bmeup_%b_space" % (prefix, port if asked is None else asked[1])
    cookie = re.search(rb"[ ;:]%b=([^;\s]+)" % name, head)
    return None if cookie is None else unquote(cookie[1].decode("ascii", "replace"))


async def space_of_messages(
    reader: asyncio.StreamReader, runtime: GatewayRuntime
) -> tuple[bytes, str | None]:
    """Read a WebSocket connection up to its first message: what came, and the space it names.

    Whatever is no join frame, or too much for one, names none: this gateway answers it.
    """
    # Here, since few need it.
    from websockets.frames import Frame, Opcode
    from websockets.protocol import State
    from websockets.server import ServerProtocol

    of_message = Opcode.TEXT, Opcode.BINARY, Opcode.CONT
    parser = ServerProtocol(state=State.OPEN, max_size=MAX_JOIN_BYTES)
    came, message, frames = bytearray(), bytearray(), 0
    while data := await reader.read(STRANGER_READ_BYTES):
        came += data
        parser.receive_data(data)
        for event in parser.events_received():
            frames += 1
            if isinstance(event, Frame) and event.opcode in of_message:
                message += event.data
                if event.fin:
                    return bytes(came), space_of_join(bytes(message))
        is_open = parser.state is State.OPEN and parser.parser_exc is None
        if not is_open or frames > runtime.limits.join_frames or len(came) > 2 * MAX_JOIN_BYTES:
            break
    return bytes(came), None
