"""The stories of deciding: steps that follow one another, and two reviewers at once."""

import anyio
import pytest

from meup_agent import Agent, Proposal, Space
from meup_agent.gateway import ThreadedGateway
from tests.cli.participants import act_as
from tests.examples.test_examples import run_example
from tests.programs import ROOT, program


@pytest.mark.parametrize("rejected", ["", "back_up", "migrate", "announce"])
def test_cascade_ends_with_the_rejected_step(gateway: ThreadedGateway, rejected: str) -> None:
    tools, fulfiller, ran = Agent("tools"), Agent("fulfiller"), list[str]()

    for step in ("back_up", "migrate", "restart", "announce"):

        async def work(step: str = step) -> str:
            ran.append(step)
            return "done"

        tools.tool(name=step)(work)

    @fulfiller.on_proposal
    async def decide(proposal: Proposal) -> None:
        if proposal.tool == rejected:
            await proposal.reject("policy")
        else:
            await proposal.fulfill()

    async def act(_: Space) -> None:
        token = gateway.token("fulfiller")
        async with fulfiller.join(gateway.url, space="demo", token=token):
            await anyio.to_thread.run_sync(lambda: run(expected))

    def run(expected: list[str]) -> None:
        with run_example(gateway, "cascade.py", "proposer") as proposer:
            assert proposer.wait() == 0
        assert proposer.stdout == expected

    steps = ["back_up", "migrate", "restart", "announce"]
    at = steps.index(rejected) if rejected else len(steps)
    expected = [f"{step}: done" for step in steps[:at]]
    expected += [f"{step}: rejected by fulfiller (policy)" for step in steps[at : at + 1]]
    expected += [f"{step}: withdrawn (policy)" for step in steps[at + 1 :]]
    act_as(gateway, "tools", act, tools)
    assert ran == steps[:at]


def test_of_two_reviewers_one_is_first() -> None:
    with program([ROOT / "examples/two_reviewers.py"], {}) as story:
        assert story.wait() == 0
    lines = story.stdout
    assert lines.count("tools: paid 5") == 1
    assert lines.count("proposer: paid 5") == 1
    decided = sorted(line.partition(": ")[2] for line in lines if line[:3] in ("ada", "ben"))
    assert decided == ["approved, paid 5", "the other one was first"]
