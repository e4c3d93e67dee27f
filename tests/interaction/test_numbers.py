"""Numbers that JSON has no form for reach no tool, from whatever verb they come."""

import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from meup_agent import Agent, Context, Proposal, Space
from meup_agent.errors import NotExpressible, ProposalRejected, RequestError, ToolError
from tests.interaction.people import Meeting, Notes, gathered
from tests.interaction.views import call_of, taped
from tests.wire import kinds

pytestmark = pytest.mark.rule("1.numbers")

UNSAYABLE = pytest.mark.parametrize(
    "number", [math.nan, -math.inf, pytest.param(2**1024, id="2^1024")]
)


def scales(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def weigh(grams: float | None = None) -> float | None:
        notes(("weigh", grams))
        return grams

    return agent


@UNSAYABLE
async def test_no_verb_says_such_a_number(meeting: Meeting, notes: Notes, number: float) -> None:
    arguments = {"grams": number, "other": None}

    async def propose(space: Space) -> None:
        async with space.propose("tools", "weigh", arguments):
            raise AssertionError("it was proposed")

    verbs: list[Callable[[Space], Awaitable[Any]]] = [
        lambda space: space.call("tools", "weigh", arguments),
        lambda space: space.request("tools", "tools/call", {"name": "weigh", **arguments}),
        lambda space: space.send("acme/note", [number, None]),
        propose,
    ]
    async with gathered(meeting, scales(notes), "second") as (_, caller), taped(caller) as tape:
        for verb in verbs:
            with pytest.raises(NotExpressible, match=r"not finite|a double|2\^53"):
                await verb(caller)
        await tape.all_said(caller)
        said = [each.kind for each in tape.envelopes if each.sender == "second"]
        assert said == [kinds.CHAT]
    assert notes.all == []


@UNSAYABLE
async def test_no_edit_is_such_a_number(meeting: Meeting, notes: Notes, number: float) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        try:
            await proposal.fulfill({"grams": number, "other": None})
        except NotExpressible as error:
            notes(type(error))
            await proposal.reject("invalid")

    async with gathered(meeting, scales(notes), reviewer, "proposer") as (_, _, proposer):
        with pytest.raises(ProposalRejected):
            await proposer.call("tools", "weigh", {"grams": 1.0}, to="reviewer")
    assert notes.all == [NotExpressible]


class Weight(BaseModel):
    grams: float
    unit: str | None = None


class Said(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")

    grams: float
    unit: str | None = None


@pytest.mark.parametrize("number", [math.nan, -math.inf])
async def test_result_with_such_a_number_is_a_failure(meeting: Meeting, number: float) -> None:
    tools = Agent("tools")

    @tools.tool
    async def plain() -> float:
        return number

    @tools.tool
    async def model() -> Weight:
        return Weight(grams=number)

    @tools.tool
    async def anything() -> dict[str, object]:
        return {"deep": [None, number]}

    @tools.tool
    async def unannotated():  # type: ignore[no-untyped-def]  # as people write them
        return [Weight(grams=number)]

    @tools.tool
    async def in_words() -> Said:
        return Said(grams=number)

    @tools.tool
    async def nothing() -> float | None:
        return None

    async with gathered(meeting, tools, "second") as (_, caller):
        for name in ("plain", "model", "anything", "unannotated"):
            with pytest.raises(ToolError, match="not finite"):
                await caller.call("tools", name)
        assert (await caller.call("tools", "in_words"))["grams"] in ("NaN", "-Infinity")
        assert await caller.call("tools", "nothing") is None


async def test_progress_with_such_a_number_is_the_handlers_failure(meeting: Meeting) -> None:
    tools = Agent("tools")

    @tools.tool
    async def slow(ctx: Context) -> None:
        ctx.progress(1.0, math.inf)

    async with gathered(meeting, tools, "second") as (_, caller):
        with pytest.raises((ToolError, RequestError), match="not finite"):
            await caller.call("tools", "slow", on_progress=lambda _: None)


async def test_integers_above_the_exact_ones_pass_unchanged(meeting: Meeting) -> None:
    tools = Agent("tools")

    @tools.tool
    async def same(number: int) -> int:
        return number

    async with gathered(meeting, tools, "second") as (_, caller), taped(caller) as tape:
        for number in (2**53 + 1, -(2**70), 10**308):
            assert await caller.call("tools", "same", {"number": number}) == number
        assert call_of(tape.of(kinds.MCP_REQUEST)[0]).arguments == {"number": 2**53 + 1}
