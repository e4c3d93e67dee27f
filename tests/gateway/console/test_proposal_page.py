"""A proposal's page and its export: the whole chain, with edits, words, and who decided."""

import json
import re
from typing import Any

import pytest

from tests.gateway.console.conftest import Browser, Site
from tests.gateway.console.test_inbox_page import proposer_of

pytestmark = pytest.mark.anyio


async def key_of_first(browser: Browser) -> str:
    """The address of the proposal that the inbox shows, once there is one."""
    found = None
    while found is None:
        found = re.search(r'data-key="(\w{24})"', (await browser.get("/inbox")).text)
    return found[1]


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
    proposal = await site.propose(await proposer_of(site))
    browser = await site.browser("you")
    key = await key_of_first(browser)
    given = json.dumps({"path": "b.md", "text": "hello"})
    page = await browser.submit(f"/inbox/{key}", f"/inbox/{key}/edit", arguments=given)
    assert page.status_code == 200
    seen = re.search(r'name="seen"[^>]*>\n(.*?)</textarea>', page.text, re.DOTALL)
    assert seen is not None
    text = seen[1].replace("&#34;", '"')
    # The word, since the page may ask before the tools of the executor are known.
    fields = {"arguments": text, "seen": text, "word": "approve"}
    done = await browser.submit(f"/inbox/{key}", f"/inbox/{key}/edit", **fields)
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
    proposal = await site.propose(await proposer_of(site), to="you")
    browser = await site.browser("you")
    key = await key_of_first(browser)
    words = "not <b>this</b>\x1b[31m one"
    fields = {"reason": "unsafe", "words": words}
    await browser.submit(f"/inbox/{key}", f"/inbox/{key}/reject", **fields)
    await proposal.outcome()
    said = await exported(browser, key)
    (rejection,) = said["rejections"]
    assert (rejection["by"], rejection["reason"]) == ("you", "unsafe")
    assert rejection["explanation"] == words
