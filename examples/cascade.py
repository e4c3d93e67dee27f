"""Steps that follow one another: what a rejected one leads to never runs.

Start a fulfiller first, and a tool owner that has the tools of STEPS.
"""

import sys
from contextlib import AsyncExitStack

import anyio

from meup_agent import (
    Agent,
    Fulfillment,
    ProposalHandle,
    Rejection,
    Space,
    Withdrawal,
)
from meup_agent.errors import ParticipantGone

STEPS = {  # a tool, and the steps that must be done before it
    "back_up": [],
    "migrate": ["back_up"],
    "restart": ["migrate"],
    "announce": ["back_up", "restart"],
}

agent = Agent("proposer")


async def propose_steps(space: Space) -> None:
    async with AsyncExitStack() as stack:
        steps: dict[str, ProposalHandle] = {}
        for tool, before in STEPS.items():
            block = space.propose(
                "tools",
                tool,
                to="fulfiller",
                ttl=60,  # for each, from the moment at which it is offered
                depends_on=[steps[each] for each in before],
            )
            steps[tool] = await stack.enter_async_context(block)
        # All are proposed. Others have heard of the first one alone.
        for tool, step in steps.items():
            match await step.outcome():
                case Fulfillment() as done:
                    print(f"{tool}: {done.result()}")
                case Rejection(by=by, reason=reason):
                    print(f"{tool}: rejected by {by} ({reason})")
                case Withdrawal(reason=reason):
                    print(f"{tool}: withdrawn ({reason})")
                case other:  # Expiry or Gone
                    print(f"{tool}: {other}")


async def main() -> None:
    async with agent.join() as space:  # MEUP_URL, MEUP_SPACE and MEUP_TOKEN
        try:
            await space.present("fulfiller", timeout=5)
        except ParticipantGone as gone:
            sys.exit(f"start fulfiller.py first: {gone}")
        await propose_steps(space)


if __name__ == "__main__":
    anyio.run(main)
