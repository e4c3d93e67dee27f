"""Clicks that wait, for an executor or a reviewer, while something else ends them."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from meup_agent import Agent, Envelope, Space
from tests.gateway.console.conftest import Browser, Site, fields_in
from tests.patience import PATIENCE


class Press:
    """Tools whose one tool runs until it is let go, or cancelled."""

    def __init__(self) -> None:
        self.agent = Agent("tools")
        self.begun = anyio.Event()
        self.go_on = anyio.Event()
        self.ended = anyio.Event()
        self.runs = 0

        @self.agent.tool
        async def write_file(path: str, text: str = "") -> str:
            self.runs += 1
            self.begun.set()
            try:
                await self.go_on.wait()
            finally:
                self.ended.set()
            return path + text


@pytest.fixture
async def press(site: Site, monkeypatch: pytest.MonkeyPatch) -> Press:
    """Its call is approved at once, and told of later."""
    monkeypatch.setattr("meup_agent.gateway.console.pages.inbox.OUTCOME_SECONDS", 0.0)
    opened = Press()
    await site.join("tools", opened.agent)
    return opened


async def approve(site: Site, press: Press) -> tuple[Browser, str]:
    """Approve what waits, and wait until it runs; the browser, and the key of the proposal."""
    browser = await site.browser("you")
    key = await browser.key()
    assert (await browser.decide(key)).status_code == 303
    await press.begun.wait()
    return browser, key


@contextmanager
def cancels(watcher: Space) -> Generator[Any]:
    """The cancels that are said from here on."""

    def is_cancel(envelope: Envelope) -> bool:
        return b"notifications/cancelled" in envelope.raw_payload

    with watcher.watch(is_cancel) as heard:
        yield heard


async def test_withdrawal_cancels_what_was_approved_in_the_persons_name(
    site: Site, press: Press
) -> None:
    boss, proposer = await site.join("boss"), await site.join("proposer")
    proposal = await site.propose(proposer)
    browser, key = await approve(site, press)
    with cancels(boss) as heard:
        await proposal.withdraw()
        await press.ended.wait()
        cancel = await anext(heard)
    assert (cancel.sender, cancel.to) == ("you", ("tools",))
    assert cancel.payload_object["params"]["reason"] == "no_longer_needed"
    assert "withdrawn" in await browser.page(f"/proposals/{key}")
    assert "Nothing waits" in await browser.page()


async def test_two_tabs_carry_it_out_once(site: Site, press: Press) -> None:
    proposal = await site.propose(await site.join("proposer"))
    browser = await site.browser("you")
    key = await browser.key()
    path = f"/inbox/{key}/approve"
    fields = {**fields_in(await browser.page(), path), "sure": "yes"}
    answers: list[int] = []

    async def click() -> None:
        answers.append((await browser.post(path, fields)).status_code)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(click)
    assert set(answers) <= {303, 409}
    press.go_on.set()
    assert await proposal.result() == "a.mdhello"
    assert press.runs == 1


async def test_decision_and_withdrawal_at_once_have_one_outcome(site: Site) -> None:
    proposer = await site.proposer()
    browser = await site.browser("you")
    for number in range(5):
        proposal = await site.propose(proposer, {"path": f"{number}.md"})
        key = await browser.key(f"{number}.md")
        path = f"/inbox/{key}/reject"
        fields = {**fields_in(await browser.page(), path), "reason": "unsafe"}
        answers: list[int] = []

        async def click(path: str = path, fields: dict[str, str] = fields) -> None:
            answers.append((await browser.post(path, fields)).status_code)  # noqa: B023

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(click)
            tasks.start_soon(proposal.withdraw)
        assert answers[0] in (303, 400, 409)
        await proposal.outcome()
        await browser.page(gone=f"{number}.md</")
    assert site.ran == []


async def test_vote_that_nobody_counts_is_told_as_not_done(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviewer, asked = Agent("reviewer"), anyio.Event()
    proposals: list[dict[str, Any]] = []

    @reviewer.on_request("dev.meup/waiting")
    async def waiting() -> dict[str, Any]:
        return {"proposals": proposals}

    @reviewer.on_request("dev.meup/vote")
    async def vote() -> None:
        asked.set()
        await anyio.sleep_forever()

    await site.tools()
    await site.join("reviewer", reviewer)
    boss = await site.join("boss")
    proposal = await site.propose(await site.join("proposer"))
    count = {"kind": "quorum", "of": 2, "among": ["you", "voter"], "votes": {}}
    rule = {"name": "four eyes", "number": 0}
    proposals.append({"proposal": proposal.id, "proposer": "proposer", "rule": rule} | count)
    you = await site.browser("you")
    key = await you.key("four eyes", "Vote for it")
    monkeypatch.setattr("meup_agent.approval.inbox.inbox.VOTE_SECONDS", 0.1)
    with cancels(boss) as heard:
        answer = await you.decide(key, "vote", vote="approve")
        assert asked.is_set()
        cancel = await anext(heard)
    assert (cancel.sender, cancel.to) == ("you", ("reviewer",))
    assert answer.status_code == 400
    assert "Not done: dev.meup/vote to &#39;reviewer&#39; got no response" in answer.text
    assert site.ran == []


async def test_one_that_is_removed_has_its_approved_call_cancelled(
    site: Site, press: Press
) -> None:
    boss = await site.join("boss")
    await site.propose(await site.join("proposer"))
    browser, _ = await approve(site, press)
    await boss.members.kick("you")
    await press.ended.wait()
    while (await browser.get("/inbox")).status_code != 403:
        await anyio.lowlevel.checkpoint()


async def test_gateway_stops_while_a_click_waits(site: Site, press: Press) -> None:
    await site.propose(await site.join("proposer"))
    await approve(site, press)
    with anyio.fail_after(PATIENCE):
        await anyio.to_thread.run_sync(site.gateway.restart)
    press.go_on.set()
    assert press.runs == 1
