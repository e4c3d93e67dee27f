"""An existing gateway knows no connection beside: a second join throws the running agent out."""

from collections.abc import Generator
from functools import partial

import anyio
import pytest

from meup_agent import Agent
from meup_agent.errors import CannotJoinBeside
from tests.conformance.gateways import MEUP_V02, MEW_V04, ExistingGateway
from tests.patience import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.rule("3.beside.no_echo")]


@pytest.fixture(params=[MEUP_V02, MEW_V04], ids=lambda each: each.protocol)
def existing(request: pytest.FixtureRequest) -> Generator[ExistingGateway]:
    every = [{"kind": "*"}, {"kind": "mcp/*"}]
    gateway = ExistingGateway(
        request.param, tokens={"my-token": "reviewer"}, capabilities={"reviewer": every}
    )
    with gateway.in_thread():
        yield gateway


@pytest.mark.parametrize("participant", [None, "reviewer"])
async def test_no_join_frame_is_sent_and_the_agent_stays(
    existing: ExistingGateway, participant: str | None
) -> None:
    agent = Agent("reviewer")
    join = partial(agent.join, existing.url, space="default", token="my-token")
    with anyio.fail_after(PATIENCE):
        async with join(participant="reviewer") as running:
            with pytest.raises(CannotJoinBeside, match=r"knows no connection beside.*--as"):
                async with join(participant=participant, beside=True):
                    pass
            await running.chat("still here")
            assert running.connected
    assert len([each for each in existing.frames if each.frame.get("type") == "join"]) == 1


async def test_who_may_take_over_joins_all_the_same(existing: ExistingGateway) -> None:
    joining = Agent("reviewer").join(
        existing.url, space="default", token="my-token", beside=True, take_over=True
    )
    with anyio.fail_after(PATIENCE):
        async with joining as space:
            assert space.me == "reviewer"
            await space.chat("hello")
