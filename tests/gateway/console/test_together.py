"""Deciding several calls together, without a script."""

import re
from typing import Any

from meup_agent import Fulfillment, Rejection
from tests.gateway.console.conftest import Browser, Site, fields_in
from tests.interaction.people import ended

FILES = ("a.md", "b.md", "c.md")


async def propose_files(site: Site, *paths: str) -> list[Any]:
    proposer = await site.proposer()
    return [await site.propose(proposer, {"path": each}) for each in paths or FILES]


async def look(browser: Browser, *words: str) -> tuple[str, dict[str, str]]:
    """The page of all that wait, marked, and the fields of its approval."""
    page = await browser.page("/inbox", *words, gone="not known yet")
    marks = dict.fromkeys(re.findall(r'name="(m-[0-9a-f]{24})"', page), "yes")
    answer = await browser.post("/inbox", {**fields_in(page, "/inbox"), **marks})
    assert answer.status_code == 200
    return answer.text, fields_in(answer.text, "/inbox", "verb")


async def test_queue_groups_by_tool_and_proposer_and_tells_what_differs(site: Site) -> None:
    proposer = await site.proposer()
    report = {"to": "ann", "copies": 2}
    await site.propose(proposer, {"path": "a.md", "text": "hello"})
    await site.propose(proposer, report, tool="send_report")
    await site.propose(proposer, {"path": "<b>.md", "text": "hello"})
    page = await (await site.browser("you")).page("/inbox", "2 calls", "send_report")
    rows = re.findall(r'(?s)<li id="q-.*?</li>', page)
    assert ["in-group" in each for each in rows] == [False, True, False]
    told = [re.findall(r"<code>(.*?)</code>", each) for each in rows]
    assert told == [["a.md"], ["&lt;b&gt;.md"], ["ann", "2"]]


async def test_all_that_were_shown_are_approved(site: Site) -> None:
    proposals = await propose_files(site)
    browser = await site.browser("you")
    page, fields = await look(browser, *FILES)
    assert "Approve 3" in page
    answer = await browser.post("/inbox", fields)
    assert answer.status_code == 303
    for each in proposals:
        assert (await ended(each, Fulfillment)).by == "you"
    assert [each["path"] for each in site.ran] == [*FILES]
    said = await browser.page()
    assert "Approved: 3 of 3." in said
    assert said.count("write_file ran: written") == 3
    # A second time nothing is done.
    assert (await browser.post("/inbox", fields)).status_code == 303
    assert "Approved: 0 of 3. 3 failed, or were not done." in await browser.page()
    assert len(site.ran) == 3


async def test_what_is_not_as_it_was_shown_is_left(site: Site) -> None:
    await propose_files(site, "a.md", "b.md")
    browser = await site.browser("you")
    _, fields = await look(browser, "a.md", "b.md")
    first, second = (each for each in fields if each.startswith("d-"))
    await browser.post("/inbox", {**fields, first: fields[second]})
    said = await browser.page()
    assert "Approved: 1 of 2." in said
    assert "another one than you were shown" in said
    assert [each["path"] for each in site.ran] == ["b.md"]


async def test_dangerous_call_is_left_out_and_said_so(site: Site) -> None:
    await propose_files(site, "a.md", "safe\u202egpj.exe")
    browser = await site.browser("you")
    page, fields = await look(browser, "a.md", "safe")
    assert "1 of them is approved alone" in re.sub("<[^>]*>", "", page)
    assert "Approved alone: it is marked as dangerous: its arguments have" in page
    assert len([each for each in fields if each.startswith("d-")]) == 1
    # Nor by who says that they looked twice.
    rejecting = {**fields_in(page, "/inbox", "words"), "verb": "approve", "sure": "yes"}
    assert len([each for each in rejecting if each.startswith("d-")]) == 2
    await browser.post("/inbox", rejecting)
    assert [each["path"] for each in site.ran] == ["a.md"]
    assert "it is approved alone, since it is marked as dangerous" in await browser.page()


async def test_edited_call_is_left_out(site: Site) -> None:
    await propose_files(site, "a.md")
    browser = await site.browser("you")
    page = await browser.page("/inbox", "a.md", gone="not known yet")
    (mark,) = re.findall(r'name="(m-[0-9a-f]{24})"', page)
    answer = await browser.post("/inbox", {**fields_in(page, "/inbox"), mark: "edited"})
    assert "Approved alone: you have begun to edit it." in answer.text
    assert 'id="approve"' not in answer.text


async def test_all_are_rejected_with_one_reason(site: Site) -> None:
    proposer = await site.proposer()
    proposals = [await site.propose(proposer, {"path": each}, to="you") for each in FILES]
    browser = await site.browser("you")
    page, _ = await look(browser, *FILES)
    fields = fields_in(page, "/inbox", "words")
    assert (await browser.post("/inbox", {**fields, "reason": "other"})).status_code == 400
    await browser.post("/inbox", {**fields, "reason": "unsafe", "words": "no"})
    for each in proposals:
        assert (await ended(each, Rejection)).reason == "unsafe"
    assert "Rejected: 3 of 3." in await browser.page()


async def test_nothing_or_too_much_is_decided_by_nobody(site: Site) -> None:
    await propose_files(site, "a.md")
    browser = await site.browser("you")
    page = await browser.page("/inbox", "a.md")
    fields = {"csrf": fields_in(page, "/inbox")["csrf"]}
    assert (await browser.post("/inbox", fields)).status_code == 303
    many = {f"d-{number:024x}": "0" for number in range(51)}
    answer = await browser.post("/inbox", {**fields, **many, "verb": "approve"})
    assert answer.status_code == 400
    assert site.ran == []
