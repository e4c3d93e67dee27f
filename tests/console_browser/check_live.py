"""Live parts: one stream for all tabs, the timeline, and a crowd of proposals."""

import re

import pytest
from playwright.async_api import Page, expect

from tests.console_browser.axe import violations
from tests.console_browser.conftest import Desk


@pytest.mark.parametrize("secure", [True, False], ids=["locks", "no locks"])
async def test_eight_tabs_share_one_stream(desk: Desk, *, secure: bool) -> None:
    await desk.site.tools()
    first = await desk.open()
    if not secure:
        # As on a page that came over plain HTTP from another machine.
        without = "Object.defineProperty(navigator, 'locks', {value: undefined})"
        await first.context.add_init_script(without)
        await first.reload()
    tabs = [first, *[await desk.tab(first.context) for _ in range(7)]]
    for page in tabs[1:]:
        await page.goto(f"{desk.url}/inbox")
    proposer = await desk.site.join("proposer")
    proposal = await desk.site.propose(proposer)
    for page in tabs:
        await expect(page.locator("#call")).to_contain_text("a.md")
    await desk.streams()
    # Each page says how many wait, whichever it is.
    other = await desk.tab(first.context)
    await other.goto(f"{desk.url}/health")
    await expect(other).to_have_title("(1) Health · meup")
    tabs.append(other)
    # The tab that holds the stream goes, and another one takes it over.
    await first.close()
    await proposal.withdraw()
    for page in tabs[1:]:
        await expect(page.locator("#badge")).to_be_hidden()
        await expect(page).to_have_title(re.compile(r"^\w+ · meup$"))
    await desk.streams()


LEASE = "Object.keys(localStorage).find((each) => each.endsWith(' stream'))"
"""The place in storage where a tab says that it has the stream."""


async def test_stream_of_a_killed_tab_is_taken_over(desk: Desk) -> None:
    first, second = await two_tabs_without_locks(desk)
    said = await first.evaluate(f"localStorage[{LEASE}]")
    await first.close()
    # One that is killed cannot take back what it said.
    await second.wait_for_function(f"(said) => (localStorage[{LEASE}] ?? said) !== said", arg=said)
    await second.evaluate(f"(said) => localStorage[{LEASE}] = said", said)
    taken = "JSON.parse(now).id !== JSON.parse(said).id"
    await second.wait_for_function(
        f"(said) => {{ const now = localStorage[{LEASE}]; return {taken}; }}", arg=said
    )
    await desk.site.propose(await desk.site.proposer())
    await expect(second.locator("#call")).to_contain_text("a.md")


async def test_stream_stays_with_a_hidden_tab_that_answers(desk: Desk) -> None:
    _, second = await two_tabs_without_locks(desk)
    said = f"JSON.parse(localStorage[{LEASE}])"
    holder = await second.evaluate(f"{said}.id")
    await second.evaluate(f"localStorage[{LEASE}] = JSON.stringify({{...{said}, until: 0}})")
    found = await second.wait_for_function(
        f"() => {{ const now = {said}; return now.until > Date.now() && now.id; }}"
    )
    assert await found.json_value() == holder


async def two_tabs_without_locks(desk: Desk) -> tuple[Page, Page]:
    """A hidden tab, which has the stream and whose timers stand still, and one beside it."""
    first = await desk.open()
    await first.goto("about:blank")
    without = "Object.defineProperty(navigator, 'locks', {value: undefined});"
    await first.context.add_init_script(without)
    await first.add_init_script(
        "Object.defineProperty(document, 'hidden', {value: true}); window.setInterval = () => 0;"
    )
    await first.goto(f"{desk.url}/inbox")
    await desk.streams()
    second = await desk.tab(first.context)
    await second.goto(f"{desk.url}/inbox")
    await expect(second.locator("main")).to_contain_text("Nothing waits for you")
    return first, second


async def test_timeline_is_live_filtered_and_paused(desk: Desk) -> None:
    boss = await desk.site.join("boss")
    page = await desk.show("timeline")
    await boss.chat("good morning")
    await expect(page.locator("#rows")).to_contain_text("good morning")
    await page.click("#pause")
    await boss.chat("while you were away")
    await expect(page.locator("#held")).to_contain_text("wait")
    await expect(page.locator("#rows")).not_to_contain_text("while you were away")
    await page.click("#pause")
    await expect(page.locator("#rows")).to_contain_text("while you were away")
    await page.select_option("[name=tone]", "reject")
    await expect(page.locator("#rows .row:visible")).to_have_count(0)


async def test_rows_are_filtered_by_the_state_of_their_proposal(desk: Desk) -> None:
    proposer = await desk.site.proposer()
    page = await desk.show("timeline")
    proposal = await desk.site.propose(proposer, {"path": "a.md"})
    chip = page.locator("#rows .t-proposal .state")
    await expect(chip).to_have_text("pending")
    rows = page.locator("#rows .row:visible")
    await page.get_by_label("Its proposal is").select_option("withdrawn")
    await expect(rows).to_have_count(0)
    # The rows of a proposal come and go with its state.
    await proposal.withdraw()
    await expect(rows).to_have_count(2)
    await expect(chip).to_have_text("withdrawn")
    await page.get_by_label("Its proposal is").select_option("pending")
    await expect(rows).to_have_count(0)
    await page.reload()
    await expect(page.get_by_label("Its proposal is")).to_have_value("pending")
    await expect(rows).to_have_count(0)


async def test_thoughts_come_into_one_folded_row(desk: Desk) -> None:
    page = await desk.show("timeline")
    start = {"kind": "reasoning/start", "id": "t", "payload": {"message": "Where to begin?"}}
    await desk.site.post("boss", start)
    row = page.locator("#rows [id^=group-]")
    await expect(row).to_contain_text("begins to think Where to begin?")
    for number in (1, 2):
        thought = {
            "kind": "reasoning/thought",
            "context": "t",
            "payload": {"message": f"{number}."},
        }
        await desk.site.post("boss", thought)
        await expect(row.locator("summary")).to_contain_text(f"thinks {number}.")
    await expect(row).to_have_count(1)
    await expect(row.locator("summary")).to_contain_text("(3 in all)")
    await expect(row.locator(".parts")).to_be_hidden()
    await row.locator("summary").click()
    await expect(row.locator(".parts li")).to_have_count(3)
    assert await violations(page) == []


async def test_cancel_chain_has_a_colour_of_its_own(desk: Desk) -> None:
    await desk.site.join("tools")
    call = {"method": "tools/call", "params": {"name": "write_file", "arguments": {}}}
    cancelled = {"method": "notifications/cancelled", "params": {"requestId": "r"}}
    for who, said in (
        ("proposer", {"kind": "mcp/proposal", "id": "p", "payload": call}),
        (
            "boss",
            {"kind": "mcp/request", "id": "r", "to": ["tools"], "correlation_id": ["p"],
             "payload": {"jsonrpc": "2.0", "id": 1, **call}},
        ),
        (
            "boss",
            {"kind": "mcp/request", "id": "c", "to": ["tools"],
             "payload": {"jsonrpc": "2.0", **cancelled}},
        ),
    ):  # fmt: skip
        await desk.site.post(who, {"protocol": "meup/v0.1", **said})
    page = await desk.show("timeline")
    stroke = "each => getComputedStyle(each).stroke"
    colors = {
        tone: await page.locator(f"#rows .t-{tone} .arrow").first.evaluate(stroke)
        for tone in ("proposal", "request", "cancel")
    }
    assert len(set(colors.values())) == 3, colors
    cancel = page.locator("#rows .t-cancel")
    await expect(cancel).to_contain_text("boss cancels")
    thread = await cancel.get_attribute("data-thread")
    assert thread
    assert await page.locator("#rows .t-proposal").get_attribute("data-thread") == thread


async def test_older_rows_come_by_scrolling(desk: Desk) -> None:
    boss = await desk.site.join("boss")
    for number in range(150):
        await boss.chat(f"message {number}.")
    page = await desk.show("timeline")
    await expect(page.locator("#rows")).to_contain_text("message 149.")
    await page.locator("#older").scroll_into_view_if_needed()
    await expect(page.locator("#rows")).to_contain_text("message 0.")
    # Filtered as well: what passes no filter is not loaded.
    await page.get_by_label("Kind").select_option("system")
    await expect(page.locator("#rows")).not_to_contain_text("message")
    await expect(page.locator("#older")).to_contain_text("where the journal begins")


async def test_proposal_page_follows_its_proposal(desk: Desk) -> None:
    proposal = await desk.site.propose(await desk.site.proposer())
    page = await desk.open()
    await page.click("text=Its whole story")
    await expect(page.locator(".state")).to_have_text("pending")
    await proposal.withdraw()
    await expect(page.locator(".state")).to_have_text("withdrawn")
