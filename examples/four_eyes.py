"""A deployment is carried out once two of three people have voted for it."""

import tempfile
from pathlib import Path

import anyio

from meup_agent import Agent, Space
from meup_agent.approval import Reviewer
from meup_agent.errors import RequestError
from meup_agent.testing import MemorySpace

POLICY = Path(__file__).with_name("four_eyes.yaml")
VOTE = {"method": "dev.meup/vote"}
PARTICIPANTS: dict[str, list[dict[str, object]]] = {
    "server": [{"kind": "mcp/response"}],
    "reviewer": [{"kind": "*"}],
    "lead": [
        {"kind": "mcp/proposal"},
        {"kind": "mcp/request", "payload": VOTE},
    ],
    "security": [{"kind": "mcp/request", "payload": VOTE}],
    "oncall": [{"kind": "mcp/request", "payload": VOTE}],
}

server = Agent("server")


@server.tool
async def deploy(version: str) -> str:
    return f"{version} is deployed"


async def vote(voter: Space, proposal: str) -> None:
    about = {"proposal": proposal, "proposer": "lead", "vote": "approve"}
    try:
        found = await voter.request("reviewer", "dev.meup/vote", about)
        print(f"{voter.me} votes: {found['votes']}, {found['outcome']}")
    except RequestError as error:
        print(f"{voter.me}: {error}")


async def main(folder: Path) -> None:
    space = MemorySpace(participants=PARTICIPANTS)
    reviewer = Reviewer(POLICY, folder / "votes")
    async with (
        server.join(space.connector("server")),
        reviewer.join(space.connector("reviewer")),
        Agent("lead").join(space.connector("lead")) as lead,
        Agent("security").join(space.connector("security")) as security,
        Agent("oncall").join(space.connector("oncall")) as oncall,
    ):
        call = {"version": "1.4"}
        async with lead.propose("server", "deploy", call) as proposal:
            await vote(lead, proposal.id)  # it is their own proposal
            await vote(security, proposal.id)
            await vote(oncall, proposal.id)
            print(await proposal.result())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as votes:
        anyio.run(main, Path(votes))
