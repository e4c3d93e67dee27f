"""Commands at gateways that know no participant by its token, and in their dialects."""

import os
from collections.abc import Generator

import pytest

from meup_agent.cli import session
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here
from tests.cli.processes import INTERRUPT, running
from tests.conformance.gateways import ExistingGateway
from tests.conformance.reference_peers import ToolOwner
from tests.conformance.versions import MEUP_V02, MEW_V04
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("owner")


@pytest.fixture(params=[MEUP_V02, MEW_V04], ids=lambda each: each.protocol)
def owner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[ToolOwner]:
    anything = [{"kind": "*"}, {"kind": "mcp/*"}]
    gateway = ExistingGateway(
        request.param,
        tokens={"owner-token": "owner", "my-token": "me", "their-token": "them"},
        capabilities={"owner": anything, "me": anything},
        defaults=[],
        space="another",
    )
    with gateway.in_thread():
        monkeypatch.setenv("MEUP_URL", gateway.url)
        monkeypatch.setenv("MEUP_SPACE", "demo")
        monkeypatch.setenv("MEUP_TOKEN", "my-token")
        monkeypatch.setenv("MEUP_PARTICIPANT", "me")
        answers = {"five": {"result": 5}}
        with ToolOwner(
            gateway.url, "owner", answers, version=request.param, token="owner-token", space="demo"
        ) as peer:
            yield peer


def test_a_tool_is_called(command: Here) -> None:
    assert command("call", "owner", "five") == (0, "5\n", "")


def test_what_is_said_arrives_under_our_name(owner: ToolOwner, command: Here) -> None:
    assert command("chat", "hello") == (0, "", "")
    [chat] = owner.wait_heard(lambda envelope: envelope.get("kind") == "chat")
    assert (chat["from"], chat["payload"]["text"]) == ("me", "hello")


def test_a_refusal_is_told(command: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "REFUSAL_SECONDS", PATIENCE)
    done = command("chat", "hello", "--token", "their-token", "--participant", "them")
    assert (done.code, done.out) == (exit_codes.REFUSED, "")
    assert done.err.startswith("meup: the gateway refused the message: capability_violation")


def test_a_timeline_shows_the_space_that_was_named(owner: ToolOwner) -> None:
    names = ("MEUP_URL", "MEUP_SPACE", "MEUP_TOKEN", "MEUP_PARTICIPANT")
    with running(
        "tail", "--take-over", variables={name: os.environ[name] for name in names}
    ) as tail:
        tail.until("here: owner")
        owner.send("chat", {"text": "good morning", "format": "plain"})
        tail.until("good morning")
        assert tail.end(INTERRUPT) == exit_codes.INTERRUPTED
