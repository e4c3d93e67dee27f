"""Without JavaScript: every list, and every decision."""

from playwright.async_api import expect

from meup_agent import Fulfillment, Rejection
from meup_agent.gateway.console.timeline import PAGE_ROWS
from tests.console_browser.conftest import Desk
from tests.interaction.people import ended


async def test_decisions(desk: Desk) -> None:
    desk.expect("status of 400")
    site = desk.site
    proposer = await site.proposer()
    given = {"to": "ann", "copies": 2}
    refused = await site.propose(proposer, {"path": "no.md"}, to="you")
    edited = await site.propose(proposer, given, tool="send_report")
    approved = await site.propose(proposer, {"path": "yes.md"})
    page = await desk.open(java_script_enabled=False)
    await expect(page.locator("#queue li")).to_have_count(3)
    await page.click("#rejecting summary")
    await page.locator("#reason").select_option("disagree")
    await page.locator("#words").fill("not this one")
    await page.click("#reject")
    outcome = await ended(refused, Rejection)
    assert (outcome.by, outcome.reason) == ("you", "disagree")
    # The outcome may be known here before the page of the next proposal has come.
    await expect(page.locator("#call")).to_contain_text("copies")
    await page.click("#edit-summary")
    await page.get_by_label("copies").fill("many")
    await page.click("#fields-form button")
    await expect(page.locator("#field-1-problem")).to_contain_text("not JSON")
    await expect(page.get_by_label("copies")).to_have_value("many")
    await page.get_by_label("copies").fill("1")
    await page.click("#fields-form button")
    await expect(page.locator("#seen-form")).to_contain_text("arguments.copies")
    await page.click("#send-edit")
    assert isinstance(await edited.outcome(), Fulfillment)
    await expect(page.locator("#call")).to_contain_text("yes.md")
    await page.click("#approve")
    assert isinstance(await approved.outcome(), Fulfillment)
    await expect(page.locator("h1")).to_have_text("Nothing waits for you")
    assert [each.get("copies", each.get("path")) for each in site.ran] == [1, "yes.md"]


async def test_lists(desk: Desk) -> None:
    boss = await desk.site.join("boss")
    for number in range(PAGE_ROWS + 5):
        await boss.chat(f"message {number}.")
    page = await desk.open("boss", java_script_enabled=False)
    await page.click("nav >> text=Timeline")
    await expect(page.locator("#rows")).to_contain_text(f"message {PAGE_ROWS}.")
    await page.click("#older a")
    await expect(page.locator("#rows")).to_contain_text("message 0.")
    await page.get_by_label("Kind").select_option("system")
    await page.click("#filters button")
    await expect(page.locator("#rows .t-system").first).to_be_visible()
    await expect(page.locator("#rows .t-chat")).to_have_count(0)
    await page.click("#rows a:has-text('envelope')")
    await expect(page.locator("h1")).to_contain_text("Envelope")
    await page.click("nav >> text=Participants")
    await page.locator(".person", has_text="looker").locator(".manage summary").click()
    await (
        page.get_by_label("Grant a capability")
        .locator("visible=true")
        .fill('{"kind": "mcp/reject"}')
    )
    await page.get_by_role("button", name="Grant", exact=True).locator("visible=true").click()
    await expect(page.locator(".notice")).to_contain_text("looker may now reject proposals.")
    await page.click("nav >> text=Health")
    await expect(page.locator(".plots .plot")).to_have_count(6)
    desk.expect("Clear-Site-Data")
    await page.click("text=Sign out")
    await expect(page.locator("#token")).to_be_visible()
