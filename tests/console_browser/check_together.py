"""Twenty calls at once in a browser: marks, groups, and the keys that it takes."""

import re

import pytest
from playwright.async_api import Page, expect

from meup_agent import Fulfillment, ProposalHandle, Rejection
from tests.console_browser.axe import violations
from tests.console_browser.conftest import Desk, card, settled, stop_clock
from tests.console_browser.pictures import picture
from tests.interaction.people import ended

MOST_KEYS = 25


class Keys:
    """The keyboard of a page, which counts."""

    def __init__(self, page: Page) -> None:
        self.page, self.count = page, 0

    async def press(self, *keys: str) -> None:
        for each in keys:
            self.count += 1
            await self.page.keyboard.press(each)


async def wait_for(page: Page, rows: int) -> None:
    await expect(page.locator("#queue li")).to_have_count(rows)
    await expect(page.locator("#queue li.danger")).to_have_count(0)


async def test_twenty_mixed_calls_take_few_keys(desk: Desk) -> None:
    site = desk.site
    proposer = await site.proposer()
    boss = await site.join("boss")
    proposals: list[ProposalHandle] = []
    for number in range(10):
        proposals.append(await site.propose(proposer, {"path": f"{number}.md", "text": "hello"}))
        if number % 2:
            send = {"to": f"ann{number}", "copies": 1}
            proposals.append(await site.propose(proposer, send, tool="send_report"))
            send = {"path": f"boss{number}", "text": "x"}
            proposals.append(await site.propose(boss, send))
    page = await desk.open()
    await wait_for(page, 20)
    keys = Keys(page)
    await picture(page, "queue-grouped")
    assert await violations(page) == []
    left = 20
    for _ in range(2):
        await settled(page)
        await keys.press("X")
        # Which group comes first depends on which of the cards was shown first.
        await expect(page.locator("#unmark")).to_be_visible()
        left -= await page.locator("#queue input:checked").count()
        assert await violations(page) == []
        await keys.press("a")
        await expect(page.locator("#marked #approve")).to_be_visible()
        await settled(page)
        assert await violations(page) == []
        await picture(page, f"together-{left}")
        await stop_clock(page)
        await keys.press("a")
        # What is longer than the screen takes the key twice.
        await expect(page.locator(".notice")).to_contain_text(re.compile("not seen all|Approved"))
        if await page.locator(".notice.plain").count():
            await keys.press("a")
        await wait_for(page, left)
    assert left in (5, 10)
    await picture(page, "together-outcomes")
    while left:
        await settled(page)
        await keys.press("a")
        left -= 1
        await wait_for(page, left)
    for each in proposals:
        assert isinstance(await each.outcome(), Fulfillment)
    assert keys.count <= MOST_KEYS
    assert len(site.ran) == 20


async def test_marks_outlive_a_page_and_go_with_what_left(desk: Desk) -> None:
    proposer = await desk.site.proposer()
    made = [await desk.site.propose(proposer, {"path": f"{number}.md"}) for number in range(6)]
    page = await desk.open()
    await wait_for(page, 6)
    boxes, marked = page.locator("#queue input"), page.locator("#queue input:checked")
    # By key: marked, and on to the next.
    await page.keyboard.press("x")
    await card(page, "1.md")
    await expect(marked).to_have_count(1)
    # By mouse: a range, after which keys are keys.
    await boxes.nth(1).click()
    await boxes.nth(4).click(modifiers=["Shift"])
    await expect(marked).to_have_count(5)
    await made[4].withdraw()
    await wait_for(page, 5)
    await expect(marked).to_have_count(4)
    made.append(await desk.site.propose(proposer, {"path": "late.md", "text": "late"}))
    await wait_for(page, 6)
    await expect(marked).to_have_count(4)
    await page.keyboard.press("X")
    await expect(marked).to_have_count(6)
    await page.keyboard.press("X")
    await expect(marked).to_have_count(0)
    await boxes.nth(0).click()
    await expect(page.locator("#together")).to_have_text("Look at the one marked")
    await page.click("#unmark")
    await expect(page.locator("#mark-form")).to_be_hidden()


async def test_what_is_approved_alone_is_said(desk: Desk) -> None:
    proposer = await desk.site.proposer()
    for path in ("a.md", "b.md", "safe\u202egpj.exe"):
        await desk.site.propose(proposer, {"path": path}, to="you")
    page = await desk.open()
    await card(page, "a.md")
    await expect(page.locator("#queue li.danger")).to_have_count(1)
    await page.keyboard.press("e")
    await page.locator("#fields-form textarea").first.fill("mine.md")
    await page.keyboard.press("Escape")
    await page.keyboard.press("X")
    await page.keyboard.press("a")
    await expect(page.locator("#call .why")).to_have_count(2)
    await expect(page.locator("#call .why").first).to_contain_text("you have begun to edit it")
    await expect(page.locator("#call .why").last).to_contain_text("marked as dangerous")
    assert await violations(page) == []
    await picture(page, "together-alone")
    await settled(page)
    await page.keyboard.press("a")
    await wait_for_ran(page, desk, ["b.md"])
    # What was left out is marked no more.
    await expect(page.locator("#queue li")).to_have_count(2)
    await expect(page.locator("#queue input:checked")).to_have_count(0)


async def wait_for_ran(page: Page, desk: Desk, paths: list[str]) -> None:
    await expect(page.locator(".notice").first).to_contain_text("Approved: 1 of 1.")
    assert [each["path"] for each in desk.site.ran] == paths


@pytest.mark.parametrize("script", [True, False])
async def test_all_are_rejected_by_keys_or_without_a_script(desk: Desk, script: bool) -> None:
    proposer = await desk.site.proposer()
    made = [
        await desk.site.propose(proposer, {"path": f"{number}.md"}, to="you") for number in range(3)
    ]
    page = await desk.open(java_script_enabled=script)
    await expect(page.locator("#queue li")).to_have_count(3)
    if script:
        await card(page, "0.md")
        await page.keyboard.press("X")
        await page.keyboard.press("r")
        await expect(page.locator("#marked")).to_be_visible()
        await settled(page)
        await page.keyboard.press("r")
        await page.keyboard.press("Enter")
    else:
        for box in await page.locator("#queue input").all():
            await box.check()
        await page.click("#together")
        await page.click("#rejecting summary")
        await page.click("#reject")
    for each in made:
        assert (await ended(each, Rejection)).reason == "disagree"
    await expect(page.locator(".notice")).to_contain_text("Rejected: 3 of 3.")
    await expect(page.locator("#card-title")).to_contain_text("Nothing waits for you")
