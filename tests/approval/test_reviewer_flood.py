"""Floods of questions and votes at a reviewer: one participant takes no place of the others'."""

from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent import ProposalState
from meup_agent.errors import RequestError
from tests.approval.test_inbox_rules import VIRTUAL
from tests.approval.test_votes import POLICY as POLICY
from tests.approval.test_votes import office
from tests.interaction.people import InMemory, Notes, until
from tests.interaction.views import has_state

pytestmark = [pytest.mark.rule("5.reviewers.flood"), VIRTUAL]

FLOOD = 200
"""More than a reviewer's handlers, and less than all that may wait for one."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("dev.meup/waiting", {}),
        ("dev.meup/vote", {"vote": "approve"}),
        ("dev.meup/judge", {"arguments": {"version": 8}}),
    ],
)
async def test_a_flood_of_one_keeps_no_other_from_being_answered(
    path: Path, notes: Notes, method: str, more: dict[str, Any]
) -> None:
    answers = Counter[str]()
    async with office(InMemory(), path, notes) as o, o.reviewer(), o.proposed() as votable:
        # It is for one that is not here, so that the reviewer has no rule for it.
        elsewhere = o.spaces["proposer"].propose("tools", "deploy", {"version": 8}, to="observer")
        async with elsewhere as pending:
            await until(lambda: has_state(o.spaces["second"], pending.id, ProposalState.PENDING))
            about = {"proposal": pending.id, "proposer": "proposer"}
            params = {**about, **more} if more else {}

            async def ask() -> None:
                try:
                    await o.spaces["second"].request("reviewer", method, params, timeout=None)
                    answers["answered"] += 1
                except RequestError as error:
                    is_busy = error.data == {"reason": "busy"}
                    answers["busy" if is_busy else "refused"] += 1

            async with anyio.create_task_group() as tasks:
                for _ in range(FLOOD):
                    tasks.start_soon(ask)
                await anyio.sleep(0.01)  # by a clock that moves when nothing else does
                assert (await o.vote("deep", votable.id))["outcome"] == "open"
                assert (await o.vote("mallory", votable.id))["outcome"] == "approved"
                # Votes that came before still wait for a rule, three seconds long.
                assert answers["refused"] == 0
            assert await votable.result() == 7
    assert answers.total() == FLOOD
    if method != "dev.meup/judge":  # whose answers wait for nothing, once the tools are known
        assert answers["busy"] >= FLOOD - 2 * 4


async def test_a_flood_leaves_out_no_proposal_of_another_that_takes_votes(
    path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meup_agent.approval.reviewer.methods.MAX_WAITING_BYTES", 4_000)
    async with office(InMemory(), path, notes) as o, o.reviewer(), AsyncExitStack() as stack:
        for number in range(20):
            for tool, arguments in (("add", {"a": number}), ("deploy", {"version": number})):
                flood = o.spaces["mallory"].propose(
                    "tools", tool, arguments, to="reviewer", ttl=None
                )
                await stack.enter_async_context(flood)
        votable = await stack.enter_async_context(o.proposed())
        listed = await o.spaces["second"].request("reviewer", "dev.meup/waiting")
        told = [(each["proposer"], each["kind"]) for each in listed["proposals"]]
        assert ("proposer", "quorum") in told
        assert ("mallory", "ask") not in told
        assert listed["omitted"] == 41 - len(told) > 20
        assert (await o.vote("second", votable.id))["outcome"] == "open"
