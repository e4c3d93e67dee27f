"""Each decision in a browser, by mouse and by key, with others beside and things going wrong."""

import re
from functools import partial

import pytest
from playwright.async_api import Page, expect

from meup_agent import Fulfillment, Rejection
from meup_agent.gateway.console.sign_in import SESSION_IDLE, BrowserSessions, FormSeals
from tests.console_browser.axe import violations
from tests.console_browser.conftest import Desk, before_the_stream, card, settled, stop_clock
from tests.console_browser.pictures import picture
from tests.interaction.people import ended


async def begin_edit(page: Page, arguments: str) -> None:
    await page.click("#edit-summary")
    if not await page.locator("#json-form").is_visible():
        await page.click("text=Arguments as JSON")
    await page.fill("#arguments", arguments)


async def test_approve_with_one_key(desk: Desk) -> None:
    proposal, page = await desk.asked()
    await page.keyboard.press("a")
    assert (await ended(proposal, Fulfillment)).by == "you"
    await expect(page.locator("main")).to_contain_text("Approved: write_file ran: written")
    await expect(page.locator("main")).to_contain_text("Nothing waits for you")
    assert await violations(page) == []
    await page.get_by_role("link", name="Look at it").click()
    await expect(page.locator("#chain")).to_contain_text("Result")


async def test_long_call_takes_the_key_twice(desk: Desk) -> None:
    proposal, page = await desk.asked("line\n" * 900)
    await stop_clock(page)
    await page.keyboard.press("a")
    await expect(page.locator("main")).to_contain_text("You have not seen all of the call")
    assert desk.site.ran == []
    await page.keyboard.press("a")
    assert isinstance(await proposal.outcome(), Fulfillment)


async def test_edit_and_approve(desk: Desk) -> None:
    proposal, page = await desk.asked()
    await begin_edit(page, '{"path": "b.md"')
    form = page.locator("#json-form")
    await expect(form.locator(".complaint")).to_contain_text("This is not JSON yet")
    await form.locator("button").click()
    await expect(page.locator("#arguments")).to_be_focused()
    await page.fill("#arguments", '{"path": "b.md", "text": "hello"}')
    await form.locator("button").click()
    await expect(page.locator("#seen-form")).to_contain_text("arguments.path")
    assert desk.site.ran == []
    assert await violations(page) == []
    await page.click("#send-edit")
    await ended(proposal, Fulfillment)
    assert desk.site.ran == [{"path": "b.md", "text": "hello"}]


async def test_edit_is_checked_against_the_schema_while_it_is_typed(desk: Desk) -> None:
    desk.expect("status of 400")
    given = {"to": "ann@example.org", "copies": 2}
    proposal = await desk.site.propose(await desk.site.proposer(), given, tool="send_report")
    page = await desk.open()
    await card(page, "ann@example.org")
    await page.keyboard.press("e")
    copies = page.get_by_label("copies")
    await copies.fill("1.5")
    await expect(page.locator("#field-1-problem")).to_contain_text("should be integer, not number")
    await expect(copies).to_have_attribute("aria-invalid", "true")
    assert await violations(page) == []
    # What does not fit is not sent, and stays as it was typed.
    await page.click("#fields-form button")
    await expect(page.locator("[role=alert]")).to_contain_text("cannot be sent yet")
    await expect(copies).to_have_value("1.5")
    await copies.fill("3")
    await expect(page.locator("#field-1-problem")).to_be_hidden()
    await page.get_by_label("form").select_option("text")
    await page.click("#fields-form button")
    changes = page.locator("#seen-form")
    await expect(changes).to_contain_text("arguments.copies")
    await expect(changes).to_contain_text("arguments.form")
    await expect(copies).to_have_value("3")
    assert desk.site.ran == []
    await page.click("#send-edit")
    assert isinstance(await proposal.outcome(), Fulfillment)
    assert desk.site.ran == [{**given, "copies": 3, "form": "text", "urgent": False}]


async def test_edited_call_is_not_approved_as_it_was_proposed(desk: Desk) -> None:
    proposal, page = await desk.asked()
    await begin_edit(page, '{"path": "b.md", "text": "hello"}')
    await page.keyboard.press("Escape")
    await page.keyboard.press("a")
    await expect(page.locator("main")).to_contain_text("you are editing this call")
    await expect(page.locator("#approve")).to_be_disabled()
    assert await violations(page) == []
    # Nor after a reload, which keeps what was typed.
    await page.reload()
    await expect(page.locator("#arguments")).to_have_value('{"path": "b.md", "text": "hello"}')
    await expect(page.locator("#approve")).to_be_disabled()
    # What changes is shown where the approval was, and the whole call as it will run.
    await page.locator("#json-form button").click()
    await expect(page.locator("#seen-title")).to_be_focused()
    await expect(page.locator("#seen-title")).to_be_in_viewport()
    await expect(page.locator("#call")).to_contain_text("b.md")
    await expect(page.locator("#approve")).to_have_count(0)
    assert desk.site.ran == []
    await settled(page)
    await page.keyboard.press("a")
    assert isinstance(await proposal.outcome(), Fulfillment)
    assert desk.site.ran == [{"path": "b.md", "text": "hello"}]


async def test_edit_is_shown_from_the_note_beside_approve(desk: Desk) -> None:
    _, page = await desk.asked()
    await begin_edit(page, '{"path": "b.md", "text": "hello"}')
    await page.click("#show-edit")
    await expect(page.locator("#seen-title")).to_be_focused()
    await expect(page.locator("#call")).to_contain_text("b.md")
    assert desk.site.ran == []


async def test_dropped_edit_leaves_the_call_as_it_was_proposed(desk: Desk) -> None:
    proposal, page = await desk.asked()
    await begin_edit(page, '{"path": "b.md", "text": "hello"}')
    await page.click("#drop-edit")
    await expect(page.locator("#edited")).to_be_hidden()
    await page.reload()
    await expect(page.locator("#approve")).to_be_enabled()
    # From the page of what changes as well.
    await begin_edit(page, '{"path": "b.md", "text": "hello"}')
    await page.locator("#json-form button").click()
    await page.click("#leave-edit")
    await expect(page.locator("#call")).to_contain_text("a.md")
    await settled(page)
    await page.keyboard.press("a")
    assert isinstance(await proposal.outcome(), Fulfillment)
    assert [each["path"] for each in desk.site.ran] == ["a.md"]


AT_ONCE = """(() => {
  const now = performance.now.bind(performance), begun = now();
  performance.now = () => begun;
  new MutationObserver((_, observer) => {
    observer.disconnect();
    document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "a", bubbles: true}));
    performance.now = now;
  }).observe(document, {subtree: true, attributes: true, attributeFilter: ["aria-disabled"]});
})()"""
"""A key that is pressed before any time has passed since a card was shown."""


async def test_what_has_just_changed_is_not_decided(desk: Desk) -> None:
    proposer = await desk.site.proposer()
    first = await desk.site.propose(proposer)
    second = await desk.site.propose(proposer, {"path": "b.md"})
    page = await desk.open()
    await card(page, "a.md")
    # The same key again, as it is held down or pressed twice, meets the next proposal.
    await page.add_init_script(AT_ONCE)
    await page.keyboard.press("a")
    assert isinstance(await first.outcome(), Fulfillment)
    await expect(page.locator("main")).to_contain_text("this had just changed")
    await settled(page)
    await page.keyboard.press("a")
    assert isinstance(await second.outcome(), Fulfillment)


async def test_edit_of_one_proposal_is_not_that_of_the_next(desk: Desk) -> None:
    proposer = await desk.site.proposer()
    first = await desk.site.propose(proposer)
    await desk.site.propose(proposer, {"path": "b.md", "text": "second"})
    page = await desk.open()
    await card(page, "a.md")
    await first.withdraw()
    await card(page, "b.md")
    await expect(page.locator("#arguments")).to_have_value(re.compile("second"))


async def test_reject_by_keyboard_alone(desk: Desk) -> None:
    proposal, page = await desk.asked(to="you")
    await page.keyboard.press("r")
    await expect(page.locator("#reason")).to_be_focused()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Tab")
    await page.keyboard.type("not this one")
    await page.keyboard.press("Enter")
    outcome = await ended(proposal, Rejection)
    assert (outcome.by, outcome.reason) == ("you", "unsafe")


async def test_words_typed_behind_the_key_that_rejects_are_told(desk: Desk) -> None:
    proposal, page = await desk.asked(to="you")
    await page.keyboard.press("r")
    await page.keyboard.type("it is not safe")
    await expect(page.locator("#words")).to_have_value("it is not safe")
    await page.keyboard.press("Enter")
    outcome = await ended(proposal, Rejection)
    assert (outcome.reason, await outcome.explanation()) == ("disagree", "it is not safe")


async def test_reject_in_haste_accuses_nobody(desk: Desk) -> None:
    proposal, page = await desk.asked(to="you")
    await page.keyboard.press("r")
    await page.keyboard.press("Enter")
    assert (await ended(proposal, Rejection)).reason == "disagree"


SMALL = {"laptop": (1280, 720), "phone": (390, 844), "old phone": (320, 568), "200 %": (640, 360)}


@pytest.mark.parametrize("look", SMALL)
async def test_buttons_are_always_in_view(desk: Desk, look: str) -> None:
    width, height = SMALL[look]
    text = "\n".join(f"line {number}" for number in range(200))
    await desk.site.propose(await desk.site.proposer(), {"path": "a.md", "text": text}, to="you")
    page = await desk.open(viewport={"width": width, "height": height})
    await card(page, "a.md")
    for where in ("0", "document.body.scrollHeight / 4", "300"):
        await page.evaluate(f"scrollTo(0, {where})")
        for button in ("#approve", "#rejecting summary"):
            await expect(page.locator(button)).to_be_in_viewport(ratio=1)
    await page.keyboard.press("r")
    await expect(page.locator("#reject")).to_be_in_viewport(ratio=1)
    assert await violations(page) == []
    await picture(page, f"bar-{look.replace(' ', '-').replace('%', '')}")


async def test_dangerous_call_takes_two_keys(desk: Desk) -> None:
    proposal = await desk.site.propose(await desk.site.proposer(), {"path": "safe\u202egpj.exe"})
    page = await desk.open()
    await expect(page.locator("#sure")).to_be_visible()
    await settled(page)
    await stop_clock(page)
    await page.keyboard.press("a")
    await expect(page.locator(".notice.plain")).to_contain_text("marked as dangerous")
    assert desk.site.ran == []
    await page.keyboard.press("a")
    await proposal.outcome()


async def test_what_is_past_its_time_is_not_clicked(desk: Desk) -> None:
    _, page = await desk.asked()
    await page.evaluate("document.querySelector('#acts').dataset.until = '2020-01-01T00:00:00Z'")
    await expect(page.locator("#approve")).to_be_disabled()
    await page.keyboard.press("a")
    assert desk.site.ran == []


async def test_card_comes_and_goes_by_itself(desk: Desk) -> None:
    proposer = await desk.site.proposer()
    page = await desk.open()
    await expect(page.locator("main")).to_contain_text("Nothing waits for you")
    first = await desk.site.propose(proposer, {"path": "first.md"})
    await card(page, "first.md")
    await expect(page).to_have_title(re.compile(r"^\(1\) Inbox"))
    await expect(page.locator("#live")).to_contain_text("New: proposer proposes write_file")
    await desk.site.propose(proposer, {"path": "second.md"})
    await expect(page.locator("#queue li")).to_have_count(2)
    await first.withdraw()
    await expect(page.locator("#gone")).to_contain_text("Withdrawn by proposer")
    await expect(page.locator("#approve")).to_be_disabled()
    await expect(page.locator("#queue li")).to_have_count(1)
    assert await violations(page) == []
    await card(page, "second.md")
    await expect(page.locator("main")).to_contain_text("The last one left")


async def test_what_came_before_the_stream_began_is_told(desk: Desk) -> None:
    proposer = await desk.site.proposer()
    page = await desk.open()
    await expect(page.locator("main")).to_contain_text("Nothing waits for you")
    # Its first stream is not the one that is kept back.
    await desk.streams()

    await before_the_stream(page, partial(desk.site.propose, proposer, {"path": "early.md"}))
    await page.reload()
    await card(page, "early.md")
    await expect(page.locator("#live")).to_contain_text("New: proposer proposes write_file")


async def test_why_a_card_went_is_told_beside_a_queue_that_is_loaded_anew(desk: Desk) -> None:
    proposed, page = await desk.asked()
    # As when the page and its stream begin at different moments.
    await page.evaluate("document.querySelector('.queue').dataset.version = 'another'")
    await proposed.withdraw()
    await expect(page.locator("#gone")).to_contain_text("Withdrawn by proposer")
    await expect(page.locator("#queue li")).to_have_count(0)


async def test_two_people_at_once(desk: Desk) -> None:
    proposal = await desk.site.propose(await desk.site.proposer())
    you, other = await desk.open("you"), await desk.open("other")
    await card(you, "a.md")
    await card(other, "a.md")
    await desk.streams(2)
    await you.click("#approve")
    await proposal.outcome()
    await expect(other.locator("#gone")).to_contain_text("by you")
    assert len(desk.site.ran) == 1


@pytest.mark.parametrize("key", ["a", "r"])
async def test_a_key_of_a_decision_goes_on_from_a_card_that_another_decided(
    desk: Desk, key: str
) -> None:
    proposer = await desk.site.proposer()
    first = await desk.site.propose(proposer)
    await desk.site.propose(proposer, {"path": "second.md"})
    page = await desk.open("other")
    await card(page, "a.md")
    await desk.streams()
    # No timer takes it away; those that a card needs are shorter.
    await page.evaluate(
        "() => { const set = window.setTimeout;"
        " window.setTimeout = (f, ms, ...all) => ms > 2000 ? 0 : set(f, ms, ...all); }"
    )
    await first.withdraw()
    await expect(page.locator("#gone")).to_contain_text("Withdrawn by proposer")
    await page.keyboard.press(key)
    await card(page, "second.md")
    await expect(page.locator("main")).to_contain_text("The last one left: Withdrawn")
    assert desk.site.ran == []


async def test_edit_survives_reload_neighbour_and_a_killed_gateway(desk: Desk) -> None:
    desk.expect("Failed to load resource", "ERR_", "net::")
    proposer = await desk.site.proposer()
    await desk.site.propose(proposer)
    page = await desk.open()
    await card(page, "a.md")
    typed = '{"path": "mine.md", "text": "typed"}'
    await begin_edit(page, typed)
    await desk.site.propose(proposer, {"path": "neighbour.md"})
    await expect(page.locator("#queue li")).to_have_count(2)
    await expect(page.locator("#arguments")).to_have_value(typed)
    await page.reload()
    await expect(page.locator("#arguments")).to_be_visible()
    await expect(page.locator("#arguments")).to_have_value(typed)
    desk.site.gateway.kill()
    await expect(page.locator("#offline")).to_contain_text("nothing that you typed is lost")
    await expect(page.locator("#arguments")).to_have_value(typed)
    assert await violations(page) == []
    desk.site.gateway.restart()
    await expect(page.locator("#offline")).to_be_hidden()
    await expect(page.locator("#arguments")).to_have_value(typed)


async def test_edit_survives_a_neighbour_that_comes_before_it(desk: Desk) -> None:
    proposer = await desk.site.proposer()
    await desk.site.propose(proposer)
    page = await desk.open()
    await card(page, "a.md")
    await begin_edit(page, '{"path": "mine.md"}')
    urgent = proposer.propose("tools", "write_file", {"path": "urgent.md"}, ttl=60)
    async with urgent:
        await expect(page.locator("#queue li").first).to_contain_text("s left")
        await page.reload()
        await expect(page.locator("#arguments")).to_have_value('{"path": "mine.md"}')


async def test_what_was_typed_is_shown_after_all_else_is_forgotten(desk: Desk) -> None:
    desk.expect("Failed to load resource", "ERR_", "net::")
    proposal, page = await desk.asked()
    await begin_edit(page, '{"path": "mine.md"}')
    desk.site.gateway.kill()
    await expect(page.locator("#offline")).to_contain_text("nothing that you typed is lost")
    # As another process would: it knows no session, and no proposal.
    desk.site.console.sessions = BrowserSessions(desk.site.clock)
    desk.site.console.seals = FormSeals()
    desk.site.gateway.restart()
    await expect(page.locator("#offline")).to_contain_text("You are signed out")
    await proposal.withdraw()
    await page.reload()
    await page.fill("#token", desk.site.token("you"))
    await page.press("#token", "Enter")
    await expect(page.locator("#typed-text")).to_have_value('{"path": "mine.md"}')
    assert await violations(page) == []
    await page.click("#forget")
    await expect(page.locator("#card-title")).to_contain_text("Nothing waits for you")


async def test_words_survive_a_decision_that_was_not_taken(desk: Desk) -> None:
    desk.expect("status of 403")
    _, page = await desk.asked(to="you")
    await page.keyboard.press("r")
    await page.fill("#words", "not this one")
    await page.evaluate("document.querySelector('#reject-form [name=csrf]').value = 'earlier'")
    await page.click("#reject")
    await expect(page.get_by_role("alert")).to_contain_text("what you typed is kept")
    await page.click("text=Back to the proposal")
    await expect(page.locator("#words")).to_have_value("not this one")


async def test_session_that_expires_is_said(desk: Desk) -> None:
    desk.expect("Failed to load resource", "401")
    page = await desk.open()
    await expect(page.locator("main")).to_contain_text("Nothing waits for you")
    desk.site.clock.now += SESSION_IDLE + 1
    await desk.site.propose(await desk.site.proposer())
    await expect(page.locator("#offline")).to_contain_text("signed out")
    assert await violations(page) == []
    await page.reload()
    await page.wait_for_selector("#token")
