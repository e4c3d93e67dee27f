"""One space, four dialects: each member sees only its own, and all of them mean the same."""

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio import to_thread

from meup_agent import Agent, Proposal, Reason, Settings, Space
from meup_agent.errors import ProposalRejected, Refused
from meup_agent.gateway import ThreadedGateway
from meup_agent.testing import MemorySpace
from tests.conformance.reference_peers import Bridge, Fulfiller, Proposer, ReferencePeer, ToolOwner
from tests.conformance.test_story import Files
from tests.conformance.versions import MEUP_V02, Version
from tests.conformance.wire import MCPX, V01, V02, V04, Json, Site, Wire, serving
from tests.patience import PATIENCE
from tests.wire import DIALECTS, OURS, decode

MAY: dict[str, list[dict[str, Any]]] = {
    "proposer": [{"kind": "mcp/proposal"}, {"kind": "chat"}],
    "reviewer": [{"kind": "mcp/reject"}, {"kind": "chat"}],
    "approver": [{"kind": "mcp/*"}, {"kind": "chat"}, {"kind": "capability/*"}],
    "files": [{"kind": "mcp/response"}, {"kind": "chat"}],
}
SPEAKS = {"proposer": MCPX, "reviewer": V01, "files": V02, "approver": V04}
CALL = {"name": "write", "arguments": {"path": "a.txt"}}


@pytest.fixture
def gateway() -> Generator[ThreadedGateway]:
    with serving(MAY) as running:
        yield running


def all_hear(members: dict[str, Wire], sender: str) -> dict[str, Json]:
    """The next frame of each by dialect, but for what is the same in all of them."""
    heard: dict[str, Json] = {}
    for wire in members.values():
        said = wire.hear_any()
        assert said.pop("protocol") == wire.dialect
        assert said.pop("from") == sender
        said.pop("ts")
        heard[wire.dialect] = said
    return heard


@pytest.mark.rule("1.kinds", "1.forward.between", "1.rpc_ids", "1.one_space")
def test_one_proposes_one_rejects_one_fulfills_one_executes(gateway: ThreadedGateway) -> None:
    site = Site(gateway, V01)
    with ExitStack() as stack:
        members: dict[str, Wire] = {}
        for name, dialect in SPEAKS.items():
            (members[name],) = stack.enter_context(site.join(name, dialect=dialect))
            for other in [*members][:-1]:
                members[other].hear_any()  # the newcomer's presence
        proposer, reviewer, files, approver = members.values()

        # The proposer goes by JSON-RPC ids, and has a field that nobody knows.
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": CALL}
        proposal = proposer.send("proposal", call, **{"x-odd": [1, {"y": None}]})
        said = {"id": proposal, "payload": call, "x-odd": [1, {"y": None}]}
        assert all_hear(members, "proposer") == {
            MCPX: {**said, "kind": "proposal"},
            V01: {**said, "kind": "mcp.proposal"},
            V02: {**said, "kind": "mcp/proposal"},
            V04: {**said, "kind": "mcp/proposal"},
        }

        rejection = reviewer.send("mcp.reject", {"reason": "busy"}, correlationId=proposal)
        said = {"id": rejection, "payload": {"reason": "busy"}}
        slashed = {**said, "kind": "mcp/reject", "correlation_id": [proposal]}
        named = {"proposalId": proposal, "reason": "busy"}
        assert all_hear(members, "reviewer") == {
            MCPX: {"id": rejection, "kind": "proposal/reject", "payload": named},
            V01: {**said, "kind": "mcp.reject", "correlationId": proposal},
            V02: slashed,
            V04: slashed,
        }

        request = approver.send("mcp/request", call, to=["files"], correlation_id=[proposal])
        said = {"id": request, "to": ["files"], "payload": call}
        slashed = {**said, "kind": "mcp/request", "correlation_id": [proposal]}
        assert all_hear(members, "approver") == {
            MCPX: {**said, "kind": "mcp", "correlationId": proposal},
            V01: {**said, "kind": "mcp.request", "correlationId": proposal},
            V02: slashed,
            V04: slashed,
        }

        answer = {"jsonrpc": "2.0", "id": 7, "result": {"content": [], "x": 1.0}}
        about = [request, proposal]
        response = files.send("mcp/response", answer, to=["approver"], correlation_id=about)
        said = {"id": response, "to": ["approver"], "payload": answer, "correlation_id": about}
        assert all_hear(members, "files") == {
            MCPX: {**said, "kind": "mcp", "correlationId": request},
            V01: {**said, "kind": "mcp.response", "correlationId": request},
            V02: {**said, "kind": "mcp/response"},
            V04: {**said, "kind": "mcp/response"},
        }


@pytest.mark.rule("1.rpc_ids", "1.one_space")
def test_an_answer_by_json_rpc_id_is_found_in_every_dialect(gateway: ThreadedGateway) -> None:
    site = Site(gateway, V04)
    with (
        site.join("files", dialect=MCPX) as (files,),
        site.join("approver") as (approver,),
        site.join("reviewer", dialect=V01) as (reviewer,),
    ):
        call = {"jsonrpc": "2.0", "id": "call", "method": "tools/call", "params": CALL}
        request = approver.send("mcp/request", call, to=["files"])
        assert files.until("mcp")["payload"] == call
        # It may respond to this because it was asked, which only the JSON-RPC id says.
        answer = {"jsonrpc": "2.0", "id": "call", "result": 5}
        files.send("mcp", answer, to=["approver"])
        said = approver.until("mcp/response")
        assert (said["correlation_id"], said["payload"]) == ([request], answer)
        assert reviewer.until("mcp.response")["correlationId"] == request
        echo = files.hear("mcp")
        assert echo["payload"] == answer
        assert "correlationId" not in echo


@pytest.mark.rule("1.one_space")
@pytest.mark.parametrize("dialect", [V01, V02, V04])
def test_what_a_dialect_cannot_say_is_left_out_there(
    gateway: ThreadedGateway, dialect: str
) -> None:
    """A request without a method is a response where the kind of both is one."""
    site = Site(gateway, dialect)
    with (
        site.join("proposer", dialect=MCPX) as (proposer,),
        site.join("approver", dialect=dialect) as (approver,),
    ):
        proposer.until("system/presence")
        request = "mcp.request" if dialect == V01 else "mcp/request"
        approver.send(request, {"params": {}})
        assert approver.hear(request)["payload"] == {"params": {}}
        approver.send("chat", {"message" if dialect == V01 else "text": "hi"})
        assert proposer.hear("chat")["payload"]["message"] == "hi"
        assert gateway.counters.not_expressible == 1


@pytest.mark.rule("1.one_space")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_gateway_speaks_the_dialect_of_its_reader(
    gateway: ThreadedGateway, dialect: str
) -> None:
    slash = "." if dialect == V01 else "/"
    with Site(gateway, dialect).member("proposer") as proposer:
        welcome = proposer.hear(f"system{slash}welcome")
        assert (welcome["protocol"], welcome["to"]) == (dialect, ["proposer"])
        assert {"kind": "chat"} in welcome["payload"]["you"]["capabilities"]
        assert proposer.hear(f"system{slash}presence")["payload"]["event"] == "join"
        about = proposer.send("space/kick", {"participant": "files"})
        error = proposer.hear(f"system{slash}error")
        assert error["payload"]["error"] == "capability_violation"
        assert error["payload"]["attempted_kind"] == "space/kick"
        named = [about] if dialect in (V02, V04) else about
        assert (error.get("correlationId") or error["correlation_id"]) == named


@pytest.mark.rule("1.one_space")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_was_missed_is_read_in_the_new_dialect(gateway: ThreadedGateway, dialect: str) -> None:
    """A member that comes back in another dialect gets what was said meanwhile in that."""
    slash = "." if dialect == V01 else "/"
    site = Site(gateway, V04)
    with site.join("reviewer") as (reviewer,):
        with site.member("proposer", more={"MEUP-Resume": "1"}) as proposer:
            proposer.hear("system/welcome")
            seen = proposer.hear("system/presence")["seq"]
            reviewer.hear("system/presence")
        reviewer.hear("system/presence")
        said = reviewer.send("mcp/reject", {"reason": "busy", "x": 1}, correlation_id=["p", "q"])
        reviewer.hear("mcp/reject")
        resume = {"MEUP-Resume": "1", "Last-Event-ID": str(seen)}
        with site.member("proposer", dialect=dialect, more=resume) as proposer:
            welcome = proposer.hear(f"system{slash}welcome")["payload"]
            assert (welcome["resumed"], welcome["gap"]) == (True, False)
            left = proposer.hear(f"system{slash}presence")
            assert (left["protocol"], left["payload"]["event"]) == (dialect, "leave")
            missed = proposer.hear_any()
            assert seen < left["seq"] < missed["seq"] == welcome["until"]
            assert (missed["id"], missed["protocol"]) == (said, dialect)
            assert decode(json.dumps(missed)).correlation == ("p", "q")
            assert missed["payload"]["x"] == 1


@pytest.mark.rule("1.dialect_chosen")
@pytest.mark.parametrize("header", [None, *DIALECTS])
@pytest.mark.parametrize("joins", [None, *DIALECTS])
@pytest.mark.parametrize("configured", [None, V02])
@pytest.mark.parametrize("default", [None, MCPX])
def test_the_first_that_is_said_counts(
    header: str | None, joins: str | None, configured: str | None, default: str | None
) -> None:
    own = {"proposer": configured} if configured else {}
    expected = header or joins or configured or default or V01
    with serving(MAY, dialect=default, dialects=own) as gateway:
        site = Site(gateway, expected)
        headers = {"MEUP-Protocol": header} if header else {}
        with site.by_frame("proposer", "/anything", headers=headers) as wire:
            frame = {"type": "join", "space": "demo", "token": "proposer-token"}
            wire.write(frame | ({"protocol": joins} if joins else {}))
            assert wire.hear_any()["protocol"] == expected
        if joins is None:
            headers |= {"Authorization": "Bearer proposer-token"}
            with site.dial(headers) as socket:
                assert socket.response is not None
                assert socket.response.headers["MEUP-Protocol"] == expected
                assert Wire(socket, "proposer", expected).hear_any()["protocol"] == expected


@pytest.mark.rule("1.dialect_chosen")
def test_the_older_name_is_read_as_the_newer_dialect(gateway: ThreadedGateway) -> None:
    site = Site(gateway, V04)
    with site.dial() as socket, site.join("approver") as (approver,):
        wire = Wire(socket, "proposer", "mew/v0.3")
        join = {"type": "join", "token": "proposer-token", "protocol": "mew/v0.3"}
        wire.write(join)
        assert wire.hear("system/welcome")["protocol"] == V04
        sent = wire.send("chat", {"text": "hi", "format": "plain"})
        said = approver.until("chat")
        assert (said["id"], said["protocol"]) == (sent, V04)


@pytest.mark.rule("1.dialect_chosen")
def test_a_dialect_that_nobody_knows_is_refused(gateway: ThreadedGateway) -> None:
    with Site(gateway, V04).by_frame("proposer", "/ws?space=demo") as wire:
        wire.write({"type": "join", "token": "proposer-token", "protocol": "mew/v9"})
        assert wire.end() == 4400


SETTINGS = {name: Settings(dialect=dialect) for name, dialect in SPEAKS.items()}


@pytest.fixture(params=["memory", "sockets"])
def place(request: pytest.FixtureRequest) -> Generator[MemorySpace | ThreadedGateway]:
    if request.param == "memory":
        yield MemorySpace(participants=MAY)
    else:
        with serving(MAY) as running:
            yield running


class People:
    """Agents that speak four dialects; the reviewer rejects what touches `secret`."""

    def __init__(self, place: MemorySpace | ThreadedGateway) -> None:
        self.place = place
        self.agents = {name: Agent(name) for name in SPEAKS}
        self.files = Files()
        self.agents["files"] = self.files.agent
        self.agents["reviewer"].on_proposal(self.review)
        self.agents["approver"].on_proposal(self.approve)

    async def review(self, proposal: Proposal) -> None:
        if proposal.arguments.get("path") == "secret":
            await proposal.reject(Reason.POLICY, explain="nobody writes there")

    async def approve(self, proposal: Proposal) -> None:
        if proposal.arguments.get("path") != "secret":
            await proposal.fulfill()

    @asynccontextmanager
    async def joined(self) -> AsyncGenerator[dict[str, Space]]:
        """All of them in the space, for a block that may not hang; the view of each."""
        with anyio.fail_after(PATIENCE):
            async with AsyncExitStack() as stack:
                yield {name: await self.join_as(name, stack) for name in self.agents}

    async def join_as(self, name: str, stack: AsyncExitStack) -> Space:
        token, where = self.place.token(name), self.place
        address = where.connector() if isinstance(where, MemorySpace) else where.url
        options: dict[str, Any] = {"space": "demo", "settings": SETTINGS[name]}
        joining = self.agents[name].join(address, token=token, **options)
        space = await stack.enter_async_context(joining)
        assert space.gateway.dialect == SPEAKS[name]
        assert space.gateway.guarantees == OURS
        return space


@pytest.mark.rule("1.one_space")
async def test_agents_of_four_dialects_settle_proposals(
    place: MemorySpace | ThreadedGateway,
) -> None:
    people = People(place)
    async with people.joined() as spaces:
        space = spaces["proposer"]
        assert await space.call("files", "write", {"path": "a.txt"}) == "wrote a.txt"
        with pytest.raises(ProposalRejected) as rejected:
            await space.call("files", "write", {"path": "secret"}, to=["reviewer"])
        assert (rejected.value.by, rejected.value.reason) == ("reviewer", "policy")
        async with spaces["proposer"].propose("files", "wait") as proposal:
            await people.files.running.wait()
            await proposal.withdraw(Reason.POLICY)
            await people.files.ended.wait()
    assert people.files.stopped == ["policy"]


@pytest.mark.rule("1.one_space")
async def test_a_revocation_stops_what_runs_in_another(
    place: MemorySpace | ThreadedGateway,
) -> None:
    """The gateway's own cancel is understood in each dialect, whichever the request was in."""
    people = People(place)
    allowed: list[dict[str, Any]] = [{"kind": "mcp/request", "payload": {"method": "tools/*"}}]
    refused: list[Refused] = []

    async def call(space: Space) -> None:
        try:
            await space.call("files", "wait")
        except Refused as error:
            refused.append(error)

    async with people.joined() as spaces:
        for asks in ("proposer", "reviewer"):
            people.files.running, people.files.ended = anyio.Event(), anyio.Event()
            held = spaces[asks].capabilities
            grant = await spaces["approver"].members.grant(asks, allowed)
            while spaces[asks].capabilities == held:  # noqa: ASYNC110 - no event tells of it
                await anyio.sleep(0.001)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, spaces[asks])
                await people.files.running.wait()
                await spaces["approver"].members.revoke(asks, grant=grant)
                await people.files.ended.wait()
    assert people.files.stopped == ["revoked", "revoked"]
    assert [each.error for each in refused] == ["revoked", "revoked"]


EXISTING = {name: [{"kind": "mcp/*"}, {"kind": "chat"}] for name in (*SPEAKS, "typescript")}


@pytest.fixture
def home() -> Generator[ThreadedGateway]:
    """The dialect for participants that name none, but for the oldest, who do."""
    with serving(EXISTING, dialect=V04) as running:
        yield running


@pytest.mark.rule("2.existing_clients", "2.heartbeat")
def test_existing_participants_meet_here_unchanged(home: ThreadedGateway, version: Version) -> None:
    options: dict[str, Any] = {"version": version, "space": "demo"}
    with (
        ToolOwner(home.url, "files", {"add": {"result": 5}}, **options),
        Fulfiller(home.url, "approver", executor="files", **options),
        Proposer(home.url, "proposer", **options) as proposer,
        Bridge(home.url, "typescript", **options) as onlooker,
    ):
        assert proposer.you["id"] == "proposer"
        proposal = proposer.propose("tools/call", {"name": "add", "arguments": {}})
        if version is MEUP_V02:
            told = proposer.wait_heard(lambda said: said.get("kind") == "chat")
            assert told[0]["payload"]["text"] == "5"
        else:
            proposer.wait_heard(lambda said: said.get("correlation_id") == [proposal])
            assert proposer.outcomes[proposal]["payload"] == {"result": 5}
        for peer in (proposer, onlooker):
            assert {said["protocol"] for said in peer.heard} == {version.protocol}
            assert not [said for said in peer.heard if said["kind"] == "system/error"]
            assert not [said for said in peer.heard if "seq" in said]
    # Each of them said system/heartbeat, and one system/register: nobody heard of it.
    assert home.counters.dropped == 5
    assert not home.counters.refused


@pytest.mark.rule("2.existing_clients", "2.repeated_ids")
def test_ids_that_repeat_after_a_restart_are_new(home: ThreadedGateway, version: Version) -> None:
    with (
        ReferencePeer(home.url, "typescript", version=version, space="demo") as peer,
        ReferencePeer(home.url, "files", version=version, space="demo") as other,
    ):
        for _ in range(2):
            peer.send("chat", {"text": "hi", "format": "plain"})
            peer.restart()
        chats = other.wait_heard(lambda said: said.get("kind") == "chat", 2)
        assert [said["id"] for said in chats] == ["typescript-2", "typescript-2"]


@pytest.mark.rule("2.existing_clients")
def test_the_token_decides_who_they_are(home: ThreadedGateway, version: Version) -> None:
    options: dict[str, Any] = {"version": version, "space": "demo"}
    with pytest.raises(Exception, match="4401"):
        with ReferencePeer(home.url, "files", token="typescript-token", **options):
            pass


@pytest.mark.rule("2.existing_clients")
async def test_existing_participants_serve_ours(home: ThreadedGateway, version: Version) -> None:
    """The fulfiller says nowhere what its request is for; the proposer learns what it can."""
    options: dict[str, Any] = {"version": version, "space": "demo"}
    with ToolOwner(home.url, "files", {"add": {"result": 5}}, **options):
        with anyio.fail_after(PATIENCE):
            async with Agent("proposer").join(
                home.url, space="demo", token="proposer-token"
            ) as space:
                assert space.gateway.dialect == V01
                assert await space.call("files", "add") == 5
        with Proposer(home.url, "approver", **options) as proposer:
            # The gateway tells a newcomer of what is open, whoever proposed it.
            first = proposer.propose("tools/call", CALL, to=["reviewer"])
            seen: list[Proposal] = []
            agent = Agent("reviewer")

            @agent.on_proposal
            async def review(proposal: Proposal) -> None:
                seen.append(proposal)
                await proposal.reject(Reason.UNSAFE)

            with anyio.fail_after(PATIENCE):
                async with agent.join(home.url, space="demo", token="reviewer-token"):
                    second = proposer.propose("tools/call", CALL, to=["reviewer"])
                    heard = await to_thread.run_sync(
                        lambda: proposer.wait_heard(lambda said: said["kind"] == "mcp/reject", 2)
                    )
            assert [each.arguments for each in seen] == [{"path": "a.txt"}] * 2
            assert {said["correlation_id"][0] for said in heard} == {first, second}
            assert [said["payload"] for said in heard] == [{"reason": "unsafe"}] * 2
