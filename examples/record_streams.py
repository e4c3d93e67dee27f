"""An agent that records every stream that it hears, whole or not."""

import anyio

from meup_agent import Agent, Context, StreamReader

agent = Agent("recorder")


@agent.on_stream
async def record(stream: StreamReader, ctx: Context) -> None:
    form = stream.info.fields.get("format", "bytes")
    count = 0
    async with await anyio.open_file(f"{stream.id}.log", "wb") as file:
        async for frame in stream:
            await file.write(frame + b"\n")
            count += 1
    # Cancelled, left by its owner, or cut by a reconnect: what came is all.
    whole = stream.ended is not None and stream.ended.is_complete
    whole = whole and not stream.lost and not stream.gaps
    how = "whole" if whole else f"in part: {stream.ended}"
    ctx.log.info("%s: %d frames of %s, %s", stream.id, count, form, how)


if __name__ == "__main__":
    agent.run()
