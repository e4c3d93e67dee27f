"""Yeses in advance, in a browser: what was shown is given, listed, shown on cards, and ended."""

import json
import re
from typing import Any

import pytest

from meup_agent import Fulfillment, ProposalHandle, Space
from meup_agent.approval import Inbox, InboxItem, Reviewer
from meup_agent.errors import AlreadyInProgress
from tests.changed_server import ChangedServer
from tests.gateway.console.conftest import Browser, Site
from tests.wire import ACCEPT_CALL


async def propose(site: Site, proposer: Space, path: str, **more: str) -> ProposalHandle:
    made = proposer.propose("tools", "write_file", {"path": path, **more}, ttl=600)
    return await site.stack.enter_async_context(made)


async def reviewed(site: Site) -> tuple[Space, Browser]:
    await site.tools()
    joining = Reviewer().join(site.gateway.url, space="demo", token=site.token("reviewer", "demo"))
    await site.stack.enter_async_context(joining)
    return await site.join("proposer"), await site.browser("you")


async def test_yes_is_given_used_shown_and_ended(site: Site) -> None:
    proposer, you = await reviewed(site)
    first = await propose(site, proposer, "docs/a.md", text="<b>one</b>")
    key = await you.key("Yes, and calls like it")
    page = await you.page(f"/inbox/{key}/yes", "Approve this, and calls like it")
    assert "path in the same folder, text free" in page
    assert "<b>one" not in page
    fields = await you.fields(f"/inbox/{key}/yes", f"/inbox/{key}/yes")
    fields |= {"scope": "3", "seconds": "3600", "most": "1"}
    assert (await you.post(f"/inbox/{key}/yes", fields)).status_code == 303
    assert isinstance(await first.outcome(), Fulfillment)
    assert isinstance(await (await propose(site, proposer, "docs/b.md")).outcome(), Fulfillment)
    assert [each["path"] for each in site.ran] == ["docs/a.md", "docs/b.md"]
    await propose(site, proposer, "docs/c.md")
    assert "you: 1 of 1 used" in text_of(await you.page("/inbox", "card-yeses"))
    page = await you.page("/yeses", "1 of 1 used")
    assert "path: docs/*" in page
    assert (await you.submit("/yeses", "/yeses/revoke")).status_code == 303
    assert "There are none" in (await you.get("/yeses")).text


async def test_yes_that_holds_is_told_also_where_the_approval_failed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer, you = await reviewed(site)
    await propose(site, proposer, "docs/a.md")
    key = await you.key("Yes, and calls like it")
    fields = await you.fields(f"/inbox/{key}/yes", f"/inbox/{key}/yes")
    fields |= {"scope": "1", "seconds": "3600", "most": "1"}

    async def approve(self: Inbox, item: InboxItem, *more: object, **others: object) -> None:
        raise AlreadyInProgress(item.id, "another")

    monkeypatch.setattr(Inbox, "approve", approve)
    assert (await you.post(f"/inbox/{key}/yes", fields)).status_code == 303
    page = text_of((await you.get("/inbox")).text)
    assert "Not done: " in page
    assert "Your yes to calls like it holds; the page Yeses ends it." in page
    assert "0 of 1 used" in text_of((await you.get("/yeses")).text)


async def test_tool_that_changes_as_the_yes_is_given_is_not_approved(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ChangedServer("write_file", [], "says")
    boss = await site.join("boss", server.agent)
    proposer = await site.join("proposer")
    proposing = proposer.propose("boss", "write_file", {"path": "a.md"}, ttl=600)
    await site.stack.enter_async_context(proposing)
    you = await site.browser("you")
    key = await you.key("Yes, and calls like it")
    action = f"/inbox/{key}/yes"
    fields = await you.fields(action, action)
    fields |= {"scope": "1", "seconds": "3600", "most": "1"}
    give_yes = Inbox.give_yes

    async def give(self: Inbox, item: InboxItem, *given: Any, **terms: Any) -> str:
        made = await give_yes(self, item, *given, **terms)
        server.changed["form"] = ["is new"]
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        await boss.send("mcp/request", changed)
        await you.page("/inbox", "does not offer this tool as it was accepted")
        return made

    monkeypatch.setattr(Inbox, "give_yes", give)
    await you.post(action, fields)
    assert server.sent(ACCEPT_CALL) == []


def text_of(page: str) -> str:
    """The text of a page, without its elements."""
    return re.sub(r"<[^>]+>", "", page)


async def test_what_is_written_is_shown_once_more_before_it_holds(site: Site) -> None:
    proposer, you = await reviewed(site)
    proposal = await propose(site, proposer, "docs/a.md")
    key = await you.key("Yes, and calls like it")
    action = f"/inbox/{key}/yes"
    written = json.dumps({"arguments": {"path": "**/*.md"}, "others": ["text"]})
    fields = await you.fields(action, action)
    fields |= {"scope": "written", "seconds": "28800", "most": "5", "pattern": written}
    page = await you.post(action, fields)
    assert page.status_code == 200
    assert "path: **/*.md" in page.text
    assert site.ran == []
    assert (await you.post(action, {**fields, "seen": written})).status_code == 303
    assert isinstance(await proposal.outcome(), Fulfillment)
    assert "path: **/*.md" in (await you.get("/yeses")).text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scope": "99"}, "Choose the calls"),
        ({"scope": ""}, "Choose the calls"),
        ({"seconds": "99999999"}, "Choose how long"),
        ({"most": "0"}, "It lets 1 to 1000 calls"),
        ({"most": "x"}, "It lets 1 to 1000 calls"),
        ({"scope": "written", "pattern": "{"}, "not JSON"),
        ({"scope": "written", "pattern": "[1]"}, "write {"),
        ({"scope": "written", "pattern": '{"others": "\\ud800"}'}, "write {"),
        ({"scope": "written", "pattern": '{"\\ud800": {}}'}, "write {"),
        ({"scope": "written", "pattern": '{"arguments": {"path": "/(/"}}'}, "do not compile"),
        ({"scope": "written", "pattern": "x" * 10_000}, "longer than"),
        ({"scope": "written", "pattern": '{"arguments": {"path": "e/*"}}'}, "does not take this"),
    ],
)
async def test_yes_that_cannot_be_meant_gives_nothing(
    site: Site, fields: dict[str, str], said: str
) -> None:
    proposer, you = await reviewed(site)
    await propose(site, proposer, "docs/a.md")
    key = await you.key("Yes, and calls like it")
    action = f"/inbox/{key}/yes"
    usual = await you.fields(action, action) | {"scope": "1", "seconds": "3600", "most": "5"}
    answer = await you.post(action, usual | fields)
    assert answer.status_code == 400
    assert said in answer.text.replace("&#39;", "'")
    stale = await you.post(action, {**usual, "digest": "0" * 64})
    assert stale.status_code == 409
    assert "There are none" in (await you.get("/yeses")).text
    assert site.ran == []


async def test_who_may_not_decide_gives_and_ends_none(site: Site) -> None:
    proposer, you = await reviewed(site)
    await propose(site, proposer, "docs/a.md")
    key = await you.key("Yes, and calls like it")
    action = f"/inbox/{key}/yes"
    fields = await you.fields(action, action) | {"scope": "1", "seconds": "3600", "most": "5"}
    looker = await site.browser("looker")
    own = await looker.fields("/inbox", "/sign-out")
    refused = await looker.post(action, {**fields, "csrf": own["csrf"]})
    assert refused.status_code in (403, 409)
    assert (await you.post(action, fields)).status_code == 303
    kept = (await you.fields("/yeses", "/yeses/revoke"))["yes"]
    answer = await looker.post("/yeses/revoke", {"csrf": own["csrf"], "yes": kept})
    assert answer.status_code == 303
    assert "0 of 5 used" in (await you.get("/yeses")).text
