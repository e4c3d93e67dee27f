"""Decisions about what was seen, whatever is pushed and whoever signs in meanwhile."""

import re
from functools import partial
from typing import Final

from playwright.async_api import expect

from tests.console_browser.conftest import Desk, before_the_stream, settled

LEFT: Final = re.compile(r"min( \d+ s)? left")


async def test_card_that_changes_is_not_another_one(desk: Desk) -> None:
    proposer = await desk.site.join("proposer")
    await desk.site.propose(proposer)
    page = await desk.open()
    await expect(page.locator("#call")).to_contain_text("a.md")
    urgent = proposer.propose("tools", "write_file", {"path": "urgent.md"}, ttl=60)
    async with urgent:
        await expect(page.locator("#queue li").first).to_contain_text("s left")
        # What its tool says of itself comes now, and draws the card anew.
        await desk.site.tools()
        await expect(page.locator("#card")).to_contain_text("Writes a file")
        await settled(page)
        await expect(page.locator("#call")).to_contain_text("a.md")
        await expect(page.locator("#queue [aria-current]")).to_contain_text(LEFT)


async def test_queue_that_is_loaded_anew_leaves_the_card(desk: Desk) -> None:
    proposer = await desk.site.proposer()
    await desk.site.propose(proposer)
    page = await desk.open()
    await expect(page.locator("#call")).to_contain_text("a.md")
    await desk.streams()

    urgent = proposer.propose("tools", "write_file", {"path": "urgent.md"}, ttl=60)
    await before_the_stream(page, partial(desk.site.stack.enter_async_context, urgent))
    await page.reload()
    await expect(page.locator("#queue li").first).to_contain_text("s left")
    await expect(page.locator("#live")).to_contain_text("New: proposer proposes write_file")
    await settled(page)
    await expect(page.locator("#call")).to_contain_text("a.md")
    await expect(page.locator("#queue [aria-current]")).to_contain_text(LEFT)


async def test_focus_on_a_button_does_not_pass_to_the_next_card(desk: Desk) -> None:
    proposer = await desk.site.proposer()
    first = await desk.site.propose(proposer)
    await desk.site.propose(proposer, {"path": "b.md"})
    page = await desk.open()
    await expect(page.locator("#call")).to_contain_text("a.md")
    await settled(page)
    await page.locator("#approve").focus()
    await first.withdraw()
    await expect(page.locator("#call")).to_contain_text("b.md")
    await settled(page)
    await expect(page.locator("#card-title")).to_be_focused()


async def test_tab_is_not_that_of_another_participant(desk: Desk) -> None:
    desk.expect("409", "Failed to load resource")
    proposer = await desk.site.proposer()
    page = await desk.open("you")
    await expect(page.locator("main")).to_contain_text("Nothing waits for you")
    other = await desk.tab(page.context)
    await other.goto(desk.site.console.sign_in_link(desk.url, desk.site.token("boss")))
    await other.get_by_role("button", name="Continue").click()
    await expect(other.locator(".you")).to_contain_text("boss")
    await expect(page.locator("#offline")).to_contain_text("Another tab signed in")
    await desk.site.propose(proposer)
    await expect(other.locator("#call")).to_contain_text("a.md")
    await expect(other.locator("#offline")).to_be_hidden()
    await expect(page.locator(".you")).to_contain_text("you")
    await expect(page.locator("#call")).to_have_count(0)
    await page.reload()
    await expect(page.locator(".you")).to_contain_text("boss")
    await expect(page.locator("#call")).to_contain_text("a.md")


async def test_card_that_its_gateway_has_forgotten_goes_with_a_word(desk: Desk) -> None:
    desk.expect("Failed to load resource", "ERR_", "net::", "Failed to fetch")
    proposer = await desk.site.proposer()
    await desk.site.propose(proposer)
    page = await desk.open()
    await expect(page.locator("#card")).to_contain_text("Writes a file")
    desk.site.gateway.kill()
    await expect(page.locator("#offline")).to_contain_text("Reconnecting")
    # Its journal is in memory.
    desk.site.gateway.restart()
    await expect(page.locator("#gone")).to_contain_text("It waits no longer.")
    await expect(page.locator("#approve")).to_be_disabled()
    await expect(page.locator("main")).to_contain_text("Nothing waits for you")
    await expect(page.locator(".notice")).to_contain_text("The last one left: It waits no longer.")
