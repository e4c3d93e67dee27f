"""The console of a gateway: its routes, and the block in which they are served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final
from urllib.parse import quote, urlencode

import anyio
from anyio.abc import TaskGroup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message

from meup_agent.errors import UsageError
from meup_agent.gateway.auth import (
    FORBIDDEN,
    NOT_FOUND,
    TOO_MANY,
    UNAUTHORIZED,
    UNAVAILABLE,
    NotAdmitted,
    digest_of_token,
)
from meup_agent.gateway.cluster.shared import ValuesAway
from meup_agent.gateway.console.context import ConsoleState, PageContext, redirect
from meup_agent.gateway.console.local_session import check_entry
from meup_agent.gateway.console.pages import PAGES, PageRoute
from meup_agent.gateway.console.pages.sign_in import make_link
from meup_agent.gateway.console.presence import PersonPresences
from meup_agent.gateway.console.sign_in import (
    FORM_PIECE_BYTES,
    LINK_SECONDS,
    MAX_FORM_BYTES,
    OPEN_FORM_BYTES,
    SECURITY_HEADERS,
    SESSION_IDLE,
    USED_SECONDS,
    BrowserSessions,
    FormSeals,
    RequestDenied,
    RequestPace,
    SignInLinks,
    check_csrf,
    check_origin,
    decode_form,
    read_form,
)
from meup_agent.gateway.console.templating import (
    STATIC,
    asset,
    compile_templates,
    make_environment,
)
from meup_agent.gateway.console.timeline import SpaceFeeds
from meup_agent.gateway.edge.http.context import Problem, with_headers
from meup_agent.gateway.logs import log
from meup_agent.gateway.logs import quote as quote_for_log
from meup_agent.gateway.runtime import GatewayRuntime

STATIC_SECONDS: Final = 365 * 24 * 3600
"""Seconds for which a browser keeps a static file; one that changes gets another address."""

Clock = Callable[[], float]


class Console:
    """The console, to hand to a gateway: ``serve(config, page=Console())``.

    Its sessions live in it, so they end with the process; of several gateways they have in common.

    Args:
        now: A clock in seconds, by which sessions and links end.
    """

    def __init__(self, now: Clock = time.monotonic) -> None:
        self.sessions = BrowserSessions(now)
        self.links = SignInLinks(now)
        self.seals = FormSeals()
        # While the gateway runs.
        self.runtime: GatewayRuntime | None = None

    def sign_in_link(self, console_url: str, token: str) -> str:
        """A link by which one browser signs in, once and within ten minutes.

        Args:
            console_url: The console's address.
            token: The token of the participant that it signs in.

        Raises:
            UsageError: The gateway does not run, or does not know the token.
        """
        digest = digest_of_token(token)
        identity = None if self.runtime is None else self.runtime.tokens.holder(digest)
        if identity is None:
            raise UsageError("a sign-in link needs a gateway that runs, and a token of its own")
        return f"{console_url}/link?{urlencode({'code': self.links.make(identity, digest)})}"

    @asynccontextmanager
    async def __call__(self, runtime: GatewayRuntime) -> AsyncGenerator[ASGIApp]:
        """Serve the console of a gateway for the length of a block."""
        self.runtime = runtime
        if runtime.open_values is not None:
            self.sessions.store = runtime.open_values("sessions", SESSION_IDLE + 2 * USED_SECONDS)
            self.links.store = runtime.open_values("links", LINK_SECONDS)
            await self.seals.share(runtime.open_values("facts", 0))
        closing = anyio.Event()
        # In a task of its own: a gateway in a thread is begun by one task and ended by another.
        ready: asyncio.Future[TaskGroup] = asyncio.get_running_loop().create_future()
        host = asyncio.create_task(_host_tasks(ready, closing), name="meup console")
        tasks = await ready
        presences = PersonPresences(runtime, tasks)
        try:
            state = ConsoleState(
                self.sessions,
                self.links,
                self.seals,
                runtime,
                presences,
                SpaceFeeds(runtime, tasks),
                closing,
                make_environment(),
                RequestPace(),
            )
            yield _make_app(state)
        finally:
            self.runtime = None
            presences.close()
            closing.set()
            with anyio.CancelScope(shield=True):
                await host


async def _host_tasks(ready: asyncio.Future[TaskGroup], closing: anyio.Event) -> None:
    """Hold the tasks of a console until it closes."""
    async with anyio.create_task_group() as tasks:
        ready.set_result(tasks)
        tasks.start_soon(compile_templates)
        await closing.wait()
        tasks.cancel_scope.cancel()


def _make_app(state: ConsoleState) -> ASGIApp:
    """The pages of a console while its gateway runs."""

    async def answer_unknown(request: Request, error: Exception) -> Response:
        context = PageContext(state, request)
        context.find_session()
        return context.problem(RequestDenied(NOT_FOUND, "The console has no such page."))

    routes: list[BaseRoute] = [
        Route("/", _go_home),
        Mount("/static", _cached(StaticFiles(directory=STATIC))),
        Route("/worker.js", _send_worker),
        Route("/manifest.webmanifest", _send_manifest),
        Route("/links", partial(_make_link, state), methods=["POST"]),
        *(Route(each.path, partial(_answer, state, each), methods=[each.method]) for each in PAGES),
    ]
    return _secured(Starlette(routes=routes, exception_handlers={404: answer_unknown}))


async def _send_worker(request: Request) -> Response:
    """The service worker, which is for pages below its own path alone."""
    # Asked for anew each time: a worker of an earlier version would serve later pages.
    return FileResponse(STATIC / "worker.js", headers={"Cache-Control": "no-cache"})


async def _send_manifest(request: Request) -> Response:
    """The manifest, by which a browser installs the console as a program of its own."""
    icon = {"src": f"static/{asset('icon.svg')}", "sizes": "any", "type": "image/svg+xml"}
    manifest = {
        "name": "meup: decide about calls",
        "short_name": "meup",
        "start_url": "inbox",
        "scope": "./",
        "display": "standalone",
        "background_color": "#ffffff",
        "theme_color": "#2f5d50",
        "icons": [icon],
    }
    return JSONResponse(manifest, media_type="application/manifest+json")


async def _make_link(state: ConsoleState, request: Request) -> Response:
    try:
        return await make_link(state, request)
    except RequestDenied as denied:
        return JSONResponse({"message": str(denied)}, denied.status, denied.headers)


async def _answer(state: ConsoleState, page: PageRoute, request: Request) -> Response:
    context = PageContext(state, request)
    try:
        return await _serve(page, context)
    except RequestDenied as denied:
        if denied.status in (FORBIDDEN, TOO_MANY):
            said = "console: %s %s was refused with %d: %s"
            why = quote_for_log(str(denied))
            state.runtime.refusals.info(said, page.method, page.path, denied.status, why)
        return context.problem(denied)
    except ValuesAway:
        return context.problem(RequestDenied(UNAVAILABLE, _AWAY))
    except (NotAdmitted, Problem) as refused:
        said = f"{str(refused).capitalize()}."
        return context.problem(RequestDenied(refused.status, said, refused.headers))
    except Exception:
        log.exception("console: %s %s failed", page.method, page.path)
        return context.problem(RequestDenied(500, "The gateway failed here; its log says more."))


_AWAY: Final = (
    "Who is signed in cannot be looked up at the moment, since the gateway cannot reach NATS; come"
    " back soon."
)


async def _serve(page: PageRoute, context: PageContext) -> Response:
    """Check a request, and let its page answer."""
    state, request = context.state, context.request
    sent = page.method == "POST"
    if not state.runtime.accepting or state.closing.is_set():
        raise RequestDenied(UNAVAILABLE, "The gateway stops; come back soon.")
    await state.sessions.look_up(context.cookie())
    session = context.find_session()
    if sent:
        # Before its form is read: what another site sends is to cost nothing.
        check_origin(request)
    if page.is_open:
        if sent:
            context.form = await decode_form(await read_form(request, OPEN_FORM_BYTES))
        return await page.function(context)
    if session is None:
        return _sign_in_first(context)
    identity = session.identity
    await state.pace.wait(identity)
    if sent:
        body = await read_form(request, MAX_FORM_BYTES)
        if pieces := len(body) // FORM_PIECE_BYTES:
            await state.pace.wait(identity, pieces)
        context.form = await decode_form(body)
        # It may have been signed out while its form was read.
        session = context.find_session()
        if session is None:
            return _sign_in_first(context)
        check_csrf(session, context.form)
    check_entry(state.runtime, identity)
    context.found_presence = presence = await state.presences.open(identity)
    with presence.in_use():
        return await page.function(context)


def _sign_in_first(context: PageContext) -> Response:
    """Send a browser without a session to the sign-in, and back from there; a script is told."""
    request = context.request
    if request.headers.get("accept", "").startswith("text/event-stream"):
        raise RequestDenied(UNAUTHORIZED, "You are not signed in any more.")
    path = request.url.path if request.method == "GET" else context.page_of_form
    return redirect(context, f"/sign-in?next={quote(path, safe='')}")


async def _go_home(request: Request) -> Response:
    return Response(None, 303, {"Location": f"{request.scope['root_path']}/inbox"})


def _secured(app: ASGIApp) -> ASGIApp:
    """The application, with the headers that keep a browser from doing what no page asks for."""
    headers = [(name.lower().encode(), said.encode()) for name, said in SECURITY_HEADERS.items()]

    def secure(answer: Message) -> list[tuple[bytes, bytes]]:
        if any(name == b"cache-control" for name, _ in answer["headers"]):
            return headers
        return [(b"cache-control", b"no-store"), *headers]

    return with_headers(app, secure)


def _cached(app: ASGIApp) -> ASGIApp:
    """Static files, which stay in the browser: each content has an address of its own."""
    said = [(b"cache-control", f"public, max-age={STATIC_SECONDS}, immutable".encode())]
    return with_headers(app, lambda answer: said if answer["status"] == 200 else [])
