"""The client of an app-server of Codex, where a test plays the app-server."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from meup_agent.doors.codex import MAX_ASKS, CodexClient
from meup_agent.doors.permit import Answer, Denied, HostCall, Permitted, Why
from meup_agent.protocol.wire.outcomes import PermitReport
from tests.interaction.people import until
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio

COMMAND = "item/commandExecution/requestApproval"
CHANGE = "item/fileChange/requestApproval"
PERMISSIONS = "item/permissions/requestApproval"
ELICITATION = "mcpServer/elicitation/request"
REACHES = {"networkApprovalContext": {"host": "example.org", "protocol": "https"}}
IDS = {"threadId": "t", "turnId": "u", "itemId": "i", "startedAtMs": 1}


class Server:
    """An app-server, and whoever decides."""

    def __init__(self) -> None:
        self._send, self.messages = anyio.create_memory_object_stream[bytes | str](200)
        self.said: list[dict[str, Any]] = []
        self.asked: list[HostCall] = []
        self.reports: list[tuple[str, PermitReport]] = []
        self.answer: Answer | None = None
        self.withdrawn = 0

    async def heard(self, line: bytes) -> None:
        self.said.append(json.loads(line))

    async def ask(self, call: HostCall) -> Answer:
        self.asked.append(call)
        try:
            await until(lambda: self.answer is not None)
        except anyio.get_cancelled_exc_class():
            self.withdrawn += 1
            raise
        assert self.answer is not None
        return self.answer

    async def tell(self, method: str, params: dict[str, Any], **more: Any) -> None:
        await self._send.send(json.dumps({"method": method, "params": params, **more}))

    async def result(self) -> Any:
        await until(lambda: any("result" in each for each in self.said))
        return next(each for each in self.said if "result" in each)

    def close(self) -> None:
        self._send.close()
        self.messages.close()


@asynccontextmanager
async def served() -> AsyncGenerator[Server]:
    server = Server()
    client = CodexClient(server.ask, server.heard, lambda *told: server.reports.append(told))
    try:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, server.messages)
                yield server
                tasks.cancel_scope.cancel()
    finally:
        server.close()


async def test_it_joins_a_thread_that_is_at_work_once_and_again_where_it_could_not() -> None:
    async with served() as at:
        active = {"threadId": "t", "status": {"type": "active", "activeFlags": []}}
        await at.tell("thread/status/changed", active)
        await at.tell("thread/status/changed", active)
        await until(lambda: len(at.said) == 3)
        assert [each["method"] for each in at.said] == [
            "initialize",
            "initialized",
            "thread/resume",
        ]
        await at._send.send(
            json.dumps({"id": at.said[2]["id"], "error": {"message": "no rollout"}})
        )
        await at.tell("thread/status/changed", active)
        await until(lambda: len(at.said) == 4)


@pytest.mark.parametrize(
    ("method", "more", "arguments", "yes", "no"),
    [
        (COMMAND, {"command": "ls"}, {"command": "ls"}, "accept", "decline"),
        (CHANGE, {"reason": "r"}, {"reason": "r", "changes": [{"path": "a"}]}, "accept", "decline"),
        (COMMAND, {"command": None, **REACHES}, REACHES, "accept", "decline"),
    ],
)
@pytest.mark.parametrize("allowed", [True, False])
async def test_an_answer_is_for_this_call(
    method: str, more: Any, arguments: Any, yes: str, no: str, allowed: bool
) -> None:
    async with served() as at:
        at.answer = (
            Permitted("p", arguments, "ann") if allowed else Denied(Why.EXPIRED, "nobody decided")
        )
        item = {"type": "fileChange", "id": "i", "changes": [{"path": "a"}]}
        await at.tell("item/started", {"threadId": "t", "item": item})
        hints = {"availableDecisions": ["accept", "acceptForSession"]}
        await at.tell(method, {**IDS, **more, **hints}, id=0)
        assert await at.result() == {"id": 0, "result": {"decision": yes if allowed else no}}
        assert (at.asked[0].arguments, at.asked[0].session) == (arguments, "t")
        assert not at.asked[0].edits


@pytest.mark.parametrize("allowed", [True, False])
async def test_permissions_are_for_this_turn(allowed: bool) -> None:
    wanted = {"network": {"enabled": True}}
    async with served() as at:
        at.answer = Permitted("p", {}, "ann") if allowed else Denied(Why.REJECTED, "no")
        await at.tell(PERMISSIONS, {**IDS, "permissions": wanted}, id="x")
        said = {"permissions": wanted if allowed else {}, "scope": "turn"}
        assert (await at.result())["result"] == said


MCP_CALL = "mcp_tool_call"


def mcp_item(**more: Any) -> dict[str, Any]:
    return {
        "threadId": "t",
        "item": {
            "type": "mcpToolCall",
            "id": "i",
            "server": "my-files",
            "tool": "write",
            "arguments": {"path": "a"},
            **more,
        },
    }


def elicits(kind: str = MCP_CALL, server: str = "my-files", **meta: Any) -> dict[str, Any]:
    said = {"tool_name": "write", "tool_params": {"path": "a"}, **meta}
    said["codex_approval_kind"] = kind
    return {"threadId": "t", "turnId": "u", "serverName": server, "mode": "form", "_meta": said}


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_call_of_an_mcp_server_is_asked_about_as_its_hook_names_it(allowed: bool) -> None:
    async with served() as at:
        at.answer = Permitted("p", {}, "ann") if allowed else Denied(Why.EXPIRED, "nobody decided")
        await at.tell("item/started", mcp_item())
        await at.tell(ELICITATION, elicits(persist=["session", "always"]), id=0)
        accepted: dict[str, Any] = {"action": "accept", "content": {}}
        assert (await at.result())["result"] == (accepted if allowed else {"action": "decline"})
        (call,) = at.asked
        assert (call.tool, call.arguments) == ("mcp__my_files__write", {"path": "a"})
        assert not call.edits
        result = {"content": [{"type": "text", "text": "written"}]}
        await at.tell("item/completed", mcp_item(status="completed", result=result))
        if allowed:
            await until(lambda: len(at.reports) == 1)
            proposal, report = at.reports[0]
            assert (proposal, report.outcome, report.output) == ("p", "completed", "written")


@pytest.mark.parametrize(
    ("item", "asks"),
    [
        (mcp_item(id="other", tool="read"), elicits()),
        (mcp_item(type="fileChange"), elicits()),
        (mcp_item(arguments={"path": "b"}), elicits()),
        (mcp_item(arguments=[]), elicits(tool_params=None)),
        (mcp_item(arguments={"path": 1}), elicits(tool_params={"path": True})),
        (mcp_item(), elicits(server="other")),
        (mcp_item(), elicits(tool_name=None)),
        (mcp_item(), {**elicits(), "threadId": "other"}),
    ],
)
async def test_an_approval_of_no_call_that_has_begun_is_declined(item: Any, asks: Any) -> None:
    """A server can send a form of its own that says it is one."""
    async with served() as at:
        await at.tell("item/started", item)
        await at.tell(ELICITATION, asks, id=0)
        assert await at.result() == {"id": 0, "result": {"action": "decline"}}
        assert not at.asked


async def test_a_call_of_an_mcp_server_is_asked_about_once_and_a_form_is_left_to_the_terminal() -> (
    None
):
    async with served() as at:
        await at.tell("item/started", mcp_item(arguments=None))
        for _ in range(2):  # it is sent again to a client that joins again
            await at.tell(ELICITATION, elicits(tool_params=None), id=1)
        await at.tell(ELICITATION, elicits("tool_suggestion"), id=2)
        await at.tell(ELICITATION, {**elicits(), "_meta": None}, id=3)
        await at.tell(ELICITATION, elicits(tool_params=None), id=4)
        assert await at.result() == {"id": 4, "result": {"action": "decline"}}
        assert [each.arguments for each in at.asked] == [{}]
        assert [each["id"] for each in at.said if "method" not in each] == [4]


@pytest.mark.parametrize("number", [0, 7])
async def test_what_is_resolved_elsewhere_is_withdrawn_and_not_answered(number: int) -> None:
    async with served() as at:
        await at.tell(COMMAND, {**IDS, "command": "ls"}, id=number)
        await until(lambda: len(at.asked) == 1)
        await at.tell(COMMAND, {**IDS, "command": "ls"}, id=number)  # as it is sent again
        await at.tell("serverRequest/resolved", {"threadId": "another", "requestId": number})
        await at.tell("serverRequest/resolved", {"threadId": "t", "requestId": number})
        await until(lambda: at.withdrawn == 1)
        assert len(at.asked) == 1
        assert not any("result" in each for each in at.said)


async def test_of_two_calls_with_one_id_neither_is_asked_about() -> None:
    """A person would be shown one of them, and the other might run."""
    async with served() as at:
        for path in ("a", "b"):
            item = {"type": "fileChange", "id": "i", "changes": [{"path": path}]}
            for _ in range(2):
                await at.tell("item/started", {"threadId": "t", "item": item})
        for number in range(2):
            await at.tell(CHANGE, IDS, id=number)
        await until(lambda: len(at.said) == 4)
        declined = {"decision": "decline"}
        assert [each["result"] for each in at.said[2:]] == [declined, declined]
        assert not at.asked


async def test_junk_is_asked_about_nowhere_and_ends_nothing() -> None:
    async with served() as at:
        for junk in ("no JSON", b"\xff", "[" * 100_000, "null", '{"method": 1, "id": []}'):
            await at._send.send(junk)
        junk_ids: list[Any] = [None, [], {}, 1.5]
        for junk_id in junk_ids:
            await at.tell(COMMAND, {**IDS, "command": "ls"}, id=junk_id)
            await at.tell("serverRequest/resolved", {"threadId": "t", "requestId": junk_id})
        await at.tell(COMMAND, {**IDS, "command": "ls"}, id=1)
        await until(lambda: len(at.asked) == 1)
        assert not any("result" in each for each in at.said)


async def test_what_cannot_be_shown_and_a_flood_are_declined() -> None:
    async with served() as at:
        await at.tell(CHANGE, IDS, id=1)
        await at.tell(COMMAND, IDS, id=2)
        await at.tell(PERMISSIONS, {**IDS, "permissions": None}, id=3)
        await at.tell("execCommandApproval", {"command": ["ls"]}, id=4)
        await at._send.send("no JSON")
        for number in range(MAX_ASKS + 2):
            await at.tell(COMMAND, {**IDS, "command": "ls"}, id=10 + number)
        await until(lambda: len(at.asked) == MAX_ASKS and len(at.said) == 8)
        declined = {"decision": "decline"}
        answers = {each["id"]: each.get("result") for each in at.said if "method" not in each}
        assert answers == {
            1: declined,
            2: declined,
            3: {"permissions": {}, "scope": "turn"},
            4: None,
            10 + MAX_ASKS: declined,
            11 + MAX_ASKS: declined,
        }
        assert any("error" in each for each in at.said)


async def test_a_host_that_a_command_wants_to_reach_is_no_command_and_both_are_reported() -> None:
    async with served() as at:
        at.answer = Permitted("p", {}, "ann")
        asks: list[dict[str, Any]] = [{"command": "curl example.org"}, REACHES]
        for number, more in enumerate(asks):
            await at.tell(COMMAND, {**IDS, **more}, id=number)
            await until(lambda: len(at.said) == 3 + number)  # noqa: B023 - it is awaited here
            at.answer = Permitted("q", {}, "ann")
        assert [each.tool for each in at.asked] == ["Bash", "network_access"]
        item = {"id": "i", "status": "completed", "exitCode": 0}
        await at.tell("item/completed", {"threadId": "t", "item": item})
        await until(lambda: [each for each, _ in at.reports] == ["p", "q"])


@pytest.mark.parametrize(
    ("status", "outcome"),
    [("completed", "completed"), ("failed", "failed"), ("declined", "not_run")],
)
async def test_the_end_of_a_permitted_call_is_reported_once(status: str, outcome: str) -> None:
    async with served() as at:
        at.answer = Permitted("p", {}, "ann")
        await at.tell(COMMAND, {**IDS, "command": "ls"}, id=0)
        await at.result()
        item = {"id": "i", "status": status, "exitCode": 2, "aggregatedOutput": "no such file"}
        for _ in range(2):
            await at.tell("item/completed", {"threadId": "t", "item": item})
        await until(lambda: len(at.reports) == 1)
        proposal, report = at.reports[0]
        assert (proposal, report.outcome, report.exit_code) == ("p", outcome, 2)
        assert report.output == "no such file"
