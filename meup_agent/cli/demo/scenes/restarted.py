"""The gateway is killed while a tool runs, and started again: the result still arrives."""

from __future__ import annotations

from typing import Final

import anyio.to_thread

from meup_agent import Fulfillment, Progress
from meup_agent.cli.demo.arrivals import EventLog
from meup_agent.cli.demo.checks import Expectation
from meup_agent.cli.demo.files import BATCHES, INDEX, count_words
from meup_agent.cli.demo.stage import MAY, Stage
from meup_agent.cli.demo.telling import kinds_of, look_at, outcome_in_words
from meup_agent.client.endings import tool_value
from meup_agent.protocol import kinds
from meup_agent.transport.base import ABNORMAL

STORY: Final = "The gateway dies in the middle of a re-index. The work goes on; the result arrives."

MIDDLE: Final = BATCHES // 3


async def play(stage: Stage) -> list[Expectation]:
    """Kill the gateway when a re-index has begun, start it again, and wait for the result."""
    words = len(await anyio.to_thread.run_sync(count_words, stage.workspace))
    port = stage.gateway.port
    progress: EventLog[Progress] = EventLog()
    async with stage.proposer.propose(
        "files", "reindex", to="reviewer", on_progress=progress.add
    ) as proposal:
        await progress.first(lambda told: told.done >= MIDDLE)
        stage.gateway.kill()
        await stage.note("gateway", "killed", "every socket dropped", style="bold red")
        for name in MAY:
            await stage.lost(name)
        lost = {name: info.code for name, info in stage.losses.all}
        await stage.gateway.restart()
        await stage.note("gateway", "started", "on the same port again", style="bold green")
        outcome = await proposal.outcome()

    await stage.saw(proposal.id, kinds.MCP_RESPONSE)
    index = await look_at(stage, INDEX)
    found = tool_value(outcome) if isinstance(outcome, Fulfillment) else None
    return [
        Expectation(
            "dropped without a close",
            ", ".join(sorted(MAY)),
            ", ".join(sorted(name for name in lost if lost[name] == ABNORMAL)),
        ),
        Expectation("started again at port", str(port), str(stage.gateway.port)),
        Expectation("outcome", "fulfilled by reviewer, run by files", outcome_in_words(outcome)),
        Expectation("words in the index", str(words), str(found)),
        Expectation("on disk", "there", "there" if index else "not there"),
        Expectation("the space saw", "proposal, request, response", kinds_of(stage, proposal.id)),
    ]
