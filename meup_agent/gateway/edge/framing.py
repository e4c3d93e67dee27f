"""WebSocket framing that the gateway does itself: joining fragments, and packing once for all."""

from __future__ import annotations

from typing import Final

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

PROTOCOL_ERROR: Final = 1002
TOO_BIG: Final = 1009


class BadMessage(Exception):
    """Fragments that make no message that is taken; ``code`` is the close code that says why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Assembler:
    """Joins the fragments of a connection's messages, and bounds what they come to.

    Text and binary frames are the same here: a message is checked as UTF-8 when it is decoded.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: bytearray | None = None

    def add(self, opcode: int, final: bool, data: bytes) -> bytes | None:
        """Take a data frame; the whole message if this completes one.

        Raises :exc:`BadMessage`, and keeps nothing, where the frame does not follow from those
        before it, or the message has become too large.
        """
        continues = opcode == CONTINUATION
        if continues is (self._parts is None):
            raise BadMessage(PROTOCOL_ERROR, "the fragments of a message do not follow each other")
        size = len(data) + (len(self._parts) if self._parts is not None else 0)
        if size > self._max_bytes:
            self._parts = None
            raise BadMessage(TOO_BIG, f"a message may have at most {self._max_bytes} bytes")
        if self._parts is None:
            if final:
                return data
            self._parts = bytearray(data)
            return None
        self._parts += data
        if not final:
            return None
        message, self._parts = bytes(self._parts), None
        return message


def pack_text(payload: bytes) -> bytes:
    """A whole text message as a server sends it: one frame, not masked (RFC 6455 section 5.2)."""
    size = len(payload)
    if size < 126:
        return bytes((0x80 | TEXT, size)) + payload
    if size < 1 << 16:
        return bytes((0x80 | TEXT, 126)) + size.to_bytes(2) + payload
    return bytes((0x80 | TEXT, 127)) + size.to_bytes(8) + payload
