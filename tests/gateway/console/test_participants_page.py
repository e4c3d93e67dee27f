"""Participants, without a script: what each may and does, and managing them."""

import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import anyio.lowlevel
import pytest

from meup_agent import Agent
from meup_agent.gateway.console.pages import participants
from meup_agent.gateway.console.words import describe_capability
from meup_agent.types import StatusRequest
from tests.gateway.console.conftest import PARTICIPANTS as CAST
from tests.gateway.console.conftest import Browser, Site, open_site
from tests.gateways import PARTICIPANTS, one_space_config

pytestmark = pytest.mark.anyio


async def people(browser: Browser) -> dict[str, str]:
    """The card of each participant, as text without tags."""
    page = (await browser.get("/participants")).text
    cards = re.findall(r'<li class="panel person.*?</li>\n', page, re.DOTALL)
    text = [" ".join(re.sub(r"<[^>]+>", " ", each).split()) for each in cards]
    return {each.split()[0]: each for each in text}


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ({"who": "proposer", "deed": "propose", "tool": "write_file"}, "Yes."),
        ({"who": "proposer", "deed": "call", "tool": "write_file"}, "No."),
        ({"who": "voter", "deed": "call", "tool": "look"}, "Yes."),
        ({"who": "voter", "deed": "call", "tool": "write_file"}, "No."),
        ({"who": "boss", "deed": "kick"}, "Yes."),
        ({"who": "you", "deed": "grant"}, "No."),
        ({"who": "you", "deed": "call", "tool": "t", "arguments": '{"a": 1}'}, "Yes."),
    ],
)
async def test_may_they_is_answered(site: Site, question: dict[str, str], answer: str) -> None:
    page = (await (await site.browser("you")).get("/participants/try", params=question)).text
    said = re.search(r'<p class="answer \w+" role="status"><strong>([^<]*)', page)
    assert said is not None
    assert said[1] == answer


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
        query = {**asked, "arguments": json.dumps({"path": path}), "to": to}
        page = (await browser.get("/participants/try", params=query)).text
        assert f"<strong>{answer}</strong>" in page, (path, to)
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


async def test_pause_is_shown(site: Site) -> None:
    await site.join("tools")
    pause = {"kind": "participant/pause", "to": ["tools"], "payload": {"timeout_seconds": 600}}
    await site.post("boss", pause)
    assert "paused by boss" in (await people(await site.browser("you")))["tools"]


async def test_participant_is_asked_paused_and_resumed(site: Site) -> None:
    agent = Agent("tools")

    @agent.on_request_status
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


@pytest.mark.parametrize("minutes", ["0", "-1", "1.5", "\u0661", "9" * 5_000])
async def test_minutes_of_a_pause_are_checked(site: Site, minutes: str) -> None:
    await site.join("tools")
    browser = await site.browser("boss")
    form = await browser.fields("/participants", "/participants/pause")
    answer = await browser.post("/participants/pause", {**form, "who": "tools", "minutes": minutes})
    assert answer.status_code == 400
    assert "Minutes are a whole number from 1 to 10080, or none." in answer.text
    assert "paused" not in (await people(browser))["tools"]


async def test_silent_participant_is_said_to_be_silent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(participants, "STATUS_SECONDS", 0.0)
    await site.join("tools")
    browser = await site.browser("boss")
    answer = await browser.submit("/participants", "/participants/status", who="tools")
    assert answer.status_code == 303
    said = (await browser.get("/participants")).text
    assert "tools was asked, and has not answered yet." in said


async def test_who_left_was_seen_then(site: Site) -> None:
    async with Agent("looker").join(
        site.gateway.url, space="demo", token=site.token("looker", "demo")
    ):
        pass
    browser = await site.browser("you")
    seen = ""
    while "last heard" not in seen:
        seen = (await people(browser))["looker"]
    assert "away" in seen


async def test_invitation_shows_its_token_once(site: Site) -> None:
    browser = await site.browser("boss")
    answer = await browser.submit("/participants", "/participants/invite", who="newcomer")
    token = re.search(r"<pre[^>]*>([\w-]+)</pre>", answer.text)
    assert token is not None
    assert (await (await site.browser()).sign_in(token[1])).status_code == 303
    assert token[1] not in (await browser.get("/participants")).text
    assert token[1] not in (await browser.get("/timeline")).text


NARROW = [
    {"kind": "capability/grant", "to": ["look*"], "payload": {"capabilities": [{"kind": "chat"}]}},
    {"kind": "capability/revoke", "payload": {"recipient": "looker"}},
    {"kind": "space/kick", "payload": {"participant_id": "vot*"}},
]


@pytest.fixture
async def narrow() -> AsyncGenerator[Site]:
    config = one_space_config("demo", {**CAST, "you": [*CAST["you"], *NARROW]})
    async with open_site(config) as opened:
        yield opened


async def test_what_may_be_managed_is_offered_and_nothing_else(narrow: Site) -> None:
    page = (await (await narrow.browser("you")).get("/participants")).text
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


@pytest.mark.parametrize(
    ("deed", "to", "answer"),
    [
        ("grant", "looker", "Yes."),
        ("grant", "voter", "No."),
        ("grant", "", "Yes."),
        ("revoke", "looker", "Yes."),
        ("revoke", "boss", "No."),
        ("kick", "voter", "Yes."),
        ("kick", "boss", "No."),
        ("invite", "", "No."),
    ],
)
async def test_may_they_counts_whom_it_is_about(
    narrow: Site, deed: str, to: str, answer: str
) -> None:
    asked = {"who": "you", "deed": deed, "to": to}
    page = (await (await narrow.browser("boss")).get("/participants/try", params=asked)).text
    assert f"<strong>{answer}</strong>" in page
    assert " ." not in re.sub(
        r"<[^>]+>", "", page.partition('class="answer')[2].partition("</p>")[0]
    )


async def test_who_may_not_manage_is_offered_nothing(site: Site) -> None:
    page = (await (await site.browser("you")).get("/participants")).text
    assert "/participants/grant" not in page
    assert "/participants/pause" not in page
    assert "/participants/status" not in page
    assert "/participants/kick" not in page
    assert "/participants/invite" not in page


@pytest.mark.parametrize("pattern", [each for role in PARTICIPANTS.values() for each in role])
def test_what_a_role_of_dev_may_is_told_in_words(pattern: dict[str, Any]) -> None:
    assert pattern["kind"] not in describe_capability(pattern)
