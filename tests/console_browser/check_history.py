"""The history: what was decided, what expired, and what was seen of it."""

from datetime import UTC, datetime, timedelta

import anyio.lowlevel
import pytest
from playwright.async_api import Page, expect

from tests.console_browser.check_pages import LOOKS, assert_good
from tests.console_browser.conftest import Desk, settled


async def fill(desk: Desk) -> None:
    """Let one be withdrawn, one fail, and two expire."""
    site = desk.site
    tools = await site.tools()
    taken = await site.propose(await site.join("proposer"), {"path": "docs/old.md"})
    while not tools.proposals:
        await anyio.lowlevel.checkpoint()
    await taken.withdraw()
    for hours, tool in ((1, "write_file"), (30, "send_report")):
        until = (datetime.now(UTC) - timedelta(hours=hours)).isoformat()
        params = {"name": tool, "arguments": {}, "_meta": {"dev.meup/expires_at": until}}
        payload = {"method": "tools/call", "params": params}
        await site.post("proposer", {"kind": "mcp/proposal", "payload": payload})


async def hide(page: Page) -> None:
    """Let the page be a tab that nobody looks at."""
    hidden = "Object.defineProperty(document, 'visibilityState', {get: () => 'hidden'})"
    await page.add_init_script(hidden)


@pytest.mark.parametrize("look", LOOKS)
async def test_each_look(desk: Desk, look: str) -> None:
    await fill(desk)
    page = await desk.open("boss", **LOOKS[look])
    await hide(page)
    await page.goto(f"{desk.url}/history")
    await expect(page.locator("tbody tr")).to_have_count(3)
    await expect(page.locator("#unseen")).to_have_text("2")
    await settled(page)
    await assert_good(page, f"history-{look}")


async def test_what_is_on_the_screen_is_seen(desk: Desk) -> None:
    await fill(desk)
    page = await desk.open("boss")
    await page.goto(f"{desk.url}/history")
    await expect(page.locator("#unseen-note")).to_be_hidden()
    await expect(page.locator("#unseen")).to_be_hidden()
    await page.reload()
    await expect(page.locator(".is-unseen")).to_have_count(0)


async def test_a_proposal_is_reached_and_left_by_keys(desk: Desk) -> None:
    await fill(desk)
    page = await desk.open("boss")
    await page.goto(f"{desk.url}/history")
    await page.get_by_role("searchbox").fill("REPORT")
    await page.keyboard.press("Enter")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.locator("tbody a").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#chain .state")).to_have_text("expired")
