"""Speaks as a participant whose agent runs on."""

import anyio

from meup_agent import Agent


async def main() -> None:
    async with Agent("person").join(beside=True) as space:
        await space.chat("The agent of this token stays connected.")
        print("said as", space.me, flush=True)


if __name__ == "__main__":
    anyio.run(main)
