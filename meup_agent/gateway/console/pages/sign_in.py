"""Signing in and out."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from meup_agent.gateway.auth import FORBIDDEN, UNAUTHORIZED, Identity, NotAdmitted, digest_of_token
from meup_agent.gateway.cluster.routing import SPACE_COOKIE
from meup_agent.gateway.console.context import (
    CONSOLE_HOME,
    ConsoleState,
    PageContext,
    redirect,
)
from meup_agent.gateway.console.local_session import check_entry
from meup_agent.gateway.console.sign_in import SESSION_AGE, RequestDenied, check_csrf
from meup_agent.gateway.edge.handshake import bearer
from meup_agent.gateway.edge.http.context import authenticate
from meup_agent.gateway.edge.listener import address_of_client

SEAL_COOKIE: Final = "_form"
"""Ending of the cookie's name for a browser without a session."""

MAX_TOKEN_CHARS: Final = 4_096
"""Characters of a token that is pasted."""


async def show_sign_in(context: PageContext) -> Response:
    if context.session is not None:
        return redirect(context, _next(context))
    return _form(context, "sign_in.html", after=_next(context), problem="")


async def sign_in(context: PageContext) -> Response:
    """Open a session for a token."""
    _check_seal(context)
    token = context.typed("token")
    if not 0 < len(token) <= MAX_TOKEN_CHARS:
        return _refused(context, UNAUTHORIZED, "Paste the token of a participant.")
    try:
        address = address_of_client(context.request.scope)
        identity = context.state.runtime.identify(token, address)
        check_entry(context.state.runtime, identity)
    except NotAdmitted as refused:
        if (elsewhere := _send_on(context, digest_of_token(token))) is not None:
            return elsewhere
        context.state.runtime.counters.not_admitted[refused.status] += 1
        said = (
            "This token is not known here. Is it complete, and of this gateway?"
            if refused.status == UNAUTHORIZED
            else f"{str(refused).capitalize()}."
        )
        answer = _refused(context, refused.status, said)
        answer.headers.update(refused.headers)
        return answer
    await context.state.pace.wait(identity)
    return await _enter(context, identity, digest_of_token(token), _next(context))


def _send_on(context: PageContext, token: bytes) -> Response | None:
    """Send a form again, to be forwarded to the gateway that has the space of a token."""
    runtime = context.state.runtime
    identity = runtime.tokens.holder(token)
    if identity is None or identity.space in runtime.spaces or not runtime.forwards:
        return None
    if context.cookie(SPACE_COOKIE) == quote(identity.space, safe=""):
        return None  # it came by that already
    answer = Response(None, 307, {"Location": f"{context.base}/sign-in?next={_next(context)}"})
    _note_space(context, answer, identity)
    return answer


def _note_space(context: PageContext, answer: Response, identity: Identity) -> None:
    """Let other gateways know which space a browser shows, so that they forward it."""
    if context.state.runtime.forwards:
        space = quote(identity.space, safe="")
        context.set_cookie(answer, space, SPACE_COOKIE, max_age=int(SESSION_AGE))


async def make_link(state: ConsoleState, request: Request) -> Response:
    """A one-time link for the participant of a token, which no browser sends by itself.

    The answer is JSON: ``path``, below the address by which the gateway was asked, and
    ``local``, true if only its own machine reaches the console.
    """
    try:
        identity = authenticate(state.runtime, request)
        check_entry(state.runtime, identity)
    except NotAdmitted as refused:
        return JSONResponse({"message": str(refused)}, refused.status, refused.headers)
    await state.pace.wait(identity)
    digest = digest_of_token(bearer(request.headers["authorization"]))
    code = state.links.make(identity, digest)
    path = f"{request.scope['root_path']}/link?{urlencode({'code': code})}"
    return JSONResponse({"path": path, "local": state.runtime.local_http})


async def show_link(context: PageContext) -> Response:
    """The button behind a one-time link: what looks at links before a person does must not use it.

    It names whom it signs in, so that no person is signed in as another unawares.
    """
    code = context.request.query_params.get("code", "")
    link = await context.state.links.find(code)
    if link is None:
        raise RequestDenied(FORBIDDEN, _USED, title="The link is over")
    page = _form(context, "link.html", code=code, participant=link.identity.participant,
                 to=link.identity.space)  # fmt: skip
    _note_space(context, page, link.identity)
    return page


async def enter_by_link(context: PageContext) -> Response:
    """Open a session by a one-time link."""
    _check_seal(context)
    code = context.form.get("code", "")
    link = await context.state.links.take(code)
    if link is None or context.state.runtime.tokens.holder(link.token) != link.identity:
        raise RequestDenied(FORBIDDEN, _USED, title="The link is over")
    check_entry(context.state.runtime, link.identity)
    await context.state.pace.wait(link.identity)
    return await _enter(context, link.identity, link.token, CONSOLE_HOME)


async def sign_out(context: PageContext) -> Response:
    """End the session."""
    session, push = context.session, context.state.runtime.push
    context.state.sessions.close(context.cookie())
    if session is not None and push is not None:
        await push.remove(session.identity, session.push)
    response = redirect(context, "/sign-in")
    context.set_cookie(response, "", max_age=0)
    # Whatever a browser keeps of the pages.
    response.headers["Clear-Site-Data"] = '"cache", "storage"'
    return response


_USED: Final = (
    "This link was used already, or its ten minutes are over. For a new one, run meup console on"
    " the machine of the gateway; or sign in with the token."
)


async def _enter(context: PageContext, identity: Identity, token: bytes, after: str) -> Response:
    """Open a session under a new cookie, whatever cookie the browser had."""
    sessions = context.state.sessions
    # A cookie that was planted before the sign-in must not be worth anything after it.
    sessions.close(context.cookie())
    cookie, _ = sessions.open(identity, token)
    await sessions.share(cookie)
    response = redirect(context, after)
    context.set_cookie(response, cookie, max_age=int(SESSION_AGE))
    _note_space(context, response, identity)
    return response


def _form(context: PageContext, template: str, status: int = 200, **values: str) -> HTMLResponse:
    """A form with a token of its own, and the cookie that it belongs to."""
    seals = context.state.seals
    cookie = context.cookie(SEAL_COOKIE) or seals.new_cookie()
    page = context.page(template, status, seal=seals.seal(cookie), **values)
    context.set_cookie(page, cookie, SEAL_COOKIE)
    return page


def _refused(context: PageContext, status: int, problem: str) -> Response:
    return _form(context, "sign_in.html", status, after=_next(context), problem=problem)


def _check_seal(context: PageContext) -> None:
    """Raise :exc:`RequestDenied` unless the form is one that we gave to this browser."""
    if context.session is not None and "csrf" in context.form:
        check_csrf(context.session, context.form)
        return
    if not context.state.seals.fits(context.cookie(SEAL_COOKIE), context.form.get("seal", "")):
        raise RequestDenied(
            FORBIDDEN, "The page was loaded too long ago, so nobody was signed in; load it anew."
        )


def _next(context: PageContext) -> str:
    """The path of the console to go to afterwards: of the console alone, whatever was asked."""
    # Anything but plain words between slashes could lead to another host, as `//host` does.
    given = context.form.get("next") or context.request.query_params.get("next", "")
    path = given.removeprefix(context.base)
    plain = path.startswith("/") and all(
        part and part.replace("-", "").isalnum() for part in path[1:].split("/")
    )
    return path if plain and path.isascii() else CONSOLE_HOME
