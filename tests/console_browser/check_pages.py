"""Each page in each light, at each width: accessible, whole, and silent."""

from typing import Any

import anyio.lowlevel
import pytest
from playwright.async_api import Page, expect

from tests.console_browser.axe import violations
from tests.console_browser.conftest import Desk, settled
from tests.console_browser.pictures import picture
from tests.gateway.console.conftest import PLAIN_PAGES

LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 320, "height": 640}},
    # 200 % of 1,280 points: half as many.
    "zoomed": {"viewport": {"width": 640, "height": 450}, "device_scale_factor": 2},
    "calm": {"reduced_motion": "reduce", "forced_colors": "active"},
}

READ = ("light", "dark", "phone")
"""Looks that are looked through by axe; it finds the same in the others, and cannot tell contrasts
where the system chooses the colours."""

LONG = "a/very/long/path/without/a/blank/" * 8


TOP = """(selector) => document.querySelector(selector).getBoundingClientRect().top"""


async def fill(desk: Desk) -> None:
    site = desk.site
    tools = await site.tools()
    proposer = await site.join("proposer")
    taken = await site.propose(proposer, {"path": "docs/old.md", "text": "First line"})
    while not tools.proposals:
        await anyio.lowlevel.checkpoint()
    await taken.withdraw()
    await site.propose(proposer, {"path": "docs/plan.md", "text": "First line\nSecond line"})
    await site.propose(proposer, {"path": LONG, "text": "safe\u202egpj.exe"})
    for said in (
        {"kind": "reasoning/start", "id": "t", "payload": {"message": "Is this plan complete?"}},
        {"kind": "reasoning/thought", "context": "t", "payload": {"message": "Dates are missing"}},
    ):
        await site.post("boss", said)
    await proposer.chat("I am done with the first part.")


async def assert_good(page: Page, name: str) -> None:
    """Nothing is wider than the screen, and what axe can see is accessible."""
    width = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert width <= 0, "it must be scrolled sideways"
    if name.rpartition("-")[2] in READ:
        assert await violations(page) == [], name
    await picture(page, name)


@pytest.mark.parametrize("look", LOOKS)
async def test_each_page(desk: Desk, look: str) -> None:
    await fill(desk)
    page = await desk.open("boss", **LOOKS[look])
    # What its tool says of itself draws the card anew.
    await expect(page.locator("#card")).to_contain_text("Writes a file")
    await settled(page)
    await assert_good(page, f"inbox-{look}")
    await page.keyboard.press("f")
    await page.wait_for_selector("#file-title")
    await assert_good(page, f"file-{look}")
    await page.keyboard.press("f")
    await settled(page)
    await page.click("#edit-summary")
    await assert_good(page, f"edit-{look}")
    await page.click("#yes")
    # A pattern is read line by line, and each choice stands beside its words.
    await expect(page.locator(".scope").first).to_contain_text("path: docs/plan.md\ntext:")
    await expect(page.locator(".scope .mark")).to_have_count(0)
    await assert_good(page, f"yes-{look}")
    await page.go_back()
    for path in PLAIN_PAGES[1:]:  # behind the inbox
        await page.goto(f"{desk.url}{path}")
        await page.wait_for_selector("h1")
        await assert_good(page, f"{path[1:]}-{look}")
    await page.goto(f"{desk.url}/timeline")
    await page.click("#rows .t-withdraw a:has-text('proposal')")
    await page.wait_for_selector("#chain")
    await assert_good(page, f"proposal-{look}")
    await page.click(".steps a")
    await page.wait_for_selector("h1:has-text('Envelope')")
    await assert_good(page, f"envelope-{look}")
    await page.goto(f"{desk.url}/participants/try?who=proposer&deed=call&tool=write_file")
    await assert_good(page, f"try-{look}")
    await page.goto(f"{desk.url}/inbox/{'0' * 24}")
    await assert_good(page, f"missing-{look}")
    desk.expect("404")
    await page.goto(f"{desk.url}/proposals/{'0' * 24}")
    await assert_good(page, f"problem-{look}")


@pytest.mark.parametrize(
    ("path", "first"),
    [("timeline", "#rows"), ("participants", "#people, #try"), ("health", ".figure")],
)
async def test_first_screen_shows_what_a_page_is_for(desk: Desk, path: str, first: str) -> None:
    await fill(desk)
    page = await desk.open("boss", viewport={"width": 320, "height": 640})
    await page.goto(f"{desk.url}/{path}")
    assert await page.evaluate(TOP, first) < 600
    words = page.locator(".terms em").first
    await expect(words).to_be_hidden()
    await page.click(".terms summary")
    await expect(words).to_be_visible()
    assert await violations(page) == []
    await page.reload()
    # Where most of the screen is left they need no opening.
    await page.set_viewport_size({"width": 1280, "height": 1000})
    await expect(words).to_be_visible()
    await expect(page.locator(".terms summary")).to_be_hidden()


@pytest.mark.parametrize("look", LOOKS)
async def test_signing_in(desk: Desk, look: str) -> None:
    desk.expect("401", "Clear-Site-Data")
    page = await desk.open("looker", **LOOKS[look])
    await page.wait_for_selector("text=Nothing waits for you")
    await assert_good(page, f"empty-{look}")
    await page.click("text=Sign out")
    await page.wait_for_selector("#token")
    await assert_good(page, f"sign-in-{look}")
    await page.fill("#token", "wrong")
    await page.press("#token", "Enter")
    await page.wait_for_selector("[role=alert]")
    await assert_good(page, f"refused-{look}")
    link = desk.site.console.sign_in_link(desk.url, desk.site.token("you"))
    await page.goto(link)
    await assert_good(page, f"link-{look}")
