"""A bridged server that poses as a reviewer: no face asks it, and the bridge passes nothing on."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from meup_agent import Envelope
from meup_agent.approval import Inbox, Verb
from meup_agent.errors import RequestError
from meup_agent.mcp import StdioServer
from tests.interaction.views import Tape, call_of, session_of
from tests.mcp.bridge.stage import BRIDGE, bridged
from tests.mcp.servers import pretender
from tests.wire import kinds, payloads


@pytest.fixture
def got(tmp_path: Path) -> Path:
    return tmp_path / "got"


def posing(got: Path) -> StdioServer:
    return StdioServer(sys.executable, ("-IS", pretender.__file__, str(got)), {})


def messages_in(got: Path) -> list[dict[str, Any]]:
    """The messages that the server got."""
    return [json.loads(line) for line in got.read_text().splitlines()]


def calls_in(got: Path) -> list[str]:
    """The tools that it was made to call."""
    called = (each["params"] for each in messages_in(got) if each["method"] == "tools/call")
    return [each["name"] for each in called]


@pytest.mark.rule("5.reviewers.bridge")
@pytest.mark.parametrize("name", ["waiting", "judge", "vote", "", "anything/else"])
async def test_no_method_of_our_own_reaches_the_server(got: Path, name: str) -> None:
    async with bridged(posing(got)) as stage:
        with pytest.raises(RequestError) as raised:
            await stage.caller.request(BRIDGE, f"dev.meup/{name}", {"proposal": "p"})
        assert raised.value.code == payloads.METHOD_NOT_FOUND
        # Any other one does.
        await stage.caller.request(BRIDGE, f"com.example/{name}", {})
    methods = [each["method"] for each in messages_in(got)]
    assert methods[-1] == f"com.example/{name}"
    assert not any(each.startswith("dev.meup/") for each in methods)


def is_question(envelope: Envelope) -> bool:
    return envelope.kind == kinds.MCP_REQUEST and envelope.to == (BRIDGE,)


@pytest.mark.rule("5.reviewers.bridge")
@pytest.mark.parametrize("edit", [None, {"a": 2}], ids=["as proposed", "edited"])
async def test_only_the_approved_tool_is_called(got: Path, edit: dict[str, Any] | None) -> None:
    """Its participant may carry out what is proposed, so it is asked whether it is a reviewer."""
    async with bridged(posing(got)) as stage:
        proposer, tape = await stage.join("proposer"), Tape()
        session_of(proposer).watchers.listen(tape)
        async with Inbox(stage.caller) as inbox, proposer.propose(BRIDGE, "add", {"a": 1}) as made:
            # It has asked for the tools, and then what else it wants to know.
            await tape.until(
                lambda each: is_question(each) and call_of(each).method != "tools/list"
            )
            [item] = inbox.items
            await inbox.settle()
            assert item.rule is None
            assert item.may == {Verb.APPROVE, Verb.REJECT}
            assert await inbox.approve(item, edit) is not None
            await made.result(accept_edits=True)
    assert calls_in(got) == ["add"]
