"""A space that was there before: its file, its participants, and an agent of ours among them."""

from collections.abc import Generator
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from meup_agent import Agent, Chat
from meup_agent.gateway import Gateway, ThreadedGateway, load_config
from tests.conformance.reference_peers import Fulfiller, ToolOwner
from tests.conformance.versions import MEUP_V02, MEW_V04
from tests.conformance.wire import V01, V02, V04, Json, Site, Wire
from tests.patience import PATIENCE
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
def test_the_file_says_what_they_speak(gateway: ThreadedGateway, name: str, dialect: str) -> None:
    with Site(gateway, dialect).by_frame(name) as wire:
        wire.write({"type": "join", "space": "demo", "token": f"change-me-{name}"})
        assert wire.hear("system/welcome")["protocol"] == dialect


@pytest.mark.rule("2.existing_clients", "1.one_space")
async def test_existing_participants_approve_and_run_what_ours_proposes(
    gateway: ThreadedGateway,
) -> None:
    """The one that approves says nowhere what its request is for: it reports by a chat."""
    answers = {"add": lambda arguments: {"result": arguments["a"] + 1}}
    theirs = {"version": MEW_V04, "space": "demo", "token": "change-me-tools"}
    tools = ToolOwner(gateway.url, "tools", answers, **theirs)
    theirs |= {"version": MEUP_V02, "token": "change-me-approver"}
    approver = Fulfiller(gateway.url, "approver", executor="tools", **theirs)
    agent, heard, came = Agent("proposer"), list[str](), anyio.Event()

    @agent.on_chat
    async def report(said: Chat) -> None:
        heard.append(said.text)
        came.set()

    def requests() -> list[Json]:
        return tools.wait_heard(lambda said: said.get("kind") == "mcp/request")

    with tools, approver, anyio.fail_after(PATIENCE):
        async with agent.join(gateway.url, space="demo", token="change-me-proposer") as space:
            assert space.gateway.dialect == V01
            async with space.propose("tools", "add", {"a": 2}):
                await came.wait()
            (request,) = await to_thread.run_sync(requests)
    assert heard == ["3"]
    assert (request["from"], request["protocol"], request["to"]) == ("approver", V04, ["tools"])


PLAIN_FILE = """\
space: {{id: demo, name: Demo{more}}}
participants:
  ann: {{tokens: [ann-token-1], capabilities: [{{kind: "*"}}]}}
  bob: {{tokens: [bob-token-1], capabilities: [{{kind: "*"}}]}}
"""


@pytest.mark.rule("1.dialect_chosen")
@pytest.mark.parametrize("more", ["", f", dialect: {V04}"])
def test_members_of_a_file_that_says_no_version_may_speak_either(more: str, tmp_path: Path) -> None:
    """Files of both generations look alike, and neither's join frame says a version."""
    file = tmp_path / "space.yaml"
    file.write_text(PLAIN_FILE.format(more=more))
    with (
        Gateway(config=load_config(file)).in_thread() as gateway,
        Site(gateway, V04).dial(path="/") as first,
        Site(gateway, V04).dial(path="/") as second,
    ):
        ann, bob = Wire(first, "ann", V02), Wire(second, "bob", V04)
        for wire in (ann, bob):
            wire.write({"type": "join", "space": "demo", "token": f"{wire.name}-token-1"})
            wire.hear("system/welcome")
        for wire in (ann, ann, bob):
            wire.hear("system/presence")
        for name, protocol in (("old", V02), ("newer", V04), ("old again", V02)):
            sent = ann.send("chat", {"text": name}, protocol=protocol)
            if more and protocol == V02:
                assert ann.refused()["error"] == "invalid_envelope"
                continue
            for wire in (ann, bob):
                chat = wire.hear("chat")
                assert (chat["id"], chat["protocol"]) == (sent, V04)
        ann.send("chat", {"text": "hi"}, protocol=V01)
        assert ann.refused()["error"] == "invalid_envelope"
