"""A tool is found by its name, and stays its owner's."""

import anyio

from meup_agent import Agent, Space
from meup_agent.errors import OwnerChanged, OwnerUnknown

agent = Agent("bot")


async def divide(space: Space, dividend: float, divisor: float) -> str:
    for found in await space.offers.find("divide"):
        about = found.described.get("description", "")
        print(f"{found.participant} has {found.name}: {about}")
    try:
        numbers = {"dividend": dividend, "divisor": divisor}
        result = await space.call(None, "divide", numbers)
    except OwnerChanged as changed:  # another participant took the name
        return f"not called: {changed}"
    except OwnerUnknown as unknown:  # none has it, or several
        return f"not called: {unknown}"
    return f"{dividend} / {divisor} = {result}"


async def main() -> None:
    async with agent.join() as space:  # MEUP_URL, MEUP_SPACE and MEUP_TOKEN
        print(await divide(space, 22, 7))


if __name__ == "__main__":
    anyio.run(main)
