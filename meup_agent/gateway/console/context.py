"""One request of a browser, as a page sees it: checked, with its session and its participant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import anyio
from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from meup_agent.gateway.auth import UNAUTHORIZED, UNAVAILABLE, Identity
from meup_agent.gateway.console.event_queue import OutcomeNotice
from meup_agent.gateway.console.presence import PersonPresence, PersonPresences
from meup_agent.gateway.console.sign_in import (
    BrowserSession,
    BrowserSessions,
    FormSeals,
    RequestDenied,
    RequestPace,
    SignInLinks,
)
from meup_agent.gateway.console.templating import PageTerms
from meup_agent.gateway.console.timeline import SpaceFeed, SpaceFeeds
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.space.owner import SpaceServer

CONSOLE_HOME: Final = "/inbox"

_PROBLEM_TITLES: Final = {
    401: "Sign in again",
    403: "Not allowed",
    404: "Nothing here",
    409: "Already decided",
    429: "Too many attempts",
    503: "The gateway is away",
}


class ConsoleState(NamedTuple):
    """The state that all pages of a console share while its gateway runs."""

    sessions: BrowserSessions
    links: SignInLinks
    seals: FormSeals
    runtime: GatewayRuntime
    presences: PersonPresences
    feeds: SpaceFeeds
    closing: anyio.Event
    templates: Environment
    pace: RequestPace


class PageContext:
    """A request, and what it takes to answer it."""

    def __init__(self, state: ConsoleState, request: Request) -> None:
        self.state = state
        self.request = request
        self.form: dict[str, str] = {}
        self.session: BrowserSession | None = None
        self.found_presence: PersonPresence | None = None

    def find_session(self) -> BrowserSession | None:
        # A tab that is left open asks for news each minute, and nobody may sit before it.
        is_used = self.request.method == "POST" or not self.is_by_script
        tokens = self.state.runtime.tokens
        self.session = self.state.sessions.find(self.cookie(), tokens, is_used=is_used)
        return self.session

    @property
    def is_by_script(self) -> bool:
        """True for a request by which a page's script loads something."""
        asked = self.request.headers
        # Said by browsers only where the console is served by https, or at localhost.
        meant_for = asked.get("sec-fetch-dest", "document")
        return meant_for != "document" or asked.get("accept") in ("text/html", "text/event-stream")

    def typed(self, field: str) -> str:
        """The text in a field of the form, without blanks at its ends."""
        return self.form.get(field, "").strip()

    @property
    def cookie_name(self) -> str:
        # With the port, since cookies know none: two gateways of one host would share theirs.
        url = self.request.url
        prefix, port = ("__Secure-", 443) if url.scheme == "https" else ("", 80)
        return f"{prefix}meup_{url.port or port}"

    def cookie(self, ending: str = "") -> str:
        """The value of the cookie whose name ends so; empty: the browser has none."""
        return self.request.cookies.get(self.cookie_name + ending, "")

    def set_cookie(
        self, answer: Response, value: str, ending: str = "", max_age: int | None = None
    ) -> None:
        """Give the browser a cookie that no script reads, and no other site sends."""
        answer.set_cookie(
            self.cookie_name + ending,
            value,
            max_age=max_age,
            path=self.base,
            secure=self.request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    @property
    def signed_in(self) -> BrowserSession:
        """The session of a page that is for those who are signed in."""
        assert self.session is not None, "the page is for those who are signed in"
        return self.session

    @property
    def identity(self) -> Identity:
        return self.signed_in.identity

    @property
    def presence(self) -> PersonPresence:
        """The participant's presence in its space."""
        assert self.found_presence is not None, "the page is for those who are signed in"
        return self.found_presence

    @property
    def space_server(self) -> SpaceServer:
        """The participant's space: of no other one is anything shown."""
        space = self.state.runtime.spaces.get(self.identity.space)
        if space is None:
            raise RequestDenied(UNAVAILABLE, "The space is not here now; load the page again.")
        return space

    @property
    def feed(self) -> SpaceFeed:
        """The feed of that space."""
        return self.state.feeds.of(self.space_server.name)

    @property
    def key(self) -> str:
        """The key of the proposal in the path; empty: it names none."""
        return str(self.request.path_params.get("key", ""))

    @property
    def base(self) -> str:
        """The path that the console is mounted at."""
        return str(self.request.scope.get("root_path", ""))

    @property
    def page_of_form(self) -> str:
        """The path of the page whose form was sent: of a decision its own, else the inbox."""
        path = self.request.url.path.removeprefix(f"{self.base}{CONSOLE_HOME}/")
        key, _, verb = path.partition("/")
        return f"{CONSOLE_HOME}/{key}" if key and verb else CONSOLE_HOME

    def page(self, template: str, status: int = 200, /, **values: Any) -> HTMLResponse:
        return HTMLResponse(self.html(template, **values), status)

    def html(self, template: str, /, **values: Any) -> str:
        """The HTML of a template, with what every template may use."""
        session, push = self.session, self.state.runtime.push
        return self.state.templates.get_template(template).render(
            base=self.base,
            path=self.request.url.path.removeprefix(self.base),
            me=None if session is None else session.identity.participant,
            space=None if session is None else session.identity.space,
            as_whom="" if session is None else session.shown_identity,
            csrf="" if session is None else session.csrf,
            push_key="" if session is None or push is None else push.application_key,
            now=datetime.now(UTC),
            notice=self._notice(),
            waiting=0 if self.found_presence is None else self.found_presence.feed.waiting,
            explain=PageTerms(),
            **values,
        )

    def problem(self, denied: RequestDenied) -> Response:
        """The page that says why there is no other."""
        title = denied.title or _PROBLEM_TITLES.get(denied.status, "That did not work")
        page = self.page("problem.html", denied.status, title=title, message=str(denied),
                         back=self.page_of_form)  # fmt: skip
        page.headers.update(denied.headers)
        if denied.status == UNAUTHORIZED:
            page.headers["Cache-Control"] = "no-store"
        return page

    def go_on(
        self,
        path: str,
        sentence: str,
        *,
        failed: bool = False,
        proposal: str = "",
        parts: tuple[OutcomeNotice, ...] = (),
    ) -> Response:
        """Send the browser to a page that shows a sentence, with a link to a proposal of a key."""
        self.signed_in.notice = OutcomeNotice(sentence, failed, proposal, parts)
        return redirect(self, path)

    def _notice(self) -> OutcomeNotice | None:
        # A script that loads a part of a page would take it from the page that comes next.
        if self.session is None or self.is_by_script:
            return None
        said, self.session.notice = self.session.notice, None
        return said


PageFunction = Callable[[PageContext], Awaitable[Response]]


def redirect(context: PageContext, path: str) -> Response:
    """Send the browser to a path of the console."""
    return Response(None, 303, {"Location": context.base + path})
