"""A proposer: it may not call tools, so it proposes calls.

Start calculator.py and fulfiller.py first.
"""

import sys
from typing import Any

import anyio

from meup_agent import Agent, Chat, Fulfillment, Rejection, Space
from meup_agent.errors import ParticipantGone

agent = Agent("proposer")


@agent.on_chat
async def listen(chat: Chat) -> None:
    # The words for a rejection follow it as a chat: nobody waits for them.
    print(f"{chat.sender}: {chat.text}")


async def propose_division(space: Space, **arguments: Any) -> None:
    # "tools" should carry it out, and "fulfiller" should decide. Leaving the
    # block with nothing decided, whatever the way out, withdraws the proposal.
    async with space.propose(
        "tools", "divide", arguments, to="fulfiller", ttl=30
    ) as proposal:
        match await proposal.outcome():
            case Fulfillment() as done:
                result = done.result(accept_edits=True)
                print(f"fulfilled by {done.by}: {result}")
                for change in done.changes:
                    print(f"  {change.path}: {change.fulfilled}")
                    print(f"    instead of {change.proposed}")
            case Rejection(by=by, reason=reason):
                print(f"rejected by {by}: {reason}")
            case other:  # Expiry, Gone or Withdrawal
                print(f"nobody decided: {other}")


async def main() -> None:
    async with agent.join() as space:  # MEUP_URL, MEUP_SPACE and MEUP_TOKEN
        try:
            for needed in ("tools", "fulfiller"):
                await space.present(needed, timeout=5)
        except ParticipantGone as gone:
            sys.exit(f"start calculator.py and fulfiller.py first: {gone}")
        await propose_division(space, dividend=22, divisor=7)
        await propose_division(space, dividend=1, divisor=0)
        await propose_division(space, dividend=2, divisor=3, digits=12)
        # In one line: a request where our capabilities allow it, otherwise a
        # proposal. What is not what we proposed is raised: ProposalRejected,
        # ProposalEdited, ToolError …
        print(
            await space.call("tools", "add", {"a": 1, "b": 2}, to="fulfiller")
        )


if __name__ == "__main__":
    anyio.run(main)
