"""Voting in the inbox, where a rule asks for several people."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from meup_agent.approval.reviewer import Reviewer
from meup_agent.protocol.outcomes import Fulfillment
from tests.gateway.console.conftest import Browser, Site

pytestmark = pytest.mark.anyio

POLICY = """
rules:
  - quorum: {tool: write_file, of: 2, among: [you, voter], name: four eyes}
"""


async def key_once(browser: Browser, *words: str) -> str:
    """The key of the first decision, once its page has some words."""
    while True:
        page = (await browser.get("/inbox")).text
        if all(each in page for each in words):
            return page.partition('data-key="')[2][:24]
        await anyio.lowlevel.checkpoint()


async def test_two_votes_carry_a_call_out(site: Site, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    await site.tools()
    reviewer = Reviewer(policy).join(
        site.gateway.url, space="demo", token=site.token("reviewer", "demo")
    )
    await site.stack.enter_async_context(reviewer)
    proposal = await site.propose(await site.join("proposer"))
    you, voter = await site.browser("you"), await site.browser("voter")
    key = await key_once(you, "four eyes", "Vote for it")
    answer = await you.submit("/inbox", f"/inbox/{key}/vote", vote="approve")
    assert answer.status_code == 303
    assert site.ran == []
    # The other one sees who has voted.
    key = await key_once(voter, "Vote for it", "for it</li>")
    answer = await voter.submit("/inbox", f"/inbox/{key}/vote", vote="maybe")
    assert answer.status_code == 400
    answer = await voter.submit("/inbox", f"/inbox/{key}/vote", vote="approve")
    assert answer.status_code == 303
    outcome = await proposal.outcome()
    assert isinstance(outcome, Fulfillment)
    assert outcome.by == "reviewer"
    assert len(site.ran) == 1
