"""Reads are allowed by a rule; a person decides everything else."""

import anyio

from meup_agent import Agent, Proposal
from meup_agent.approval import AllowRule, Policy
from meup_agent.testing import MemorySpace

files, reviewer, paula = Agent("files"), Agent("reviewer"), Agent("paula")
DECIDE = [{"kind": "mcp/request"}, {"kind": "mcp/reject"}, {"kind": "chat"}]
PARTICIPANTS = {
    "files": [{"kind": "mcp/response"}],
    "reviewer": DECIDE,
    "paula": DECIDE,
    "writer": [{"kind": "mcp/proposal"}],
}

# Nothing else is allowed, so nothing else has to be forbidden.
reviewer.use(
    Policy(
        [AllowRule("read_file", arguments={"path": "docs/**"}, name="reads")]
    )
)


@files.tool
async def read_file(path: str) -> str:
    return f"the text of {path}"


@files.tool
async def write_file(path: str, text: str) -> str:
    return f"{len(text)} letters are in {path}"


@paula.on_proposal(tool="write_file")
async def decide(proposal: Proposal) -> None:
    print(f"paula is asked: {proposal.tool} {proposal.arguments['path']}")
    await proposal.fulfill()


async def main() -> None:
    space = MemorySpace(participants=PARTICIPANTS)
    async with (
        files.join(space.connector("files")),
        reviewer.join(space.connector("reviewer")),
        paula.join(space.connector("paula")),
        Agent("writer").join(space.connector("writer")) as writer,
    ):
        plan = {"path": "docs/plan.md"}
        print(await writer.call("files", "read_file", plan))
        print(await writer.call("files", "write_file", {**plan, "text": "hi"}))


if __name__ == "__main__":
    anyio.run(main)
