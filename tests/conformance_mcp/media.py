"""A picture and a sound, as small as they can be."""

import io
import struct
import wave
import zlib
from base64 import b64encode

from tests.conformance_mcp.raw_tools import JsonObject


def red_pixel() -> str:
    """A picture of one pixel, as PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\0\0")
    signature = b"\x89PNG\r\n\x1a\n"
    whole = signature + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b64encode(whole).decode()


def silence() -> str:
    """A sound of ten samples, as WAV."""
    written = io.BytesIO()
    with wave.open(written, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(20))
    return b64encode(written.getvalue()).decode()


IMAGE: JsonObject = {"type": "image", "data": red_pixel(), "mimeType": "image/png"}
