"""The health page while it is open: its plots grow, in each light and at each width."""

import pytest
from playwright.async_api import expect

from meup_agent.errors import MeupError
from meup_agent.gateway.console.pages import health
from tests.console_browser.axe import violations
from tests.console_browser.check_pages import LOOKS
from tests.console_browser.conftest import Desk
from tests.console_browser.pictures import picture


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
async def test_plots_are_seen(desk: Desk, monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    monkeypatch.setattr(health, "SAMPLE_SECONDS", 0.0)
    looker, boss = await desk.site.join("looker"), await desk.site.join("boss")
    page = await desk.show("health", **LOOKS[look])
    for each in range(6):
        for _ in range(each % 3):
            with pytest.raises(MeupError):
                await looker.request("tools", "tools/list", {})
        await boss.chat("x" * 2_000 * each)
        await page.reload()
    await expect(page.locator(".plots .plot polyline")).to_have_count(6)
    trend = page.locator(".trend svg").first
    await expect(trend.locator("polyline")).to_be_visible()
    box = await trend.bounding_box()
    assert box is not None
    assert box["width"] >= 60, "a plot that is narrower shows nothing"
    assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert await violations(page) == []
    await picture(page, f"plots-{look}")
    await trend.scroll_into_view_if_needed()
    await picture(page, f"drops-{look}")


async def test_plots_are_drawn_anew(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SAMPLE_SECONDS", 0.0)
    page = await desk.show("health")
    journal = page.get_by_role("img", name="Size of the journal")
    assert "measured while this page is open" in (await journal.get_attribute("aria-label") or "")
    # The page asks again by itself.
    await expect(journal.locator("polyline")).to_have_count(1)
    assert "at most" in (await journal.get_attribute("aria-label") or "")
