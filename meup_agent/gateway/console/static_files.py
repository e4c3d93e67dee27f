"""The console's static files, held in memory and answered in one turn of the loop.

A browser paints nothing before it has the stylesheet. Read from disk by a worker thread, that waits
for several turns, and just then the gateway opens the inbox of whoever has signed in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from meup_agent.gateway.console.rendering import STATIC, asset

STATIC_SECONDS: Final = 365 * 24 * 3600
"""Seconds for which a browser keeps a static file; one that changes gets another address."""

_MEDIA_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class StaticFile:
    """A file as it was when the console began."""

    def __init__(self, path: Path) -> None:
        self._content = path.read_bytes()
        self._media_type = _MEDIA_TYPES.get(path.suffix, "text/plain")
        self._headers = {
            "ETag": f'"{asset(path.name).rpartition("=")[2]}"',
            "Cache-Control": f"public, max-age={STATIC_SECONDS}, immutable",
        }

    async def answer(self, request: Request) -> Response:
        """The file, or that the browser has it."""
        known = request.headers.get("if-none-match", "")
        if self._headers["ETag"] in {each.strip().removeprefix("W/") for each in known.split(",")}:
            return Response(None, 304, self._headers)
        return Response(self._content, 200, self._headers, self._media_type)


def static_routes() -> list[BaseRoute]:
    """Make a route of each file; another path is not found."""
    files = sorted(path for path in STATIC.iterdir() if path.is_file())
    return [Route(f"/{path.name}", StaticFile(path).answer, methods=["GET"]) for path in files]
