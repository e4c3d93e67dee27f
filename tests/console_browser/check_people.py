"""Managing a space and voting, in browsers."""

import re

from playwright.async_api import expect

from meup_agent import Fulfillment
from tests.console_browser.axe import violations
from tests.console_browser.conftest import Desk
from tests.gateway.console.test_voting import POLICY
from tests.interaction.people import ended


async def test_grant_try_revoke_invite_and_remove(desk: Desk) -> None:
    page = await desk.show("participants", "boss")
    card = page.locator(".person", has=page.locator("h2", has_text="looker"))
    await card.locator(".manage summary").click()
    await card.get_by_label("Grant a capability").fill('{"kind": "mcp/reject"}')
    await card.get_by_role("button", name="Grant", exact=True).click()
    await expect(page.locator(".notice")).to_contain_text("looker may now reject proposals.")
    await expect(card.locator(".may")).to_contain_text("reject proposals")

    await page.locator("form.line [name=who]").first.select_option("looker")
    await page.locator("[name=deed]").select_option("reject")
    await page.get_by_role("button", name="Try").click()
    await expect(page.locator(".answer")).to_contain_text("Yes. looker may reject a proposal")
    assert await violations(page) == []

    await card.get_by_text("pattern of reject proposals").click()
    await card.locator("li", has_text="reject proposals").get_by_role("button").click()
    await expect(page.locator(".notice")).to_contain_text("may no longer reject proposals")

    await card.locator(".manage summary").click()
    await card.get_by_label("Remove: type its name").fill("somebody else")
    desk.expect("status of 400")
    await card.get_by_role("button", name="Remove").click()
    await expect(page.locator("[role=alert]")).to_contain_text("nothing was done")
    assert await violations(page) == []
    await page.goto(f"{desk.url}/participants")
    await card.locator(".manage summary").click()
    await card.get_by_label("Remove: type its name").fill("looker")
    await card.get_by_role("button", name="Remove").click()
    await expect(page.locator(".notice")).to_contain_text("looker was removed")
    await expect(card).to_have_count(0)

    await page.get_by_label("Name", exact=True).fill("newcomer")
    await page.get_by_label("First capability").fill('{"kind": "chat"}')
    await page.get_by_role("button", name="Invite").click()
    await expect(page.locator("h1")).to_have_text("newcomer is invited")
    assert await violations(page) == []
    token = (await page.locator("pre").inner_text()).strip()
    other = await desk.open(token=token)
    await expect(other.locator(".you")).to_contain_text("newcomer")


async def test_vote_of_two_in_two_browsers(desk: Desk) -> None:
    site = desk.site
    await site.review(POLICY)
    proposal = await site.propose(await site.proposer())
    you, voter = await desk.open("you"), await desk.open("voter")
    for page in (you, voter):
        await expect(page.locator(".grounds")).to_contain_text("four eyes of reviewer: 2 votes of")
        await expect(page.locator("#vote")).to_be_visible()
    # A rule that counts votes is not gone past.
    await expect(you.locator("#approve")).to_have_count(0)
    await you.fill("#vote-words", "fine with me")
    await you.locator("#vote").focus()
    await you.keyboard.press("v")
    await expect(you.locator("#vote")).to_be_focused()
    await you.keyboard.press("Enter")
    said = "You voted for write_file of proposer: it has 1 of the 2 votes that it takes."
    await expect(you.locator(".notice")).to_contain_text(said)
    await expect(you.locator("#my-vote")).to_contain_text("You voted for it.")
    await expect(you.locator("#vote-words")).to_have_value("")
    await expect(voter.locator("#votes")).to_contain_text("you for it")
    await expect(voter.locator("#votes")).to_contain_text("Not yet: voter")
    assert site.ran == []
    assert await violations(voter) == []
    await voter.get_by_role("button", name="Vote for it").click()
    await expect(voter.locator(".notice")).to_contain_text("the votes are enough")
    assert (await ended(proposal, Fulfillment)).by == "reviewer"
    await expect(you.locator("#count")).to_have_text("0")
    await expect(you.locator("main")).to_contain_text("Approved by reviewer, as the votes say.")


async def test_yes_that_another_person_ends(desk: Desk) -> None:
    _, you = await desk.asked()
    await you.keyboard.press("s")
    boss = await desk.show("yeses", "boss")
    await expect(boss.locator("#yeses")).to_contain_text("There are none")
    await you.locator("#give-yes").click()
    await expect(boss.locator("#yeses")).to_contain_text("Given by you, for calls by proposer.")
    await you.goto(f"{desk.url}/yeses")
    await expect(you.locator("#yeses")).to_contain_text(re.compile("0 of 20 used, .* left"))
    await desk.streams(2)
    await boss.get_by_role("button", name="End it").click()
    said = "boss ended the yes of you to calls of write_file by proposer."
    await expect(you.locator(".notice")).to_contain_text(said)
    await expect(you.locator("#yeses")).to_contain_text("There are none")
