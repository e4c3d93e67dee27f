"""What is live: one stream for all tabs, the timeline, and a crowd of proposals."""

import pytest
from playwright.async_api import expect

from tests.console_browser.conftest import Desk

pytestmark = pytest.mark.anyio


async def test_eight_tabs_share_one_stream(desk: Desk) -> None:
    await desk.site.tools()
    first = await desk.open()
    tabs = [first, *[await desk.tab(first.context) for _ in range(7)]]
    for page in tabs[1:]:
        await page.goto(f"{desk.url}/inbox")
    proposer = await desk.site.join("proposer")
    proposal = await desk.site.propose(proposer)
    for page in tabs:
        await expect(page.locator("#call")).to_contain_text("a.md")
    # The tab that holds the stream goes, and another one takes it over.
    await first.close()
    await proposal.withdraw()
    for page in tabs[1:]:
        await expect(page.locator("#count")).to_have_text("0", timeout=20_000)


async def test_timeline_is_live_filtered_and_paused(desk: Desk) -> None:
    boss = await desk.site.join("boss")
    page = await desk.open()
    await page.goto(f"{desk.url}/timeline")
    await boss.chat("good morning")
    await expect(page.locator("#rows")).to_contain_text("good morning")
    await page.click("#pause")
    await boss.chat("while you were away")
    await expect(page.locator("#held")).to_contain_text("wait")
    await expect(page.locator("#rows")).not_to_contain_text("while you were away")
    await page.click("#pause")
    await expect(page.locator("#rows")).to_contain_text("while you were away")
    await page.select_option("[name=tone]", "reject")
    await expect(page.locator("#rows .row:visible")).to_have_count(0)


async def test_older_rows_come_by_scrolling(desk: Desk) -> None:
    boss = await desk.site.join("boss")
    for number in range(150):
        await boss.chat(f"message {number}.")
    page = await desk.open()
    await page.goto(f"{desk.url}/timeline")
    await expect(page.locator("#rows")).to_contain_text("message 149.")
    await page.locator("#older").scroll_into_view_if_needed()
    await expect(page.locator("#rows")).to_contain_text("message 0.")


async def test_proposal_page_follows_its_proposal(desk: Desk) -> None:
    await desk.site.tools()
    proposal = await desk.site.propose(await desk.site.join("proposer"))
    page = await desk.open()
    await page.click("text=Its whole story")
    await expect(page.locator(".state")).to_have_text("pending")
    await proposal.withdraw()
    await expect(page.locator(".state")).to_have_text("withdrawn")
