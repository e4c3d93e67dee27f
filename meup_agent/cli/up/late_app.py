"""An application of a gateway's own port that is loaded after the gateway listens."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import Generator

    from starlette.types import ASGIApp, Receive, Scope, Send

LOADING_SECONDS: Final = 30.0
"""Wait of a request for an application that is being loaded."""


class LateApp:
    """An ASGI application whose requests wait until it answers, and get 503 once it has ended."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._begun = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        with anyio.move_on_after(LOADING_SECONDS):
            await self._begun.wait()
        app = self._app
        if app is None:
            from starlette.responses import PlainTextResponse

            words = "the gateway starts or stops; try again soon"
            app = PlainTextResponse(words, 503, {"Retry-After": "1"})
        await app(scope, receive, send)

    @contextmanager
    def loading(self) -> Generator[None]:
        """The block in which an application is loaded, and answers; after it no request waits.

        Also where it failed before there was one.
        """
        try:
            yield
        finally:
            self._app = None
            self._begun.set()

    def answer_by(self, app: ASGIApp) -> None:
        """Answer by an application until the block ends."""
        self._app = app
        self._begun.set()
