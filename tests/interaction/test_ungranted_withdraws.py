"""Withdraws at a gateway that grants none: a caller is told, and nothing is sent (PROTOCOL 4.3).

Our own gateway lets each member take back what it has proposed; those of other make need not.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from meup_agent import Agent, ProposalHandle, Space
from meup_agent.errors import Refused
from tests.gateways import Connector
from tests.interaction.people import QUICK, Meeting, gathered
from tests.interaction.views import is_, taped
from tests.wire import decode, encode, encode_json, kinds

pytestmark = pytest.mark.anyio


class WithoutWithdraw:
    """A connection whose welcome grants proposals and chats alone."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        frame: bytes = await anext(self._transport)
        welcome = decode(frame)
        if welcome.kind != kinds.SYSTEM_WELCOME:
            return frame
        payload = dict(welcome.payload_object)
        granted = [{"kind": kinds.MCP_PROPOSAL}, {"kind": kinds.CHAT}]
        payload["you"] = {**payload["you"], "capabilities": granted}
        return encode(welcome.replace(raw_payload=encode_json(payload)), "meup/v0.1")


def without_withdraw(connector: Connector) -> Connector:
    @asynccontextmanager
    async def dial(headers: Mapping[str, str]) -> AsyncGenerator[Any]:
        async with connector(headers) as transport:
            yield WithoutWithdraw(transport)

    return dial


WAYS: dict[str, Callable[[Space, ProposalHandle], Awaitable[object]]] = {
    "one": lambda _, proposal: proposal.withdraw(),
    "all": lambda space, _: space.withdraw_all(),
}


@pytest.mark.rule("4.3.may_withdraw")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_withdraw_that_is_not_granted_raises_and_nothing_is_sent(
    meeting: Meeting, way: Callable[[Space, ProposalHandle], Awaitable[object]]
) -> None:
    connector = without_withdraw(meeting.connector("proposer"))
    async with (
        gathered(meeting, "observer") as (observer,),
        taped(observer) as tape,
        Agent("proposer").join(connector, token=meeting.token("proposer"), settings=QUICK) as space,
        space.propose("tools", "x") as proposal,
    ):
        await tape.until(is_(proposal.id))
        with pytest.raises(Refused, match="'proposer' allows mcp/withdraw"):
            await way(space, proposal)
        assert proposal.state.is_pending
        await tape.all_said(space)
        assert not tape.of(kinds.MCP_WITHDRAW)
