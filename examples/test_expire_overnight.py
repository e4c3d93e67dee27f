"""A proposal that nobody decides overnight is not carried out in the morning.

The night takes no time: the clock of the test jumps to whatever is waited for.
Run it with ``python -m pytest examples/test_expire_overnight.py``.
"""

import anyio
import pytest
from trio.testing import MockClock

from meup_agent import Agent, Proposal
from meup_agent.errors import AlreadyDecided, ProposalExpired
from meup_agent.testing import MemorySpace

pytestmark = pytest.mark.anyio

HOUR = 3600
PARTICIPANTS = {
    "night_shift": [{"kind": "mcp/proposal"}],
    "reviewer": [{"kind": kind} for kind in ("mcp/request", "mcp/reject")],
    "tools": [],
}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}


async def test_silence_is_no_consent() -> None:
    deleted: list[str] = []
    tools = Agent("tools")

    @tools.tool
    async def delete(path: str) -> None:
        deleted.append(path)

    on_the_desk: list[Proposal] = []
    reviewer = Agent("a reviewer who has gone home")

    @reviewer.on_proposal
    async def leave_on_the_desk(proposal: Proposal) -> None:
        on_the_desk.append(proposal)

    space = MemorySpace(participants=PARTICIPANTS)
    async with (
        tools.join(space.connector("tools")),
        reviewer.join(space.connector("reviewer")),
        Agent("night shift").join(space.connector("night_shift")) as night,
    ):
        old = {"path": "backup.tar"}
        async with night.propose("tools", "delete", old, ttl=8 * HOUR) as it:
            with pytest.raises(ProposalExpired):
                await it.result()

        await anyio.sleep(HOUR)
        with pytest.raises(AlreadyDecided):  # in the morning, too late
            await on_the_desk[0].fulfill()
    assert deleted == []
