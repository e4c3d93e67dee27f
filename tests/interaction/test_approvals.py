"""An approval is carried out once, for the proposal that was read, or not at all (PROTOCOL 4.4)."""

from datetime import timedelta
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Context, ProposalState
from meup_agent.errors import AlreadyDecided, AmbiguousProposal, UsageError
from tests.cli.commands import request
from tests.interaction.cast import calculator, willing
from tests.interaction.people import Meeting, Notes, gathered, join, raw, until
from tests.interaction.views import call_of, has_state, is_, is_request, state_of
from tests.patience import PATIENCE
from tests.wire import kinds, payloads


def call(a: int) -> dict[str, Any]:
    return {"name": "add", "arguments": {"a": a, "b": 1}}


@pytest.mark.rule("4.4.executor_refuses")
@pytest.mark.parametrize("to", [(), ("tools",)], ids=["without to", "addressed"])
async def test_two_reviewers_run_it_once(
    meeting: Meeting, notes: Notes, to: tuple[str, ...]
) -> None:
    tools = Agent("tools")

    @tools.tool
    async def add(a: int, b: int) -> int:
        notes("add")
        await notes.until("both have asked")
        return a + b

    body = payloads.proposal("tools/call", call(1))
    async with (
        gathered(meeting, tools),
        raw(meeting, "proposer") as alice,
        raw(meeting, "reviewer") as bob,
        raw(meeting, "mallory") as carol,
    ):
        listing = payloads.request("tools/list", {}, "list")
        await bob.say(kinds.MCP_REQUEST, listing, id="list", to=("tools",))
        await alice.hear(lambda e: e.correlation == ("list",))
        await alice.say(kinds.MCP_PROPOSAL, body, id="p1")
        for peer, name in ((bob, "b1"), (carol, "c1")):
            asked = payloads.request("tools/call", call(1), name)
            await peer.hear(is_("p1"))
            await peer.say(kinds.MCP_REQUEST, asked, id=name, to=to, correlation=("p1",))
        refused = await alice.hear(
            lambda e: e.kind == kinds.MCP_RESPONSE and payloads.is_refusal(e.payload)
        )
        notes("both have asked")
        answered = await alice.hear(
            lambda e: e.kind == kinds.MCP_RESPONSE and not payloads.is_refusal(e.payload)
        )
        assert {*refused.correlation, *answered.correlation} == {"b1", "c1"}
    assert notes.all.count("add") == 1


@pytest.mark.rule("4.4.before_it_is_sent", "6.expires_at")
async def test_what_was_held_too_long_is_not_carried_out(meeting: Meeting) -> None:
    async with (
        gathered(meeting, calculator(), "reviewer") as (_, space),
        raw(meeting, "proposer") as alice,
    ):
        expired = space.gateway.now - timedelta(seconds=61)
        meta = {payloads.EXPIRES_AT: expired.isoformat(), payloads.TARGET: "tools"}
        body = payloads.proposal("tools/call", {**call(1), "_meta": meta})
        await alice.say(kinds.MCP_PROPOSAL, body, id="p1")
        await until(lambda: bool(space.proposals))
        with pytest.raises(AlreadyDecided, match="expired"):
            await space.proposals.get("p1").fulfill()


@pytest.mark.rule("4.4.before_it_is_sent")
async def test_fulfill_waits_as_long_as_its_proposer_does(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []

    async def noted(*args: Any, **more: Any) -> Any:
        asked.append(more["timeout"])
        return await request(*args, **more)

    monkeypatch.setattr("meup_agent.client.proposal.request", noted)
    async with gathered(meeting, calculator(), willing(), "proposer") as (_, _, proposers):
        for ttl in (600.0, None):
            async with proposers.propose("tools", "add", {"a": 1, "b": 1}, ttl=ttl) as proposal:
                assert await proposal.result() == 2
    long, endless = asked
    assert endless is None
    assert long is not None
    # A second more: we know the gateway's time by what it said last, which was under way for some.
    assert 600 < long <= 661


@pytest.mark.rule("4.13.returns_at_once")
async def test_what_was_taken_back_is_withdrawn_at_once(meeting: Meeting) -> None:
    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, "reviewer"),
            join(meeting, "proposer") as proposers,
            proposers.propose("tools", "add", {"a": 1, "b": 1}) as proposal,
        ):
            await proposal.withdraw()
            assert proposal.state is ProposalState.WITHDRAWN
        assert proposal.state is ProposalState.WITHDRAWN


@pytest.mark.rule("4.4.ambiguous", "4.4.reused_id")
async def test_an_id_alone_may_mean_several(meeting: Meeting) -> None:
    async with (
        gathered(meeting, calculator(), "reviewer") as (_, space),
        raw(meeting, "proposer") as alice,
    ):
        with pytest.raises(UsageError, match="no proposal 'p1'"):
            space.proposals.get("p1")
        first, second = (
            payloads.proposal("tools/call", {**call(number), "_meta": {payloads.TARGET: "tools"}})
            for number in (1, 2)
        )
        await alice.say(kinds.MCP_PROPOSAL, first, id="p1")
        await until(lambda: has_state(space, "p1", ProposalState.PENDING))
        read = space.proposals.get("p1", proposer="proposer")
        await alice.say(kinds.MCP_PROPOSAL, second, id="p1")
        await until(lambda: read.state is ProposalState.WITHDRAWN)
        with pytest.raises(AmbiguousProposal) as caught:
            space.proposals.get("p1", proposer="proposer")
        assert caught.value.proposers == ("proposer", "proposer")
        with pytest.raises(AlreadyDecided, match="withdrawn"):
            await read.fulfill()
        with pytest.raises(AlreadyDecided, match="withdrawn"):
            await read.reject("unsafe")
        (latest,) = space.proposals
        assert (await space.proposals.get(latest).fulfill()).result() == 3
        await until(lambda: state_of(space, "p1") is ProposalState.FULFILLED)
        asked = await alice.hear(is_request)
        assert call_of(asked).meta[payloads.PROPOSER] == "proposer"


@pytest.mark.rule("4.4.at_its_start")
async def test_what_was_withdrawn_unseen_does_not_begin(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def add(ctx: Context, a: int, b: int) -> int:
        notes("add")
        return a + b

    body = payloads.proposal("tools/call", call(1))
    async with (
        raw(meeting, "proposer") as alice,
        raw(meeting, "reviewer") as bob,
        gathered(meeting, tools) as (space,),
    ):
        await alice.say(kinds.MCP_PROPOSAL, body, id="p1")
        await until(lambda: has_state(space, "p1", ProposalState.PENDING))
        await alice.withdraw("p1", id="w")
        await until(lambda: has_state(space, "p1", ProposalState.WITHDRAWN))
        asked = payloads.request("tools/call", call(1), "b1")
        await bob.say(kinds.MCP_REQUEST, asked, id="b1", correlation=("p1",))
        # Our gateway refuses it, and so would the executor.
        await bob.hear(lambda e: e.kind in (kinds.SYSTEM_ERROR, kinds.MCP_RESPONSE))
    assert "add" not in notes.all
