"""Two reviewers approve one proposal at the same time: it runs once."""

import anyio

from meup_agent import Agent, Proposal, Space
from meup_agent.errors import AlreadyDecided, AlreadyInProgress
from meup_agent.testing import MemorySpace

PARTICIPANTS = {
    "tools": [],
    "proposer": [{"kind": "mcp/proposal"}],
    "ada": [{"kind": "mcp/*"}],
    "ben": [{"kind": "mcp/*"}],
}


def tools() -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def pay(amount: int) -> str:
        print(f"tools: paid {amount}")
        return f"paid {amount}"

    return agent


def reviewer(name: str) -> Agent:
    agent = Agent(name)

    @agent.on_proposal
    async def approve(proposal: Proposal) -> None:
        try:
            outcome = await proposal.fulfill()
        except (AlreadyInProgress, AlreadyDecided):
            # The gateway has ordered the other one's request before ours:
            # ours ran nothing. That is not an error, there is nothing to do.
            print(f"{name}: the other one was first")
        else:
            print(f"{name}: approved, {outcome.value}")

    return agent


async def propose_payment(space: Space) -> None:
    async with space.propose("tools", "pay", {"amount": 5}) as proposal:
        print(f"proposer: {await proposal.result()}")


async def main() -> None:
    here = MemorySpace(participants=PARTICIPANTS)
    async with (
        tools().join(here.connector("tools")),
        reviewer("ada").join(here.connector("ada")),
        reviewer("ben").join(here.connector("ben")),
        Agent("proposer").join(here.connector("proposer")) as space,
    ):
        await propose_payment(space)


if __name__ == "__main__":
    anyio.run(main)
