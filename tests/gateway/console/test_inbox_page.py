"""Deciding in the inbox, without a script."""

import re
from datetime import datetime

import anyio
import pytest

from meup_agent import Agent, Fulfillment, Rejection
from meup_agent.errors import ToolError
from meup_agent.gateway.console.templating import compile_templates, iso, make_environment
from tests.gateway.console.conftest import Site, fields_in
from tests.interaction.people import ended, until
from tests.patience import PATIENCE

HELLO = {"path": "a.md", "text": "hello"}


async def test_inbox_shows_the_exact_call(site: Site) -> None:
    _, _, page, _ = await site.asked({"path": "a.md", "text": "<b>hi</b>"})
    assert "&lt;b&gt;hi&lt;/b&gt;" in page
    assert "<b>hi" not in page
    assert "Approve" in page
    assert re.search(r"min( \d+ s)? left", page)


async def test_queue_says_how_many_wait_and_for_how_long(site: Site) -> None:
    proposer = await site.proposer()
    for each in ("a.md", "b.md"):
        await site.propose(proposer, {"path": each})
    page = await (await site.browser("you")).page()
    assert re.search(r'id="count">2<', page)
    ages = re.findall(r'"age">came <time datetime="([^"]*)" data-ago>[^<]*</time>', page)
    runtime = site.console.runtime
    assert runtime is not None
    waiting = [each for each in runtime.spaces["demo"].owner.in_flight if each.is_proposal]
    assert ages == [iso(each.at / 1_000_000) for each in waiting]
    assert len(ages) == 2


async def test_bar_tells_the_time_left_of_all_that_it_had(site: Site) -> None:
    await site.propose(await site.proposer())
    # Whoever comes late sees how late it is, not a bar that begins with the page.
    page = await (await site.browser("you")).page()
    ((whole, until),) = re.findall(r'<progress [^>]*max="([^"]*)"[^>]*until="([^"]*)"', page)
    runtime = site.console.runtime
    assert runtime is not None
    (proposal,) = (each for each in runtime.spaces["demo"].owner.in_flight if each.is_proposal)
    given = datetime.fromisoformat(until).timestamp() - proposal.at / 1_000_000
    assert float(whole) == pytest.approx(given, abs=1e-3)


async def test_approved_call_runs(site: Site) -> None:
    proposal, browser, _, key = await site.asked()
    assert (await browser.decide(key)).status_code == 303
    assert (await ended(proposal, Fulfillment)).by == "you"
    assert site.ran == [HELLO]
    page = await browser.page()
    assert "Nothing waits for you" in page
    assert "Approved: write_file ran: written" in page
    chain = await browser.get(re.findall(r'href="/console([^"]*)">Look at it', page)[0])
    assert "Result" in chain.text
    assert "written" in chain.text


async def test_hostile_answer_is_told_as_text(site: Site) -> None:
    agent = Agent("tools")

    @agent.tool
    async def write_file(path: str, text: str = "") -> str:
        raise ToolError("<script>\u202e\n" + "x" * 10_000)

    await site.join("tools", agent)
    await site.propose(await site.join("proposer"))
    browser = await site.browser("you")
    await browser.decide(await browser.key())
    page = await browser.page()
    notice = re.findall(r'<p class="notice.*?</p>', page)[0]
    assert "write_file ran; the tool failed: ToolError: &lt;script&gt;" in notice
    assert "\u202e" not in page
    assert "x …" in notice
    assert len(notice) < 700


@pytest.mark.parametrize("typed", ["{", "[1]", '"text"', "", "[" * 100_000])
async def test_edit_that_is_no_object_is_refused_and_kept(site: Site, typed: str) -> None:
    _, browser, _, key = await site.asked()
    answer = await browser.decide(key, "edit", arguments=typed)
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text
    assert fields_in(answer.text, f"/inbox/{key}/edit", "arguments")["arguments"] == typed
    assert site.ran == []


async def test_decided_proposal_is_not_decided_again(site: Site) -> None:
    proposal, you, page, key = await site.asked()
    other = await site.browser("other")
    theirs = await other.page()
    approve = f"/inbox/{key}/approve"
    await you.post(approve, {**fields_in(page, approve), "sure": "yes"})
    await proposal.outcome()
    answer = await other.post(approve, {**fields_in(theirs, approve), "sure": "yes"})
    assert answer.status_code in (303, 409)
    assert site.ran == [HELLO]


async def test_other_call_than_was_shown_is_not_approved(site: Site) -> None:
    _, browser, _, key = await site.asked()
    answer = await browser.decide(key, sure="", digest="0" * 64)
    assert answer.status_code == 409
    assert "another one than you were shown" in answer.text
    assert site.ran == []


async def test_withdrawn_proposal_leaves(site: Site) -> None:
    proposal, browser, page, key = await site.asked()
    await proposal.withdraw()
    answer = await browser.post(f"/inbox/{key}/reject", fields_in(page, f"/inbox/{key}/reject"))
    assert answer.status_code in (303, 409)
    assert "withdrawn" in (await browser.get(f"/proposals/{key}")).text


async def test_dangerous_call_asks_twice(site: Site) -> None:
    _, browser, page, key = await site.asked({"path": "safe\u202egpj.exe"})
    assert "Look twice" in page
    for said in ("", "no", "yes, of course"):
        answer = await browser.decide(key, sure=said)
        assert answer.status_code == 400
        assert "marked as dangerous" in answer.text
    assert site.ran == []
    assert (await browser.decide(key, sure="yes")).status_code == 303


async def test_card_tells_the_record_and_what_differs_from_before_one_signed_in(site: Site) -> None:
    proposer = await site.proposer()
    other = await site.browser("other")
    before = await site.propose(proposer, {"path": "a.md", "text": "then"}, to="other")
    await other.decide(await other.key(), "reject", reason="unsafe")
    assert isinstance(await before.outcome(), Rejection)
    await site.propose(proposer, {"path": "a.md", "text": "now"})
    page = await (await site.browser("you")).page()
    assert "Its only one so far was rejected." in page
    assert 'class="was"><code>then</code>' in page
    assert 'class="is"><code>now</code>' in page
    assert "That one was rejected by" in page


async def test_what_comes_alone_comes_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.gateway.console.presence.GATHER_SECONDS", 3_600.0)
    browser = await site.browser("you")
    proposer = await site.proposer()
    before = re.search(r'data-version="[^"]+"', await browser.page())
    assert before is not None
    await site.propose(proposer)
    await browser.page("/inbox", "data-version=", gone=before[0])


async def test_first_screen_compiles_nothing_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meup_agent.gateway.console.templating.COMPILE_SECONDS", 0.0)
    await site.propose(await site.proposer())
    browser = await site.browser("you")
    kept = make_environment().cache
    assert kept is not None
    kept.clear()
    await compile_templates()
    before = {name for _, name in kept}
    assert "write_file" in (await browser.get("/inbox")).text
    assert {name for _, name in kept} == before


async def test_inbox_follows_a_fulfillment_between_others(site: Site) -> None:
    proposer = await site.proposer()
    other = await site.join("other", Agent("other"))
    browser = await site.browser("you")
    with anyio.fail_after(PATIENCE):
        await browser.page("/inbox", "Nothing")
        handle = await site.propose(proposer)
        await until(lambda: any(each.id == handle.id for each in other.proposals))
        await browser.page("/inbox", "write_file")
        (record,) = other.proposals
        await other.proposals.get(record.envelope).fulfill()
        await browser.page(gone="write_file")
