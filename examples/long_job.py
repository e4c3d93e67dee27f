"""Long jobs that end cleanly when cancelled: one async, one in a thread.

Both write a file row by row, and give it its name when it is complete. Whatever
ends a job early, a withdrawn proposal, a cancelled request, Ctrl-C or an error,
no half-written file stays.
"""

import time
from pathlib import Path
from uuid import uuid4

import anyio

from meup_agent import Agent, Context

agent = Agent("exporter")

A_ROW_TAKES = 0.01  # seconds; stands for work


@agent.tool
async def export(rows: int, ctx: Context) -> str:
    """Write numbers and their squares into a file, and return its name."""
    complete = anyio.Path(f"export-{uuid4()}.csv")
    part = complete.with_suffix(".part")
    file = await anyio.open_file(part, "w")
    try:
        for row in range(rows):
            # A cancellation arrives at an await, as an exception. Let it pass.
            await anyio.sleep(A_ROW_TAKES)
            await file.write(f"{row},{row * row}\n")
            await ctx.progress(row + 1, rows)
        await file.aclose()
        await part.rename(complete)
        return complete.name
    finally:
        if ctx.reason is not None:
            ctx.log.info("stopped by %r: %s", ctx.reason.by, ctx.reason)
        # In a cancelled handler every further await fails, but not in here.
        # The seconds are a deadline, so that a hanging clean-up ends as well.
        async with ctx.cleanup(5):
            await file.aclose()
            await part.unlink(missing_ok=True)


@agent.tool
def export_in_a_thread(rows: int, ctx: Context) -> str:
    """Write numbers and their squares into a file, and return its name."""
    complete = Path(f"export-{uuid4()}.csv")
    part = complete.with_suffix(".part")
    try:
        with part.open("w") as file:
            for row in range(rows):
                # Nothing can interrupt a thread: it has to look. This raises.
                ctx.check_cancelled()
                time.sleep(A_ROW_TAKES)
                file.write(f"{row},{row * row}\n")
                ctx.progress(row + 1, rows)
        part.rename(complete)
        return complete.name
    finally:
        # A thread is not cancelled, so its clean-up needs no protection.
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    agent.run()
