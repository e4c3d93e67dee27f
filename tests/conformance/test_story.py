"""Proposer, fulfiller and tool owner at the gateways that exist, from end to end (PROTOCOL 2)."""

import anyio
import pytest

from meup_agent import (
    Agent,
    Context,
    Fulfillment,
    Progress,
    Proposal,
    Reason,
    Rejection,
    Withdrawal,
)
from meup_agent.errors import ProposalEdited, ProposalRejected
from tests.conformance.gateways import ExistingGateway
from tests.conformance.people import joined, only_on_v04, writer
from tests.patience import PATIENCE


class Files:
    """A tool owner, and what becomes of its work."""

    def __init__(self) -> None:
        self.agent = Agent("files")
        for tool in (self.write, self.copy, self.wait):
            self.agent.tool(tool)
        self.running = anyio.Event()
        self.stopped: list[str] = []
        self.ended = anyio.Event()

    async def write(self, path: str) -> str:
        return f"wrote {path}"

    async def copy(self, ctx: Context) -> int:
        await ctx.progress(1, 2, "half")
        return 2

    async def wait(self, ctx: Context) -> None:
        self.running.set()
        try:
            await anyio.sleep_forever()
        finally:
            assert ctx.reason is not None
            self.stopped.append(ctx.reason.code)
            self.ended.set()


class Reviewer:
    """Approves what it is told to approve."""

    def __init__(self) -> None:
        self.agent = Agent("reviewer")
        self.agent.on_proposal(self.review)
        self.agent.on_withdraw(self.withdrawn)
        self.seen: list[Fulfillment] = []
        self.withdrawals: list[Withdrawal] = []
        self.told = anyio.Event()
        self.answer = "fulfill"
        self.after_rejection = anyio.Event()

    async def review(self, proposal: Proposal) -> None:
        if self.answer == "reject":
            await proposal.reject(Reason.UNSAFE, explain="not here")
        elif self.answer == "edit":
            self.seen.append(await proposal.fulfill({"path": "b.txt"}))
        else:
            self.seen.append(await proposal.fulfill())

    async def withdrawn(self, withdrawal: Withdrawal) -> None:
        self.withdrawals.append(withdrawal)
        self.told.set()


@pytest.mark.rule("2.join_frame", "1.dialect_adopted", "2.guarantees")
async def test_agents_join_by_their_names_and_speak_its_dialect(gateway: ExistingGateway) -> None:
    async with joined(gateway, "proposer") as space:
        assert (space.me, space.gateway.dialect) == ("proposer", gateway.version.protocol)
        given, hidden = space.gateway.guarantees, gateway.version.to_routes
        assert not given.identity_checked
        assert (given.hidden_targets, given.echo) == (hidden, not hidden)
    claims = {"participantId": "proposer", "space": "demo", "token": "proposer-token"}
    assert gateway.frames[0].frame == {"type": "join", **claims}


async def test_a_participant_may_be_named_otherwise_than_its_agent(
    gateway: ExistingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    with anyio.fail_after(PATIENCE):
        async with joined(gateway, "caller", participant="somebody") as space:
            assert space.me == "somebody"
        monkeypatch.setenv("MEUP_PARTICIPANT", "else")
        async with joined(gateway, "caller") as space:
            assert space.me == "else"


async def test_a_call_that_is_given_up_stops_its_tool(gateway: ExistingGateway) -> None:
    files = Files()
    async with joined(gateway, files.agent), joined(gateway, "caller") as space:
        assert await space.call("files", "write", {"path": "a"}) == "wrote a"
        assert [tool["name"] for tool in await space.offers.tools("files")] == [
            "write",
            "copy",
            "wait",
        ]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(space.call, "files", "wait")
            await files.running.wait()
            tasks.cancel_scope.cancel()
        await files.ended.wait()
    assert files.stopped == ["no_longer_needed"]


@pytest.mark.rule("2.relay.sent", "2.relay.accepted", "2.relay.edits", "2.routing")
@pytest.mark.parametrize("to", [(), ("reviewer",)], ids=["broadcast", "addressed"])
async def test_a_proposal_is_fulfilled_and_its_proposer_sees_the_outcome(
    gateway: ExistingGateway, to: tuple[str, ...]
) -> None:
    files, reviewer = Files(), Reviewer()
    async with joined(gateway, files.agent), joined(gateway, reviewer.agent):
        async with joined(gateway, "proposer") as space:
            async with space.propose("files", "write", {"path": "a"}, to=to) as proposal:
                outcome = await proposal.outcome()
            assert isinstance(outcome, Fulfillment)
            assert (outcome.by, outcome.executor) == ("reviewer", "files")
            assert (outcome.edited, outcome.knows_edits) == (False, True)
            assert outcome.relayed == gateway.version.to_routes
            assert proposal.state == "fulfilled"
            assert await space.call("files", "write", {"path": "a"}, to=to) == "wrote a"
    assert [seen.executor for seen in reviewer.seen] == ["files", "files"]


@pytest.mark.rule("2.relay.edits")
async def test_a_proposer_learns_that_something_else_was_run(gateway: ExistingGateway) -> None:
    files, reviewer = Files(), Reviewer()
    reviewer.answer = "edit"
    async with joined(gateway, files.agent), joined(gateway, reviewer.agent):
        async with joined(gateway, "proposer") as space:
            with pytest.raises(ProposalEdited) as error:
                await space.call("files", "write", {"path": "a"}, to="reviewer")
    assert (error.value.by, error.value.value) == ("reviewer", "wrote b.txt")
    assert error.value.certain
    hidden = gateway.version.to_routes
    assert [change.path for change in error.value.changes] == ([] if hidden else ["arguments.path"])


@pytest.mark.rule("2.relay.progress")
async def test_a_proposer_follows_the_progress(gateway: ExistingGateway) -> None:
    files, reviewer = Files(), Reviewer()
    told: list[Progress] = []
    async with joined(gateway, files.agent), joined(gateway, reviewer.agent):
        async with joined(gateway, "proposer") as space:
            result = await space.call("files", "copy", to="reviewer", on_progress=told.append)
    assert result == 2
    assert told == [Progress(1, 2, "half")]


async def test_a_proposal_is_rejected_with_its_reason(gateway: ExistingGateway) -> None:
    reviewer = Reviewer()
    reviewer.answer = "reject"
    async with joined(gateway, reviewer.agent), joined(gateway, "proposer") as space:
        with pytest.raises(ProposalRejected) as error:
            await space.call("files", "write", {"path": "a"}, to="reviewer")
        assert (error.value.by, error.value.reason) == ("reviewer", "unsafe")
        async with space.propose("files", "write", {"path": "a"}) as proposal:
            outcome = await proposal.outcome()
        assert isinstance(outcome, Rejection)


@pytest.mark.rule("5.proposal.settled.rejected")
async def test_code_after_a_rejection_runs_to_its_end(gateway: ExistingGateway) -> None:
    """The withdraw with which the proposer answers the rejection cancels no handler."""
    agent, came, seen = Agent("reviewer"), anyio.Event(), []

    @agent.on_proposal
    async def review(proposal: Proposal, ctx: Context) -> None:
        await proposal.reject(Reason.POLICY)
        await came.wait()
        await anyio.lowlevel.checkpoint()
        seen.append(ctx.cancelled)

    async with joined(gateway, agent) as there, joined(gateway, "proposer") as space:
        with there.watch() as watcher:
            with pytest.raises(ProposalRejected):
                await space.call("files", "write", to="reviewer")
            while (await anext(watcher)).kind != "mcp/withdraw":
                pass
            came.set()
    assert seen == [False]


@pytest.mark.parametrize("to", [(), ("reviewer",)], ids=["broadcast", "addressed"])
async def test_a_withdrawal_stops_what_runs(gateway: ExistingGateway, to: tuple[str, ...]) -> None:
    files, reviewer = Files(), Reviewer()
    async with joined(gateway, files.agent), joined(gateway, reviewer.agent):
        async with joined(gateway, "proposer") as space:
            async with space.propose("files", "wait", to=to) as proposal:
                await files.running.wait()
                await proposal.withdraw(Reason.POLICY)
                outcome = await proposal.outcome()
            await files.ended.wait()
            await reviewer.told.wait()
    assert isinstance(outcome, Withdrawal)
    assert files.stopped == ["policy"]
    assert [told.cause.code for told in reviewer.withdrawals] == ["policy"]
    assert reviewer.seen == []


@pytest.mark.rule("2.second_welcome")
@only_on_v04  # the other sends no second welcome
async def test_a_grant_is_an_update_and_no_new_session(gateway: ExistingGateway) -> None:
    agent, joins = Agent("proposer"), []

    @agent.on_join
    async def came(ctx: Context) -> None:
        joins.append(ctx.sender)

    request = {"method": "tools/call", "params": {"name": "write"}}
    async with joined(gateway, agent) as space, joined(gateway, "reviewer") as other:
        assert not space.may("mcp/request", request)
        before = space.gateway.guarantees
        with space.watch() as watcher:
            gateway.grant("proposer", [{"kind": "mcp/request"}])
            while (await anext(watcher)).kind != "capability/grant":
                pass
            assert space.may("mcp/request", request)
            marker = await other.chat("done")
            while (await anext(watcher)).id != marker:
                pass
        assert space.gateway.guarantees == before
        assert space.me == "proposer"
    assert joins.count("reviewer") <= 1


@pytest.mark.rule("2.routing", "race.two_fulfillers")
@pytest.mark.parametrize("to", [(), ("reviewer", "caller", "files")], ids=["all", "addressed"])
async def test_of_two_fulfillers_one_runs_it(gateway: ExistingGateway, to: tuple[str, ...]) -> None:
    """The executor must see the proposal to know of the race, where targets are hidden."""
    ran: list[str] = []
    first, second = Reviewer(), Reviewer()
    second.agent.name = "caller"
    async with (
        joined(gateway, writer(ran, "{}")),
        joined(gateway, first.agent),
        joined(gateway, second.agent),
        joined(gateway, "proposer") as space,
    ):
        assert await space.call("files", "write", {"path": "a"}, to=to) == "a"
    assert ran == ["a"]
