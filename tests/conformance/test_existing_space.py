"""A space that was there before: its file, its participants, and an agent of ours among them."""

from collections.abc import Generator

import anyio
import pytest
from anyio import to_thread

from meup_agent import Agent, Chat
from meup_agent.gateway.config_file import load_config
from meup_agent.gateway.embedded import Gateway, ThreadedGateway
from tests.conformance.wire import V01, V02, V04, Json, Site, Wire
from tests.existing.reference_peers import Fulfiller, ToolOwner
from tests.existing.versions import MEUP_V02, MEW_V04
from tests.programs import ROOT

FILE = ROOT / "examples" / "existing_space.yaml"


@pytest.fixture
def gateway() -> Generator[ThreadedGateway]:
    with Gateway(config=load_config(FILE)).in_thread() as running:
        yield running


@pytest.mark.rule("2.existing_clients", "1.dialect_chosen")
@pytest.mark.parametrize(
    ("name", "dialect"), [("tools", V04), ("approver", V02), ("proposer", V04)]
)
def test_the_file_says_what_its_participants_speak(
    gateway: ThreadedGateway, name: str, dialect: str
) -> None:
    with Site(gateway, dialect).dial(path="/") as socket:
        wire = Wire(socket, name, dialect)
        wire.write({"type": "join", "space": "demo", "token": f"change-me-{name}"})
        assert wire.hear("system/welcome")["protocol"] == dialect


@pytest.mark.anyio
@pytest.mark.rule("2.existing_clients", "1.one_space")
async def test_an_agent_proposes_what_existing_participants_approve_and_run(
    gateway: ThreadedGateway,
) -> None:
    """The one that approves says nowhere what its request is for: it reports by a chat."""
    tools = ToolOwner(
        gateway.url,
        "tools",
        {"add": lambda arguments: {"result": arguments["a"] + 1}},
        version=MEW_V04,
        space="demo",
        token="change-me-tools",
    )
    approver = Fulfiller(
        gateway.url,
        "approver",
        executor="tools",
        version=MEUP_V02,
        space="demo",
        token="change-me-approver",
    )
    agent, heard, came = Agent("proposer"), list[str](), anyio.Event()

    @agent.on_chat
    async def report(said: Chat) -> None:
        heard.append(said.text)
        came.set()

    def requests() -> list[Json]:
        return tools.wait_heard(lambda said: said.get("kind") == "mcp/request")

    with tools, approver, anyio.fail_after(20):
        async with agent.join(gateway.url, space="demo", token="change-me-proposer") as space:
            assert space.dialect == V01
            async with space.propose("tools", "add", {"a": 2}):
                await came.wait()
            (request,) = await to_thread.run_sync(requests)
    assert heard == ["3"]
    assert (request["from"], request["protocol"], request["to"]) == ("approver", V04, ["tools"])
