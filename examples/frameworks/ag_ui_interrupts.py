"""A run of AG-UI that ends while its call waits, and those that resume it.

Here the runs follow each other; a server of AG-UI reads each of a request.
"""

import asyncio
from uuid import uuid4

from ag_ui.core import Interrupt, ResumeEntry, RunAgentInput

from meup_agent import Agent
from meup_agent.adapters.ag_ui import SpaceInterrupts


async def run(
    interrupts: SpaceInterrupts, answers: list[ResumeEntry]
) -> list[Interrupt]:
    given = RunAgentInput(
        thread_id="thread", run_id=uuid4().hex, messages=[], resume=answers
    )
    told = await interrupts.resume(given)
    if not answers:
        tools = {each.exposed: each for each in await interrupts.tools.read()}
        numbers = {"a": 2, "b": 3}
        told += [
            await interrupts.call(given, tools["tools_add"], numbers, "call-1")
        ]
    # What it tells are events of the run, but for the interrupts, which end it.
    for event in [*told, interrupts.finish(given, told)]:
        if not isinstance(event, Interrupt):
            print(event.model_dump_json(by_alias=True, exclude_none=True))
    return [each for each in told if isinstance(each, Interrupt)]


async def main() -> None:
    async with Agent("writer").join() as space:
        interrupts = SpaceInterrupts(space, within=1)
        waiting = await run(interrupts, [])
        while waiting:
            answers = [
                ResumeEntry(interrupt_id=each.id, status="resolved")
                for each in waiting
            ]
            waiting = await run(interrupts, answers)


if __name__ == "__main__":
    asyncio.run(main())
