"""A proposer: it may not print, so it proposes that somebody prints."""

import anyio

from meup_agent import Agent, Fulfillment, Rejection, Space

agent = Agent("proposer")


async def propose(space: Space, pages: int) -> None:
    arguments = {"title": "Moby Dick", "pages": pages}
    async with space.propose(
        "tools", "print_pages", arguments, to="fulfiller"
    ) as proposal:
        outcome = await proposal.outcome()
    match outcome:
        case Fulfillment(by=by):
            print(f"{by} had {pages} pages printed")
        case Rejection(by=by, reason=reason):
            print(f"{by} said no to {pages} pages: {reason}")
        case _:
            print(f"nobody decided about {pages} pages")


async def main() -> None:
    async with agent.join() as space:
        await propose(space, 3)
        await propose(space, 1000)


if __name__ == "__main__":
    anyio.run(main)
