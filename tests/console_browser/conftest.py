"""A real browser, with a page that fails its test at the first word in its console."""

import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from playwright.async_api import (
    Browser,
    Dialog,
    Page,
    Playwright,
    Request,
    Route,
    async_playwright,
    expect,
)

from meup_agent import ProposalHandle
from meup_agent.gateway import Config
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.console_browser.axe import SCRIPT
from tests.gateway.console.conftest import Site, open_site
from tests.patience import PATIENCE

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

HOW = (
    "no Chromium was found: apt-get install chromium-headless-shell, playwright install chromium,"
    " or set MEUP_CHROMIUM to one"
)

MILLISECONDS = PATIENCE * 1_000
"""For a page to become what a test waits for, here and in each test."""

expect.set_options(timeout=MILLISECONDS)


def find_chromium(playwright: Playwright) -> str:
    """The browser: as it is said, as Debian has it, or Playwright's own."""
    found = os.environ.get("MEUP_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    own = playwright.chromium.executable_path
    if found is None and Path(own).exists():
        found = own
    if found is None:
        pytest.fail(HOW)
    if not SCRIPT.exists():
        pytest.fail("axe-core is missing: make console, or python -m tests.console_browser.axe")
    return found


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        path = find_chromium(playwright)
        options = ["--no-sandbox"] if hasattr(os, "getuid") and os.getuid() == 0 else []
        browser = await playwright.chromium.launch(
            executable_path=path, args=options, timeout=MILLISECONDS
        )
        yield browser
        await browser.close()


async def before_the_stream(page: Page, do: Callable[[], Awaitable[object]]) -> None:
    """Do something between a page and its next event stream.

    The route stays, so that it is not taken away while the page asks for more.
    """
    is_done = False

    async def do_once(route: Route) -> None:
        nonlocal is_done
        if not is_done:
            is_done = True
            await do()
        await route.continue_()

    await page.route("**/events?*", do_once)


async def settled(page: Page) -> None:
    """Wait for a card to have been there for a moment."""
    await expect(page.locator("#acts [aria-disabled]")).to_have_count(0)


async def card(page: Page, path: str) -> None:
    """Wait for the decision about a file, with what its tool says of itself, to be taken."""
    await expect(page.locator("#call")).to_contain_text(path)
    await expect(page.locator("#sure")).to_have_count(0)
    await settled(page)


async def stop_clock(page: Page) -> None:
    """Let no time pass by a page's clock, so that keys which belong together are never too late."""
    await page.evaluate("() => { const at = Date.now(); Date.now = () => at; }")


class Desk:
    """A gateway with its console, and browsers at it."""

    def __init__(self, site: Site, chromium: Browser, stack: AsyncExitStack) -> None:
        self.site = site
        self.url = f"{site.gateway.http_url}/console"
        self.problems: list[str] = []
        # A driver fills the token in before the browser has come to focus its field.
        self.expected: list[Callable[[str], bool]] = [
            lambda said: said.startswith("info: Autofocus processing was blocked")
        ]
        self.requests: list[str] = []
        self.foreign: list[str] = []
        self._streams: set[Request] = set()
        self._begun: set[Request] = set()
        self._streams_changed = anyio.Event()
        self._chromium = chromium
        self._stack = stack

    async def open(self, participant: str = "you", *, token: str = "", **options: Any) -> Page:
        """A tab of a browser of its own, signed in."""
        options = {"viewport": {"width": 1280, "height": 900}, **options}
        context = await self._chromium.new_context(**options)
        self._stack.push_async_callback(context.close)
        page = await self.tab(context)
        await page.goto(f"{self.url}/sign-in")
        await page.fill("#token", token or self.site.token(participant))
        await page.press("#token", "Enter")
        await page.wait_for_url("**/inbox")
        return page

    async def asked(self, text: str = "hello", to: str = "") -> tuple[ProposalHandle, Page]:
        """A proposal to write a file, and the page of who decides about it."""
        given = {"path": "a.md", "text": text}
        proposal = await self.site.propose(await self.site.proposer(), given, to=to)
        page = await self.open()
        await card(page, "a.md")
        await self.streams()
        return proposal, page

    async def show(self, path: str, participant: str = "you", **options: Any) -> Page:
        page = await self.open(participant, **options)
        await page.goto(f"{self.url}/{path}")
        return page

    async def tab(self, context: Any) -> Page:
        page: Page = await context.new_page()
        page.set_default_timeout(MILLISECONDS)
        page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", self._dismiss)
        page.on("request", self._note)
        page.on("response", lambda response: self._begin_stream(response.request))
        page.on("requestfinished", lambda request: self._end_streams({request}))
        page.on("requestfailed", lambda request: self._end_streams({request}))
        page.on("close", lambda page: self._end_streams(self._streams_of(page)))
        return page

    def _note(self, request: Request) -> None:
        self.requests.append(request.url)
        if "/events?" in request.url:
            self._streams.add(request)
            self._streams_changed.set()

    def _begin_stream(self, request: Request) -> None:
        self._begun.add(request)
        self._streams_changed.set()

    def _streams_of(self, page: Page) -> set[Request]:
        return {each for each in self._streams if each.frame.page is page}

    def _end_streams(self, streams: set[Request]) -> None:
        self._streams -= streams
        self._begun -= streams
        self._streams_changed.set()

    async def streams(self, count: int = 1) -> None:
        """Wait until so many browsers hear what happens from now on.

        A browser may have more for a moment: without locks, two tabs that take it at once find out
        soon.
        """
        with anyio.fail_after(PATIENCE):
            while len(self._streams) != count or not self._streams <= self._begun:
                self._streams_changed = anyio.Event()
                await self._streams_changed.wait()

    async def _dismiss(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def expect(self, *words: str) -> None:
        """Let a page say what a test provokes, for example that its connection was refused."""
        self.expected.append(lambda said: any(each in said for each in words))

    def check(self) -> None:
        """Fail if a page has said something else."""
        left = [each for each in self.problems if not any(ok(each) for ok in self.expected)]
        assert left == []
        ours = (f"{self.url}/", *self.foreign)
        assert [each for each in self.requests if not each.startswith(ours)] == []


@asynccontextmanager
async def open_desk(chromium: Browser, config: Config | None = None) -> AsyncGenerator[Desk]:
    async with open_site(config) as site, AsyncExitStack() as pages:
        desk = Desk(site, chromium, pages)
        yield desk
        desk.check()


@pytest.fixture
async def desk(chromium: Browser) -> AsyncGenerator[Desk]:
    async with open_desk(chromium) as opened:
        yield opened
