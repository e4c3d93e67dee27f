"""A proposal's page and its export: the whole chain, with edits, words, and who decided."""

import json
from typing import Any

from meup_agent import Agent, Rejection
from meup_agent.errors import ToolError
from tests.gateway.console.conftest import Browser, Site, fields_in


async def exported(browser: Browser, key: str) -> dict[str, Any]:
    """The export of a proposal, checked to be a file for one to keep."""
    answer = await browser.get(f"/proposals/{key}/export")
    assert answer.headers["content-type"] == "application/json"
    named = f'attachment; filename="proposal-{key}.json"'
    assert answer.headers["content-disposition"] == named
    assert answer.headers["cache-control"] == "no-store"
    said: dict[str, Any] = answer.json()
    return said


async def test_export_has_the_edited_chain(site: Site) -> None:
    proposal, browser, _, key = await site.asked()
    given = json.dumps({"path": "b.md", "text": "hello"})
    action = f"/inbox/{key}/edit"
    page = await browser.submit(f"/inbox/{key}", action, arguments=given)
    assert page.status_code == 200
    # The word, since the page may ask before the tools of the executor are known.
    fields = {**fields_in(page.text, action, "seen"), "sure": "yes"}
    done = await browser.post(action, fields)
    assert done.status_code == 303, done.text
    await proposal.outcome()
    said = await exported(browser, key)
    assert (said["id"], said["proposer"], said["target"]) == (proposal.id, "proposer", "tools")
    assert said["state"] == "fulfilled"
    assert said["params"]["arguments"] == {"path": "a.md", "text": "hello"}
    assert said["decision"]["by"] == "you"
    assert [each["path"] for each in said["changes"]] == ["arguments.path"]
    assert [each["by"] for each in said["timeline"]] == ["proposer", "you", "tools"]
    assert said["omitted"] == 0


async def test_export_has_the_words_of_a_rejection(site: Site) -> None:
    proposal, browser, _, key = await site.asked(to="you")
    words = "not <b>this</b>\x1b[31m one"
    assert (await browser.decide(key, "reject", reason="unsafe", words=words)).status_code == 303
    assert isinstance(await proposal.outcome(), Rejection)
    assert site.ran == []
    assert "&lt;b&gt;this&lt;/b&gt;" in await browser.page(f"/proposals/{key}")
    (rejection,) = (await exported(browser, key))["rejections"]
    assert (rejection["by"], rejection["reason"]) == ("you", "unsafe")
    assert rejection["explanation"] == words


async def test_call_that_failed_is_told_so_wherever_its_end_stands(site: Site) -> None:
    agent = Agent("tools")

    @agent.tool
    async def write_file(path: str, text: str = "") -> str:
        raise ToolError("the disk is full")

    await site.join("tools", agent)
    proposer = await site.join("proposer")
    proposal = await site.propose(proposer)
    browser = await site.browser("you")
    key = await browser.key()
    await browser.decide(key)
    await proposal.outcome()
    page = await browser.page(f"/proposals/{key}")
    assert ">failed</span> It was approved and carried out, by <b" in page
    assert "; its answer is an error." in page
    assert "failed after it" in page
    assert "fulfilled after it" not in page
    assert "of your request" in page
    await site.propose(proposer)
    card = await browser.page()
    assert '<span class="end s-failed" title="failed">' in card
    assert "Its only one so far was fulfilled, and failed." in card
