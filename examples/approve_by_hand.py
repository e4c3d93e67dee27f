"""A person approves by hand, with what differs from the last call in view."""

from contextlib import AbstractAsyncContextManager

import anyio

from meup_agent import Agent, Reason, Rejection, Space
from meup_agent.approval import Inbox, InboxItem, ItemArrived
from meup_agent.testing import MemorySpace

EVERYTHING = [{"kind": "*"}]
PROPOSALS = [{"kind": "mcp/proposal"}, {"kind": "chat"}]
gateway = MemorySpace(
    participants={"tools": EVERYTHING, "lead": EVERYTHING, "bot": PROPOSALS}
)
tools = Agent("tools")


@tools.tool(destructive=True)
async def write_file(path: str, content: str) -> str:
    return f"{len(content)} letters are in {path}"


def join(agent: Agent) -> AbstractAsyncContextManager[Space]:
    name = agent.name
    return agent.join(gateway.connector(name), token=gateway.token(name))


async def decide(inbox: Inbox, item: InboxItem) -> None:
    """Decide as a person would who reads the same in `meup inbox`."""
    print(f"{item.proposer} proposes {item.tool} {item.arguments}")
    for danger in item.danger:
        print(f"  look twice: {danger}")
    if item.similar is not None:
        for change in item.similar.changes:
            print(f"  last time: {change.path} was {change.proposed}")
    if item.arguments["path"].startswith("docs/"):
        await inbox.approve(item)
    else:
        await inbox.reject(item, Reason.UNSAFE, "only in docs, please")


async def sit_at_the_inbox(inbox: Inbox) -> None:
    async for change in inbox.changes():
        if isinstance(change, ItemArrived):
            await inbox.settle()  # until the tools have described themselves
            await decide(inbox, change.item)


async def propose(bot: Space, path: str) -> None:
    call = {"path": path, "content": "one line"}
    async with bot.propose("tools", "write_file", call, to="lead") as proposal:
        outcome = await proposal.outcome()
        if isinstance(outcome, Rejection):
            why = await outcome.explanation()
            print(f"rejected: {outcome.reason}, {why}")
        else:
            print(f"done: {await proposal.result()}")


async def main() -> None:
    async with (
        join(tools),
        join(Agent("lead")) as lead,
        join(Agent("bot")) as bot,
        Inbox(lead) as inbox,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(sit_at_the_inbox, inbox)
        await propose(bot, "docs/plan.md")
        await propose(bot, "/etc/hosts")
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
