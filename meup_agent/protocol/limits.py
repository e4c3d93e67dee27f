"""Limits of a frame from the network, checked before it is decoded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.regex import compile_bytes

MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one message: room for a file in a tool's result, small enough to hold many of."""

MAX_DEPTH: Final = 100
"""Levels of arrays and objects in one frame: decoders recurse, and a stack is finite."""

_ENOUGH: Final = MAX_DEPTH + 1


def _nesting_pattern(depth: int) -> str:
    """A regular expression for JSON nested at most so deep: RE2 takes linear time for any frame."""
    plain = r'[^\[\]{}"]|"(?:[^"\\]|\\.)*"'
    pattern = f"(?:{plain})*"
    for _ in range(depth):
        pattern = rf"(?:{plain}|[\[{{]{pattern}[\]}}])*"
    return pattern


@functools.cache
def _shallow_enough(max_depth: int = MAX_DEPTH) -> Callable[[bytes], bool]:
    return compile_bytes(_nesting_pattern(max_depth), max_bytes=64 << 20)


def check_frame(frame: bytes, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
    """Raise InvalidEnvelope for a frame that is too large, not UTF-8, or nested too deep."""
    size = len(frame)
    if size > max_bytes:
        raise InvalidEnvelope(
            "too_large", f"the frame has {size} bytes; at most {max_bytes} are taken"
        )
    try:
        if not frame.isascii():
            frame.decode()
    except UnicodeDecodeError as error:
        raise InvalidEnvelope(
            "invalid_utf8", f"the frame is not valid UTF-8 at byte {error.start}"
        ) from None
    # Opening brackets bound the depth, so a frame with few of them needs no closer look.
    # Taking them out counts them, up to the limit, in half the time of `count`.
    left = len(frame.replace(b"{", b"", _ENOUGH)) + len(frame.replace(b"[", b"", _ENOUGH))
    if 2 * size - left > MAX_DEPTH and not _shallow_enough()(frame):
        raise InvalidEnvelope(
            "too_deep", f"the frame nests deeper than {MAX_DEPTH} levels, or is not balanced"
        )


def check_depth(frame: bytes, max_depth: int, *, envelope_id: str | None = None) -> None:
    """Raise InvalidEnvelope for a frame of JSON that nests deeper than this."""
    if not _shallow_enough(max_depth)(frame):
        raise InvalidEnvelope(
            "too_deep", f"the frame nests deeper than {max_depth} levels", envelope_id=envelope_id
        )
