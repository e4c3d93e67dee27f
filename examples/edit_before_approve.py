"""A person edits a call before approving it: both ends know the difference."""

from contextlib import AbstractAsyncContextManager

import anyio

from meup_agent import Agent, Fulfillment, Space
from meup_agent.approval import Inbox, ItemArrived
from meup_agent.errors import InvalidArguments
from meup_agent.testing import MemorySpace

EVERYTHING = [{"kind": "*"}]
PROPOSALS = [{"kind": "mcp/proposal"}, {"kind": "chat"}]
gateway = MemorySpace(
    participants={"tools": EVERYTHING, "lead": EVERYTHING, "bot": PROPOSALS}
)
tools = Agent("tools")


@tools.tool
async def send(to: str, text: str) -> str:
    return f"sent to {to}: {text}"


def join(agent: Agent) -> AbstractAsyncContextManager[Space]:
    name = agent.name
    return agent.join(gateway.connector(name), token=gateway.token(name))


async def edit_and_approve(inbox: Inbox) -> None:
    change = await anext(inbox.changes())
    assert isinstance(change, ItemArrived)
    item = change.item
    await inbox.settle()  # until the tools have told what arguments they take
    try:
        await inbox.approve(item, {**item.arguments, "to": 12})
    except InvalidArguments as error:
        print(f"not sent: {error}")
    # Nothing was sent, so it waits as before.
    await inbox.approve(item, {**item.arguments, "to": "team@example.org"})


async def main() -> None:
    async with (
        join(tools),
        join(Agent("lead")) as lead,
        join(Agent("bot")) as bot,
        Inbox(lead) as inbox,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(edit_and_approve, inbox)
        call = {"to": "everybody@example.org", "text": "hello"}
        async with bot.propose("tools", "send", call, to="lead") as proposal:
            outcome = await proposal.outcome()
        assert isinstance(outcome, Fulfillment)
        for each in outcome.changes:
            print(f"{outcome.by} made {each.fulfilled} of {each.proposed}")
        print(outcome.result(accept_edits=True))


if __name__ == "__main__":
    anyio.run(main)
