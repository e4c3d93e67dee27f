"""Participants, without a script: what each may and does, and managing them."""

import json
import re
from itertools import chain
from typing import Any

import anyio.lowlevel
import pytest

from meup_agent import Agent
from meup_agent.gateway.console.pages import participants
from meup_agent.gateway.console.templating import describe_capability
from meup_agent.types import StatusRequest
from tests.gateway.console.conftest import PARTICIPANTS as CAST
from tests.gateway.console.conftest import Browser, Site, open_site
from tests.gateways import PARTICIPANTS, one_space_config


async def people(browser: Browser) -> dict[str, str]:
    """The card of each participant, as text without tags."""
    page = (await browser.get("/participants")).text
    cards = re.findall(r'<li class="panel person.*?</li>\n', page, re.DOTALL)
    text = [" ".join(re.sub(r"<[^>]+>", " ", each).split()) for each in cards]
    return {each.split()[0]: each for each in text}


async def may(browser: Browser, who: str, deed: str, **asked: str) -> str:
    question = {"who": who, "deed": deed, **asked}
    page = (await browser.get("/participants/try", params=question)).text
    answer = r'<p class="answer \w+" role="status"><strong>([^<]*)(.*?)</p>'
    [(said, more)] = re.findall(answer, page, re.DOTALL)
    assert " ." not in re.sub(r"<[^>]+>", "", more)
    return str(said)


async def test_may_they_is_answered(site: Site) -> None:
    you = await site.browser("you")
    for who, deed, asked, answer in (
        ("proposer", "propose", {"tool": "write_file"}, "Yes."),
        ("proposer", "call", {"tool": "write_file"}, "No."),
        ("voter", "call", {"tool": "look"}, "Yes."),
        ("voter", "call", {"tool": "write_file"}, "No."),
        ("boss", "kick", {}, "Yes."),
        ("you", "grant", {}, "No."),
        ("you", "call", {"tool": "t", "arguments": '{"a": 1}'}, "Yes."),
    ):
        assert await may(you, who, deed, **asked) == answer, (who, deed)


async def test_arguments_and_addressees_count(site: Site) -> None:
    browser = await site.browser("boss")
    pattern = {
        "kind": "mcp/request",
        "to": ["tools"],
        "payload": {"method": "tools/call", "params": {"arguments": {"path": "docs/*"}}},
    }
    fields = {"who": "looker", "pattern": json.dumps(pattern)}
    csrf = (await browser.fields("/health", "/sign-out"))["csrf"]
    assert (await browser.post("/participants/grant", {**fields, "csrf": csrf})).status_code == 303
    asked = {"who": "looker", "deed": "call", "tool": "write_file"}
    for path, to, answer in (("docs/a", "tools", "Yes."), ("src/a", "tools", "No."),
                             ("docs/a", "you", "No."), ("docs/a", "", "No.")):  # fmt: skip
        asked["arguments"] = json.dumps({"path": path})
        assert await may(browser, **asked, to=to) == answer, (path, to)
    refused = await browser.get("/participants/try", params={**asked, "arguments": "{"})
    assert "The arguments must be a JSON object" in refused.text


async def test_participants_say_what_they_do(site: Site) -> None:
    began, let_go = anyio.Event(), anyio.Event()
    agent = Agent("tools")

    @agent.tool
    async def slow() -> str:
        """Takes its time."""
        began.set()
        await let_go.wait()
        return "done"

    await site.join("tools", agent)
    proposer = await site.join("proposer")
    await site.propose(proposer, {}, tool="other")
    boss = await site.join("boss")
    browser = await site.browser("you")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(boss.call, "tools", "slow")
        await began.wait()
        seen = await people(browser)
        assert "carries out 1 call now" in seen["tools"]
        assert "1 of its proposals is open" in seen["proposer"]
        assert "speaks" in seen["boss"]
        assert "last heard just now" in seen["boss"]
        assert "away" in seen["looker"]
        assert "speaks" not in seen["looker"]
        let_go.set()
    while "carries out" in (await people(browser))["tools"]:
        await anyio.lowlevel.checkpoint()


async def test_participants_own_status_is_shown(site: Site) -> None:
    status = {"status": "<b>busy", "handlers": 1, "queued": 5, "messages_in_context": True}
    await site.post("boss", {"kind": "participant/status", "payload": status})
    browser = await site.browser("you")
    said = (await people(browser))["boss"]
    assert "Says of itself: &lt;b&gt;busy, 1 handler running, 5 in its queue · just now" in said
    assert "context" not in said
    # What it says of others, or in a form that cannot be meant, counts for nothing.
    odd = {"status": 7, "handlers": -1, "queued": "many"}
    await site.post("boss", {"kind": "participant/status", "payload": odd})
    assert "Says of itself: nothing · just now" in (await people(browser))["boss"]


async def test_participant_is_asked_paused_and_resumed(site: Site) -> None:
    agent = Agent("tools")

    @agent.on_control("request_status")
    async def status(_: StatusRequest) -> dict[str, Any]:
        await anyio.lowlevel.checkpoint()
        return {"messages_in_context": 3}

    await site.join("tools", agent)
    browser = await site.browser("boss")

    async def submit(verb: str, **fields: str) -> str:
        form = await browser.fields("/participants", f"/participants/{verb}")
        answer = await browser.post(f"/participants/{verb}", {**form, "who": "tools", **fields})
        assert answer.status_code == 303, answer.text
        return (await people(browser))["tools"]

    assert "Says of itself: active, 0 handlers" in await submit("status")
    assert "3 messages in its context" in (await people(browser))["tools"]
    assert "paused by boss" in await submit("pause", minutes="5", reason="a look at it")
    assert "paused by" not in await submit("resume")
    assert "Ask for its status: boss" not in (await browser.get("/participants")).text


async def test_minutes_of_a_pause_are_checked(site: Site) -> None:
    await site.join("tools")
    browser = await site.browser("boss")
    form = await browser.fields("/participants", "/participants/pause") | {"who": "tools"}
    for minutes in ("0", "-1", "1.5", "\u0661", "9" * 5_000):
        answer = await browser.post("/participants/pause", {**form, "minutes": minutes})
        assert answer.status_code == 400, minutes
        assert "Minutes are a whole number from 1 to 10080, or none." in answer.text
        assert "paused" not in (await people(browser))["tools"], minutes


async def test_silent_participant_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participants, "STATUS_SECONDS", 0.0)
    await site.join("tools")
    browser = await site.browser("boss")
    answer = await browser.submit("/participants", "/participants/status", who="tools")
    assert answer.status_code == 303
    assert "tools was asked, and has not answered yet." in await browser.page("/participants")


async def test_who_left_was_seen_then(site: Site) -> None:
    joining = Agent("looker").join(site.gateway.url, space="demo", token=site.token("looker"))
    async with joining:
        pass
    browser, seen = await site.browser("you"), ""
    while "last heard" not in seen:
        seen = (await people(browser))["looker"]
    assert "away" in seen


async def test_invitation_shows_its_token_once(site: Site) -> None:
    browser = await site.browser("boss")
    answer = await browser.submit("/participants", "/participants/invite", who="newcomer")
    [token] = re.findall(r"<pre[^>]*>([\w-]+)</pre>", answer.text)
    assert (await (await site.browser()).sign_in(token)).status_code == 303
    for path in ("/participants", "/timeline"):
        assert token not in await browser.page(path)


NARROW = [
    {"kind": "capability/grant", "to": ["look*"], "payload": {"capabilities": [{"kind": "chat"}]}},
    {"kind": "capability/revoke", "payload": {"recipient": "looker"}},
    {"kind": "space/kick", "payload": {"participant_id": "vot*"}},
]


async def test_what_may_be_managed_is_offered_and_nothing_else() -> None:
    config = one_space_config("demo", {**CAST, "you": [*CAST["you"], *NARROW]})
    async with open_site(config) as narrow:
        page = await (await narrow.browser("you")).page("/participants")
        cards = re.findall(r'<li class="panel person.*?</ul>\n.*?</li>\n', page, re.DOTALL)
        offered = {
            found[1]: set(re.findall(r"/participants/(grant|revoke|kick)", each))
            for each in cards
            if (found := re.search(r'<bdi class="name">(\w+)<', each))
        }
        assert offered["looker"] == {"grant", "revoke"}
        assert offered["voter"] == {"kick"}
        assert offered["boss"] == offered["you"] == set()
        assert "/participants/invite" not in page
        boss = await narrow.browser("boss")
        for deed, to, answer in (
            ("grant", "looker", "Yes."),
            ("grant", "voter", "No."),
            ("grant", "", "Yes."),
            ("revoke", "looker", "Yes."),
            ("revoke", "boss", "No."),
            ("kick", "voter", "Yes."),
            ("kick", "boss", "No."),
            ("invite", "", "No."),
        ):
            assert await may(boss, "you", deed, to=to) == answer, (deed, to)


async def test_who_may_not_manage_is_offered_nothing(site: Site) -> None:
    page = await (await site.browser("you")).page("/participants")
    assert not re.search("/participants/(grant|pause|status|kick|invite)", page)


def test_what_a_role_of_dev_may_is_told_in_words() -> None:
    for pattern in chain.from_iterable(PARTICIPANTS.values()):
        assert pattern["kind"] not in describe_capability(pattern)


async def test_each_is_called_by_what_it_may_and_the_same_list_stands_once(site: Site) -> None:
    found = await people(await site.browser("you"))
    roles = {who: re.search("person or reviewer|agent|server", said) for who, said in found.items()}
    assert {who: role and role[0] for who, role in roles.items() if who in ("you", "proposer")} == {
        "you": "person or reviewer",
        "proposer": "agent",
    }
    lists = {who: json.dumps(CAST[who], default=str) for who in found if who in CAST}
    for who, said in found.items():
        same = re.search(r"the same as (\w+)", said)
        if same and who in lists:
            assert lists[same[1]] == lists[who]
