"""A proposer that wants a book, and after three pages wants it no more."""

import anyio

from meup_agent import Agent, Progress, Reason

agent = Agent("proposer")


async def main() -> None:
    enough = anyio.Event()

    def watch(progress: Progress) -> None:
        print(f"page {progress.done:g} of {progress.total:g}")
        if progress.done >= 3:
            enough.set()

    arguments = {"title": "Moby Dick", "pages": 100}
    async with agent.join() as space:
        async with space.propose(
            "tools", "print_pages", arguments, to="fulfiller", on_progress=watch
        ) as proposal:
            await enough.wait()
            await proposal.withdraw(Reason.NO_LONGER_NEEDED)
        print("withdrawn")


if __name__ == "__main__":
    anyio.run(main)
