"""Prints what is said, beside the agent that runs with the same token."""

import anyio

from meup_agent import Agent


async def main() -> None:
    async with Agent("monitor").join(observe=True) as space:
        here = [participant.id for participant in space.participants]
        print("here:", *here, flush=True)
        with space.watch() as envelopes:
            async for envelope in envelopes:
                print(envelope.sender, "says", envelope.kind, flush=True)


if __name__ == "__main__":
    anyio.run(main)
