"""Rows of the timeline: each tells when it was, also while the page is open."""

import re

import anyio
import pytest
from playwright.async_api import Route, expect

from tests.console_browser.conftest import Desk

AGED = """row => row.querySelector("time[data-ago]").dateTime =
  new Date(Date.now() - 3 * 3600e3 - 60e3 - 500).toISOString()"""


@pytest.mark.parametrize("width", [320, 1280])
async def test_time_since_a_row_grows(desk: Desk, width: int) -> None:
    boss = await desk.site.join("boss")
    page = await desk.show("timeline", viewport={"width": width, "height": 700})
    await expect(page.locator("#rows")).to_contain_text("boss came")
    await boss.chat("This row comes by itself.")
    row = page.locator("#rows > .row", has_text="This row comes by itself.")
    await expect(row.locator("time[data-ago]")).to_have_text(re.compile("just now|ago$"))
    # As if the page had been open for hours; it may draw the row anew when its stream begins.
    while await row.locator("time[data-ago]").inner_text() != "3 h 1 min ago":
        await row.evaluate(AGED)
        await page.evaluate("new Promise(requestAnimationFrame)")
    clock, since = row.locator(".when time").first, row.locator(".when time").last
    tops = [box["y"] for each in (clock, since) if (box := await each.bounding_box())]
    assert tops[0] == tops[1], "they stand in one line"
    assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


async def test_row_that_comes_while_the_page_is_drawn_anew_stays(desk: Desk) -> None:
    boss = await desk.site.join("boss")
    page = await desk.show("timeline")
    rows = page.locator("#rows")
    while "before" not in await rows.inner_text():
        await boss.chat("before")  # until the stream has begun
    loaded, come = anyio.Event(), anyio.Event()

    async def hold(route: Route) -> None:
        answer = await route.fetch()
        loaded.set()
        await come.wait()
        await route.fulfill(response=answer)

    await page.route("**/timeline?tone=chat", hold)
    await page.get_by_label("Kind").select_option("chat")
    await loaded.wait()
    await boss.chat("while it is drawn")
    await expect(rows).to_contain_text("while it is drawn")
    come.set()
    # Rows that are filtered are hidden at once, and leave when the page is drawn.
    await expect(rows.locator("> .row[hidden]")).to_have_count(0)
    await page.evaluate("new Promise(requestAnimationFrame)")
    await expect(rows).to_contain_text("while it is drawn")


async def test_cut_head_of_a_column_has_its_whole_name(desk: Desk) -> None:
    for each in ("boss", "proposer", "tools", "looker", "reviewer", "voter", "other"):
        await desk.site.join(each)
    page = await desk.show("timeline", viewport={"width": 640, "height": 700})
    cut = page.locator(".names span", has_text="reviewer")
    await expect(cut).to_have_attribute("title", "reviewer")
