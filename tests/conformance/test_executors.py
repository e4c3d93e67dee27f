"""The addressee of a proposal: in the published dialects its executor, in ours who decides.

Each of a person at a terminal of existing spaces, their agents, and agents of ours proposes,
approves and executes.
"""

from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio import to_thread

from meup_agent import Agent, Context, Fulfillment, Proposal, Settings, Space
from meup_agent.gateway import ThreadedGateway
from tests.conformance.reference_peers import Fulfiller, ToolOwner
from tests.conformance.reference_peers import Proposer as TheirProposer
from tests.conformance.versions import MEUP_V02, MEW_V04
from tests.conformance.wire import V01, V02, V04, Json, Site, Wire, serving
from tests.patience import PATIENCE

CALLS = [{"kind": "mcp/*"}, {"kind": "chat"}]
MAY: dict[str, list[Json]] = {
    "proposer": [{"kind": "mcp/proposal"}, {"kind": "chat"}],
    "approver": CALLS,
    "files": [{"kind": "mcp/response"}, {"kind": "mcp/reject"}, {"kind": "chat"}],
    "looker": [{"kind": "mcp/reject"}, {"kind": "chat"}],
}
VERSION = {V02: MEUP_V02, V04: MEW_V04}
CALL: Json = {"method": "tools/call", "params": {"name": "add", "arguments": {"a": 2}}}


@pytest.fixture
def gateway(dialect: str) -> Generator[ThreadedGateway]:
    with serving(MAY, dialect=dialect) as running:
        yield running


@asynccontextmanager
async def joined(
    gateway: ThreadedGateway, *agents: Agent, speaks: str = V01
) -> AsyncGenerator[list[Space]]:
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            options: dict[str, Any] = {"space": "demo", "settings": Settings(dialect=speaks)}
            spaces: list[Space] = []
            for agent in agents:
                joining = agent.join(gateway.url, token=f"{agent.name}-token", **options)
                spaces.append(await stack.enter_async_context(joining))
            yield spaces


def tools() -> tuple[Agent, list[int]]:
    """An executor of ours, which decides nothing, and what it was asked."""
    agent, ran = Agent("files"), list[int]()

    @agent.tool
    async def add(context: Context, a: int) -> int:
        ran.append(a)
        return a + 1

    return agent, ran


def reviewer(name: str = "approver") -> tuple[Agent, list[tuple[tuple[str, ...], str | None]]]:
    """An agent of ours that fulfills what it sees, and what that was."""
    agent, seen = Agent(name), list[tuple[tuple[str, ...], str | None]]()

    @agent.on_proposal
    async def fulfill(proposal: Proposal) -> None:
        seen.append((proposal.to, proposal.target))
        await proposal.fulfill()

    return agent, seen


class Terminal:
    """A person at a terminal of existing spaces: approves what comes, to whom it names."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.named: list[Any] = []

    def approve(self) -> str:
        """Approve the next proposal; the id of the request."""
        proposal = self.wire.until("mcp/proposal")
        self.named.append(proposal.get("to"))
        header = {"to": proposal["to"]} if proposal.get("to") else {}
        about = [proposal["id"]]
        return self.wire.send("mcp/request", proposal["payload"], **header, correlation_id=about)


@pytest.mark.rule("4.4.executor")
@pytest.mark.parametrize("speaks", ["ours", "theirs"])
@pytest.mark.parametrize("late", [False, True], ids=["there before", "come later"])
async def test_ours_approves_for_theirs_and_ours(
    gateway: ThreadedGateway, dialect: str, speaks: str, late: bool
) -> None:
    files, ran = tools()
    approver, seen = reviewer()
    looker, looked = reviewer("looker")
    agents = joined(gateway, files, looker, approver, speaks=V01 if speaks == "ours" else dialect)
    async with AsyncExitStack() as stack:
        if not late:
            await stack.enter_async_context(agents)
        wire = stack.enter_context(Site(gateway, dialect).member("proposer"))
        await to_thread.run_sync(wire.until, "system/presence")
        proposal = wire.send("mcp/proposal", CALL, to=["files"])
        if late:
            await stack.enter_async_context(agents)
        heard = [await to_thread.run_sync(wire.hear_any)]
        while heard[-1]["kind"] != "mcp/response":
            heard.append(await to_thread.run_sync(wire.hear_any))
    request = next(each for each in heard if each["kind"] == "mcp/request")
    assert (request["from"], request["to"]) == ("approver", ["files"])
    assert request["correlation_id"] == [proposal]
    # The executor is silent about what it does not decide; who may not call it sees nothing.
    assert not [each for each in heard if each["kind"] == "mcp/reject"]
    assert (ran, seen, looked) == ([2], [((), "files")], [])


@pytest.mark.rule("4.4.executor")
async def test_their_terminal_approves_for_theirs_and_ours(
    gateway: ThreadedGateway, dialect: str
) -> None:
    files, ran = tools()
    site = Site(gateway, dialect)
    async with joined(gateway, files):
        with site.join("proposer", "approver") as (proposer, approver):
            proposer.send("mcp/proposal", CALL, to=["files"])
            request = await to_thread.run_sync(Terminal(approver).approve)
            answer = await to_thread.run_sync(proposer.until, "mcp/response")
            assert (answer["from"], answer["correlation_id"][0]) == ("files", request)
    assert ran == [2]


@pytest.mark.rule("4.4.executor")
async def test_ours_approves_for_theirs_and_theirs(gateway: ThreadedGateway, dialect: str) -> None:
    approver, seen = reviewer()
    options: dict[str, Any] = {"version": VERSION[dialect], "space": "demo"}
    answers = {"add": lambda given: {"result": given["a"] + 1}}
    async with joined(gateway, approver):
        with (
            ToolOwner(gateway.url, "files", answers, **options),
            TheirProposer(gateway.url, "proposer", **options) as proposer,
        ):
            proposal = proposer.propose(CALL["method"], CALL["params"], to=["files"])
            answered = await to_thread.run_sync(
                proposer.wait_heard, lambda said: said.get("kind") == "mcp/response"
            )
            assert proposer.outcomes[proposal]["payload"]["result"] == 3
    assert answered[0]["from"] == "files"
    assert seen == [((), "files")]


@pytest.mark.rule("4.4.executor.written")
@pytest.mark.parametrize("speaks", ["ours", "theirs"])
async def test_ours_proposes_their_terminal_approves_theirs_executes(
    gateway: ThreadedGateway, dialect: str, speaks: str
) -> None:
    proposer = Agent("proposer")
    options: dict[str, Any] = {"version": VERSION[dialect], "space": "demo"}
    answers = {"add": lambda given: {"result": given["a"] + 1}}
    with (
        ToolOwner(gateway.url, "files", answers, **options),
        Site(gateway, dialect).join("approver") as (wire,),
    ):
        terminal = Terminal(wire)
        own = V01 if speaks == "ours" else dialect
        async with joined(gateway, proposer, speaks=own) as (space,):
            async with space.propose("files", "add", {"a": 2}) as proposal:
                await to_thread.run_sync(terminal.approve)
                outcome = await proposal.outcome()
    assert isinstance(outcome, Fulfillment)
    assert outcome.result() == 3
    assert terminal.named == [["files"]]


@pytest.mark.rule("4.4.executor.written")
@pytest.mark.parametrize("dialect", [V04])
async def test_their_agent_approves_for_ours_and_ours(
    gateway: ThreadedGateway, dialect: str
) -> None:
    """It answers the proposal with what its own request got: that is the outcome."""
    files, ran = tools()
    proposer = Agent("proposer")
    options: dict[str, Any] = {"version": VERSION[dialect], "space": "demo"}
    async with joined(gateway, files, proposer) as (_, space):
        with Fulfiller(gateway.url, "approver", executor="files", **options):
            async with space.propose("files", "add", {"a": 2}) as proposal:
                outcome = await proposal.outcome()
    assert isinstance(outcome, Fulfillment)
    assert outcome.result(accept_edits=True) == 3
    assert ran == [2]


@pytest.mark.rule("4.4.executor.written")
async def test_our_deciders_are_not_taken_for_executors(
    gateway: ThreadedGateway, dialect: str
) -> None:
    """Members of these dialects read the target of a proposal of ours in `to`."""
    site = Site(gateway, dialect)
    with site.join("approver") as (theirs,), site.join("proposer", dialect=V01) as (ours,):
        targeted: Json = {
            **CALL,
            "params": {**CALL["params"], "_meta": {"dev.meup/target": "files"}},
        }
        for payload, to, named in (
            (targeted, ["approver"], ["files"]),
            (targeted, [], ["files"]),
            (CALL, ["approver"], ["approver"]),
            (CALL, [], None),
        ):
            ours.send("mcp.proposal", payload, to=to)
            heard = await to_thread.run_sync(theirs.until, "mcp/proposal")
            assert heard.get("to") == named
            assert heard["payload"] == payload


@pytest.mark.rule("4.4.executor", "4.4.incapable")
@pytest.mark.parametrize("dialect", [V01])
@pytest.mark.parametrize("speaks", [V01, V02, V04])
async def test_in_our_dialect_the_addressee_decides(gateway: ThreadedGateway, speaks: str) -> None:
    files, ran = tools()
    async with joined(gateway, files, speaks=speaks):
        with Site(gateway, V01).member("proposer") as wire:
            await to_thread.run_sync(wire.until, "system.presence")
            wire.send("mcp.proposal", CALL, to=["files"])
            reject = await to_thread.run_sync(wire.until, "mcp.reject")
    assert (reject["from"], reject["payload"]["reason"]) == ("files", "incapable")
    assert ran == []


@pytest.mark.rule("3.answers_proposal", "C.W28")
def test_who_may_make_the_call_may_answer_its_proposal(dialect: str) -> None:
    may = {**MAY, "bystander": [{"kind": "chat"}]}
    with serving(may, dialect=dialect) as gateway:
        site = Site(gateway, dialect)
        with site.join("proposer", "approver", "bystander") as (proposer, approver, bystander):
            proposal = proposer.send("mcp/proposal", CALL)
            for other in (approver, bystander):
                other.until("mcp/proposal")
            header = {"to": ["proposer"], "correlation_id": [proposal]}
            bystander.send("mcp/response", {"result": 5}, **header)
            assert bystander.refused()["error"] == "capability_violation"
            approver.send("mcp/response", {"result": 3}, **header)
            assert proposer.until("mcp/response")["from"] == "approver"
            # It is decided now.
            approver.send("mcp/request", CALL, to=["files"], correlation_id=[proposal])
            assert approver.refusal() == "not_pending"


@pytest.mark.rule("3.answers_proposal")
def test_in_our_own_dialect_no_proposal_is_answered(dialect: str) -> None:
    may = {**MAY, "approver": [{"kind": "mcp/request"}]}
    with serving(may, dialect=dialect) as gateway:
        with (
            Site(gateway, dialect).join("proposer") as (proposer,),
            Site(gateway, V01).join("approver") as (approver,),
        ):
            proposal = proposer.send("mcp/proposal", CALL)
            approver.until("mcp.proposal")
            approver.send("mcp.response", {"result": 3}, correlationId=proposal)
            assert approver.refused()["error"] == "capability_violation"
