"""The owner of a tool: a printer that takes its time."""

import anyio

from meup_agent import Agent, Context

agent = Agent("printer")


@agent.tool
async def print_pages(title: str, pages: int, ctx: Context) -> str:
    """Print some pages of a document."""
    try:
        for page in range(1, pages + 1):
            await anyio.sleep(0.3)  # the paper moves
            print(f"page {page} of {title!r}")
            await ctx.progress(page, pages)
        return f"printed {pages} pages of {title!r}"
    finally:
        if ctx.reason is not None:
            chain = " <- ".join(link.by for link in ctx.reason.chain)
            print(f"stopped in the middle: {ctx.reason.code}, {chain}")
        print("the printer is free")


if __name__ == "__main__":
    agent.run()
