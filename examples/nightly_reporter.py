"""A nightly reporter: at 22:00 it says what became of the day's proposals.

It needs a gateway alone. Run it as guest1; with `--now` it reports at once,
and ends.
"""

import sys
from collections import Counter
from datetime import datetime, timedelta

import anyio

from meup_agent import Agent, Space

HOUR = 22  # by this machine's clock

agent = Agent("reporter")


def seconds_until(hour: int, now: datetime) -> float:
    at = now.replace(hour=hour, minute=0, second=0, microsecond=0)
    return (at + timedelta(days=at <= now) - now).total_seconds()


async def report(space: Space) -> str:
    """What was decided, and what waits, by tool."""
    since = datetime.now().astimezone() - timedelta(days=1)
    ends: Counter[tuple[str, str]] = Counter()
    async for each in space.proposals.list(state="decided"):
        if each.decided_at is None or each.decided_at >= since:
            ends[each.tool, str(each.state)] += 1
    async for each in space.proposals.list():
        ends[each.tool, "waiting"] += 1
    lines = [f"{tool}: {n} {end}" for (tool, end), n in sorted(ends.items())]
    return "\n".join(lines) or "nothing was proposed"


async def main() -> None:
    async with agent.join() as space:  # MEUP_URL, MEUP_SPACE and MEUP_TOKEN
        while True:
            if "--now" not in sys.argv:
                now = datetime.now().astimezone()
                print(f"the next report is at {HOUR}:00")
                await anyio.sleep(seconds_until(HOUR, now))
            said = await report(space)
            print(said)
            await space.chat(said)
            if "--now" in sys.argv:
                return


if __name__ == "__main__":
    anyio.run(main)
