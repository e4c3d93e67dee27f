"""Each state that a page can be in, light and dark: accessible, and told to who does not see."""

import re
from typing import Literal

import pytest
from playwright.async_api import Route, expect

from meup_agent.gateway.console.sign_in import SESSION_IDLE
from meup_agent.gateway.console.timeline import PAGE_ROWS
from tests.console_browser.check_pages import assert_good
from tests.console_browser.conftest import Desk
from tests.console_browser.pictures import picture

AGED = """() => document.querySelectorAll("#queue time[data-ago]").forEach(each => {
  each.dateTime = new Date(Date.now() - 359.9 * 60e3).toISOString(); })"""

OVERLAPS = """() => [...document.querySelectorAll("#queue a")].flatMap(row => {
  const boxes = [...row.children].map(each => [each.className, each.getBoundingClientRect()]);
  const all = row.getBoundingClientRect();
  const inside = (a) => a.right <= all.right && a.bottom <= all.bottom;
  const beside = (a, b) => a.right <= b.left || b.right <= a.left;
  const apart = (a, b) => beside(a, b) || a.bottom <= b.top || b.bottom <= a.top;
  return boxes.flatMap(([name, a], at) => [
    ...(inside(a) ? [] : [`${name} sticks out`]),
    ...boxes.slice(at + 1).filter(([, b]) => !apart(a, b)).map(([other]) => `${name}, ${other}`)]);
})"""
"""Parts of a row in the queue that cover one another, or stick out of it."""

COLORS = pytest.mark.parametrize("colors", ["light", "dark"])


@COLORS
async def test_states_of_the_inbox(desk: Desk, colors: Literal["light", "dark"]) -> None:
    desk.expect("status of 400", "Failed to load resource", "ERR_", "net::")
    site = desk.site
    page = await desk.open(color_scheme=colors)
    await expect(page.locator("#card-title")).to_have_text("Nothing waits for you")
    proposer = await site.proposer()
    asked = await site.propose(proposer, {"path": "a.md", "text": "safe\u202egpj.exe"})
    await expect(page.locator(".warning")).to_contain_text("Look twice")
    await page.click("#approve")
    await expect(page.locator("#sure:invalid")).to_be_focused()
    await assert_good(page, f"dangerous-{colors}")
    await page.reload()
    await page.click("#edit-summary")
    await page.click("text=Arguments as JSON")
    await page.fill("#arguments", '{"path": 1}')
    await expect(page.locator("#arguments-problem")).to_contain_text("should be string, not number")
    await assert_good(page, f"unfit-{colors}")
    await desk.streams()
    await asked.withdraw()
    await expect(page.locator("#gone")).to_contain_text("Withdrawn by proposer")
    await expect(page.locator("#live")).to_contain_text("Gone: write_file, withdrawn")
    # However far down one has scrolled; there axe cannot see what it stands over.
    await expect(page.locator("#gone")).to_be_in_viewport()
    await page.evaluate("scrollTo(0, 0)")
    await assert_good(page, f"gone-{colors}")
    site.gateway.kill()
    await expect(page.locator("#offline")).to_contain_text("Reconnecting")
    await assert_good(page, f"offline-{colors}")
    site.gateway.restart()
    await expect(page.locator("#offline")).to_be_hidden()
    site.clock.now += SESSION_IDLE + 1
    await site.propose(await site.join("boss"))
    await expect(page.locator("#offline")).to_contain_text("You are signed out")
    await assert_good(page, f"signed-out-{colors}")


@COLORS
async def test_states_of_the_timeline(desk: Desk, colors: Literal["light", "dark"]) -> None:
    held: list[Route] = []

    async def hold(route: Route) -> None:
        held.append(route)

    boss = await desk.site.join("boss")
    for number in range(PAGE_ROWS + 5):
        await boss.chat(f"message {number}.")
    page = await desk.open(color_scheme=colors)
    await page.route("**/timeline?before=*", hold)
    await page.goto(f"{desk.url}/timeline")
    rows = page.locator("#rows")
    while not held:
        await page.locator("#older").scroll_into_view_if_needed()
        await page.evaluate("new Promise(requestAnimationFrame)")
    await expect(page.locator("#older .loading")).to_be_visible()
    # Neither rows that come live nor a further column take it away.
    await (await desk.site.join("proposer")).chat("I am new here")
    while "meanwhile" not in await rows.inner_text():
        await boss.chat("meanwhile")
    await expect(page.locator("#older .loading")).to_be_visible()
    await assert_good(page, f"loading-{colors}")
    await held[0].continue_()
    await expect(rows).to_contain_text("message 0.")
    await expect(rows).to_contain_text("I am new here")
    await expect(page.locator(".columns")).to_contain_text("proposer")
    await expect(rows).to_contain_text("message 0.")
    await page.get_by_label("Kind").select_option("stream")
    await expect(page.locator("#nothing")).to_contain_text("Nothing like that has been said")
    await assert_good(page, f"nothing-{colors}")
    await page.click("#pause")
    await boss.chat("meanwhile")
    await expect(page.locator("#held")).to_contain_text("wait")
    await assert_good(page, f"paused-{colors}")
    await page.click("#pause")


async def test_nothing_moves_where_no_motion_is_wanted(desk: Desk) -> None:
    await desk.site.tools()
    page = await desk.open(reduced_motion="reduce")
    await expect(page.locator("#card-title")).to_have_text("Nothing waits for you")
    await desk.site.propose(await desk.site.join("proposer"))
    row = page.locator("#queue .came")
    await expect(row).to_have_count(1)
    await expect(row).to_have_css("animation-name", "none")


@pytest.mark.parametrize("width", [320, 1280])
async def test_queue_tells_count_and_age(desk: Desk, width: int) -> None:
    proposer = await desk.site.proposer()
    await desk.site.propose(proposer, {}, "t" * 90)
    page = await desk.open(viewport={"width": width, "height": 700})
    await expect(page.locator("#count")).to_have_text("1")
    await desk.site.propose(proposer)
    await expect(page.locator("#count")).to_have_text("2")
    await expect(page.locator("#queue .age")).to_have_text(
        [re.compile("came (just now|.* ago)")] * 2
    )
    # As if they waited for as long as is said in the most letters; the queue may be drawn anew.
    while await page.locator("#queue .age").all_inner_texts() != ["came 5 h 59 min ago"] * 2:
        await page.evaluate(AGED)
        await page.evaluate("new Promise(requestAnimationFrame)")
    assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert await page.evaluate(OVERLAPS) == []
    await page.locator("#queue").scroll_into_view_if_needed()
    await picture(page, f"queue-{width}")


async def test_queue_is_walked_by_keys(desk: Desk) -> None:
    proposer = await desk.site.proposer()
    for name in ("first", "second", "third"):
        await desk.site.propose(proposer, {"path": f"{name}.md"})
    page = await desk.open()
    await expect(page.locator("#call")).to_contain_text("first.md")
    for key, name in (("j", "second"), ("j", "third"), ("k", "second")):
        await page.keyboard.press(key)
        await expect(page.locator("#call")).to_contain_text(f"{name}.md")
        await expect(page.locator("#card-title")).to_be_focused()
    await page.keyboard.press("?")
    await expect(page.locator(".keys dl")).to_be_visible()
