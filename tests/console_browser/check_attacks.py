"""Attacks that only a browser can show: frames, forms of other sites, cookies that travel."""

import pytest
from playwright.async_api import Page, Route, expect

from tests.console_browser.conftest import Desk, settled

pytestmark = pytest.mark.anyio


async def elsewhere(desk: Desk, page: Page, html: str) -> None:
    """Show a page of another site."""
    desk.foreign.append("http://evil.example/")

    async def answer(route: Route) -> None:
        await route.fulfill(content_type="text/html", body=html)

    await page.route("http://evil.example/", answer)
    await page.goto("http://evil.example/")


async def test_form_of_another_site_decides_nothing(desk: Desk) -> None:
    await desk.site.tools()
    await desk.site.propose(await desk.site.join("proposer"))
    page = await desk.open()
    await expect(page.locator("#call")).to_contain_text("a.md")
    await settled(page)
    # With all that the page itself would send: as if another site had read it.
    form = await page.locator("#approve-form").evaluate("each => each.outerHTML")
    action = await page.locator("#approve-form").evaluate("each => each.action")
    desk.expect("status of 403")
    await elsewhere(desk, page, form.replace("/console/", f"{desk.url}/"))
    await page.click("button")
    await expect(page).to_have_url(action)
    await expect(page.locator("[role=alert]")).to_contain_text("did not come from a page")
    assert desk.site.ran == []
    await page.goto(f"{desk.url}/inbox")
    await expect(page.locator("#call")).to_contain_text("a.md")


async def test_frame_of_another_site_stays_empty(desk: Desk) -> None:
    page = await desk.open()
    desk.expect("frame-ancestors", "X-Frame-Options", "ERR_BLOCKED_BY_RESPONSE")
    await elsewhere(desk, page, f'<iframe src="{desk.url}/inbox"></iframe>')
    await page.wait_for_load_state("networkidle")
    assert [each.url for each in page.frames[1:]] == ["chrome-error://chromewebdata/"]
    assert "Nothing waits" not in await page.frames[1].content()


async def test_link_of_another_site_carries_no_session(desk: Desk) -> None:
    page = await desk.open()
    await elsewhere(desk, page, f'<a href="{desk.url}/inbox">look</a>')
    await page.click("a")
    await expect(page.locator("#token")).to_be_visible()
    cookies = await page.context.cookies()
    assert all(each.get("httpOnly") and each.get("sameSite") == "Strict" for each in cookies)
    assert await page.evaluate("document.cookie") == ""
