"""An inbox of 10,000 open proposals: on the screen, counted, live, and decided in."""

import os
from typing import Any

from playwright.async_api import Browser, Page, expect

from tests.bench.console_site import ConsoleSite, console_site
from tests.bench.envelopes import proposal, withdrawal
from tests.console_browser.conftest import MILLISECONDS, settled

OPEN = 10_000


async def open_inbox(site: ConsoleSite, chromium: Browser, problems: list[str]) -> Page:
    context = await chromium.new_context(viewport={"width": 1280, "height": 900})
    name, _, value = site.address.cookies["you0"].partition("=")
    url = f"http://127.0.0.1:{site.address.port}/console"
    await context.add_cookies([{"name": name, "value": value, "url": url}])
    page = await context.new_page()
    page.set_default_timeout(MILLISECONDS)
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    await page.goto(f"{url}/inbox")
    return page


async def test_ten_thousand_open_proposals(chromium: Browser) -> None:
    problems: list[str] = []
    with console_site(1, OPEN // 1_000) as site:
        site.seed(OPEN)
        page = await open_inbox(site, chromium, problems)
        # The first screen is there at once; the rest is listed in turns.
        await expect(page.locator("#call")).to_contain_text("docs/000000.md")
        await expect(page.locator("#queue > li")).to_have_count(50)
        await expect(page.locator("#count")).to_have_text("10000")
        await expect(page.locator("#more")).to_contain_text("9,950")
        # The most urgent of all: its row comes before the others, and goes again.
        site.say("caller", proposal("f" * 32, "caller", 600))
        first = page.locator("#queue > li").first
        await expect(first).to_contain_text("caller")
        await expect(page.locator("#count")).to_have_text("10001")
        site.say("caller", withdrawal("e" * 32, "caller", "f" * 32))
        await expect(first).to_contain_text("bot0")
        await expect(page.locator("#queue > li")).to_have_count(50)
        # The one on the screen is decided, and the next one comes.
        await settled(page)
        await page.keyboard.press("r")
        await page.click("#reject")
        await expect(page.locator("#call")).to_contain_text("docs/000001.md")
        await expect(page.locator("#count")).to_have_text("9999")
        width: Any = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert width <= 0
        await page.context.close()
    assert problems == [], os.linesep.join(problems)
