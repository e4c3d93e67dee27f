"""The tasks extension, on the SDK's own servers and asked by the SDK's own client."""

from typing import Any

import anyio
import anyio.lowlevel
import mcp_types
import pytest
from mcp.client import advertise
from mcp.server.context import ServerRequestContext
from mcp.server.extension import Extension, MethodBinding, ToolBinding
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError

from meup_agent.mcp import TasksExtension, install_extension
from meup_agent.mcp.sdk.tasks import TASKS
from tests.mcp.task_stage import SCHEMA, Tools, ask, call, connected, text, until
from tests.patience import PATIENCE


async def test_a_quick_call_is_answered_with_its_result() -> None:
    async with connected(Tools(grace=PATIENCE).server) as client:
        assert text(await client.call_tool("quick")) == "quick"


async def test_a_call_that_takes_longer_is_a_task_until_it_ends() -> None:
    tools = Tools()
    async with connected(tools.server) as client:
        created = await call(client, "slow", outcome="done")
        working = await ask(client, "tasks/get", taskId=created.task_id)
        assert working["status"] == "working"
        assert working["statusMessage"] == "half of it"
        assert working["ttlMs"] == 3_600_000
        assert working["pollIntervalMs"] == 50
        assert "result" not in working.model_dump()
        tools.proceed.set()
        ended = await until(client, created.task_id, "completed")
        assert text(ended["result"]) == "done"
        assert ended["statusMessage"] == "nearly there"
        assert ended["lastUpdatedAt"] >= ended["createdAt"]


async def test_the_clients_half_waits_for_the_end() -> None:
    tools = Tools()
    async with connected(tools.server) as client, anyio.create_task_group() as group:

        async def proceed() -> None:
            await tools.started.wait()
            tools.proceed.set()

        group.start_soon(proceed)
        assert text(await client.call_tool("slow", {"outcome": "done"})) == "done"


async def test_an_error_of_the_tool_is_a_completed_task() -> None:
    tools = Tools()
    async with connected(tools.server) as client:
        created = await call(client, "slow", outcome="error")
        tools.proceed.set()
        ended = await until(client, created.task_id, "completed")
        assert ended["result"]["isError"] is True
        assert "it did not work" in text(ended["result"])


async def test_an_error_of_the_protocol_is_a_failed_task() -> None:
    tools = Tools()
    async with connected(tools.server) as client:
        created = await call(client, "slow", outcome="protocol error")
        tools.proceed.set()
        ended = await until(client, created.task_id, "failed")
        error = {"code": -32050, "message": "out of order", "data": {"why": "test"}}
        assert ended["error"] == error
        assert "result" not in ended.model_dump()
        with pytest.raises(MCPError, match="out of order"):  # so the client's half says it
            await client.call_tool("slow", {"outcome": "protocol error"})


async def test_a_cancelled_task_ends_its_handler() -> None:
    tools = Tools()
    async with connected(tools.server) as client:
        created = await call(client, "slow", outcome="done")
        await ask(client, "tasks/cancel", taskId=created.task_id)
        assert (await ask(client, "tasks/get", taskId=created.task_id))["status"] == "cancelled"
        await tools.stopped.wait()


async def test_an_ended_task_stays_as_it_is_when_it_is_cancelled() -> None:
    async with connected(Tools().server) as client:
        created = await call(client, "sure")
        await until(client, created.task_id, "completed")
        await ask(client, "tasks/cancel", taskId=created.task_id)
        assert (await ask(client, "tasks/get", taskId=created.task_id))["status"] == "completed"


async def test_a_question_after_the_end_changes_nothing() -> None:
    tools = Tools()

    async def ask_late(ctx: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as group:
                    group.start_soon(ctx.request_context.session.elicit_form, "Sure?", SCHEMA)
                    await anyio.wait_all_tasks_blocked()
                    tools.started.set()
                    await tools.proceed.wait()
                    group.cancel_scope.cancel()
            tools.stopped.set()

    tools.server.tool()(ask_late)
    async with connected(tools.server) as client:
        created = await call(client, "ask_late")
        await ask(client, "tasks/cancel", taskId=created.task_id)
        await tools.started.wait()
        assert (await ask(client, "tasks/get", taskId=created.task_id))["status"] == "cancelled"
        tools.proceed.set()
        await tools.stopped.wait()
        assert (await ask(client, "tasks/get", taskId=created.task_id))["status"] == "cancelled"


async def test_a_caller_that_gives_up_cancels_its_task() -> None:
    polled = anyio.Event()

    def owner(ctx: ServerRequestContext[Any]) -> None:
        if ctx.method == "tasks/get":
            polled.set()

    tools = Tools(owner=owner)
    async with connected(tools.server) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "slow", {"outcome": "done"})
            await polled.wait()
            group.cancel_scope.cancel()
        await tools.stopped.wait()


async def test_a_call_that_is_given_up_within_the_grace_leaves_no_task() -> None:
    tools = Tools(grace=PATIENCE, limit=1)
    async with connected(tools.server) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "slow", {"outcome": "done"})
            await tools.started.wait()
            group.cancel_scope.cancel()
        await tools.stopped.wait()
        await call(client, "sure")


async def test_a_caller_whose_time_is_over_cancels_its_task() -> None:
    tools = Tools()
    async with connected(tools.server) as client:
        with pytest.raises(MCPError, match="slow did not end within"):
            await client.call_tool("slow", {"outcome": "done"}, read_timeout_seconds=0.2)
        await tools.stopped.wait()


async def test_a_withdrawn_call_is_a_cancelled_task() -> None:
    def is_withdrawn(result: Any) -> bool:
        return text(result) == "withdrawn"

    tools = Tools(is_withdrawn=is_withdrawn)
    async with connected(tools.server) as client:
        created = await call(client, "slow", outcome="withdrawn")
        tools.proceed.set()
        assert "result" not in (await until(client, created.task_id, "cancelled")).model_dump()


async def test_a_client_without_tasks_waits() -> None:
    tools = Tools(grace=0)
    tools.proceed.set()
    async with connected(tools.server, extensions=[]) as client:
        assert text(await client.call_tool("slow", {"outcome": "done"})) == "done"
        with pytest.raises(MCPError, match="required extension") as refused:
            await client.call_tool("sure")
        assert refused.value.code == mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY
        assert refused.value.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        for method in ("tasks/get", "tasks/cancel"):
            with pytest.raises(MCPError, match="required extension"):
                await ask(client, method, taskId="any")


async def test_an_old_revision_has_no_tasks() -> None:
    tools = Tools(grace=0)
    tools.proceed.set()
    async with connected(tools.server, mode="legacy") as client:
        assert text(await client.call_tool("slow", {"outcome": "done"})) == "done"
        assert text(await client.call_tool("sure")) == "sure"
        with pytest.raises(MCPError, match="Method not found"):
            await ask(client, "tasks/get", taskId="any")


async def test_a_tool_that_forbids_tasks_is_waited_for() -> None:
    async with connected(Tools(grace=0).server) as client:
        result = await client.session.call_tool("never", {}, allow_claimed=True)
        assert isinstance(result, mcp_types.CallToolResult)


async def test_a_question_of_a_handler_is_an_input_request() -> None:
    async with connected(Tools(grace=PATIENCE).server) as client:
        created = await call(client, "ask")
        asked = await until(client, created.task_id, "input_required")
        (key,) = asked["inputRequests"]
        assert asked["inputRequests"][key]["method"] == "elicitation/create"
        assert asked["inputRequests"][key]["params"]["message"] == "Sure?"

        responses: dict[str, Any] = {key: {"action": "perhaps"}}
        with pytest.raises(MCPError, match="is not an answer to elicitation/create"):
            await ask(client, "tasks/update", taskId=created.task_id, inputResponses=responses)
        responses = {"another": {"action": "accept"}}
        await ask(client, "tasks/update", taskId=created.task_id, inputResponses=responses)
        assert (await until(client, created.task_id, "input_required"))["inputRequests"]

        responses = {key: {"action": "accept", "content": {"sure": True}}}
        await ask(client, "tasks/update", taskId=created.task_id, inputResponses=responses)
        ended = await until(client, created.task_id, "completed")
        assert text(ended["result"]) == "accept {'sure': True}"


async def test_the_clients_half_answers_questions() -> None:
    async with connected(Tools().server) as client:
        assert text(await client.call_tool("ask")) == "accept {'sure': True}"


async def test_a_client_is_not_asked_what_it_cannot_answer() -> None:
    async with connected(Tools().server, elicitation_callback=None) as client:
        with pytest.raises(MCPError, match="Cannot send 'elicitation/create'"):
            await client.call_tool("ask")


async def test_a_task_asks_a_bounded_number_of_questions() -> None:
    async with connected(Tools().server) as client:
        created = await call(client, "ask_much")
        ended = await until(client, created.task_id, "completed")
        assert ended["result"]["isError"] is True


async def test_a_question_before_there_is_a_task_is_answered_by_the_next_call() -> None:
    async with connected(Tools(grace=PATIENCE).server) as client:
        first = await client.session.call_tool(
            "ask_by_result", {}, allow_input_required=True, allow_claimed=True
        )
        assert isinstance(first, mcp_types.InputRequiredResult)
        assert list(first.input_requests or {}) == ["sure"]
        # The SDK's driver asks again with the answers, and gets a task.
        assert text(await client.call_tool("ask_by_result")) == "first accept"


async def test_a_result_that_asks_after_there_is_a_task_is_asked_by_the_task() -> None:
    tools = Tools()
    async with connected(tools.server) as client:
        created = await call(client, "ask_by_result", late=True)
        tools.proceed.set()
        asked = await until(client, created.task_id, "input_required")
        assert list(asked["inputRequests"]) == ["sure"]
        responses = {"sure": {"action": "decline"}}
        await ask(client, "tasks/update", taskId=created.task_id, inputResponses=responses)
        ended = await until(client, created.task_id, "completed")
        assert text(ended["result"]) == "first decline"


async def test_a_task_is_its_owners_alone() -> None:
    owner = "alice"
    async with connected(Tools(owner=lambda _: owner).server) as client:
        created = await call(client, "sure")
        await until(client, created.task_id, "completed")
        owner = "bob"
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            with pytest.raises(MCPError, match="no task has this id") as refused:
                await ask(client, method, taskId=created.task_id, inputResponses={})
            assert refused.value.code == mcp_types.INVALID_PARAMS


async def test_calls_over_the_limit_are_waited_for_or_refused() -> None:
    tools = Tools(limit=1)
    async with connected(tools.server) as client:
        await call(client, "sure")
        assert text(await client.call_tool("quick")) == "quick"
        with pytest.raises(MCPError, match="1 tasks with results of"):
            await client.call_tool("sure")


async def test_results_over_the_limit_leave_tasks_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.mcp.sdk.tasks.MAX_RESULT_BYTES", 10)
    async with connected(Tools().server) as client:
        created = await call(client, "sure")
        await until(client, created.task_id, "completed")
        with pytest.raises(MCPError, match="are kept already"):
            await client.call_tool("sure")


async def test_a_task_is_stopped_and_forgotten_when_its_time_is_over() -> None:
    tools = Tools(ttl=0.1)
    async with connected(tools.server) as client:
        created = await call(client, "slow", outcome="done")
        await tools.stopped.wait()
        with pytest.raises(MCPError, match="no task has this id"):
            await until(client, created.task_id, "forgotten")


async def test_tasks_end_with_the_server() -> None:
    tools = Tools()
    async with connected(tools.server) as client:
        await call(client, "slow", outcome="done")
    assert tools.stopped.is_set()


async def test_an_extension_is_entered_once() -> None:
    tasks = TasksExtension()
    async with tasks:
        with pytest.raises(RuntimeError, match="already been entered"):
            await tasks.__aenter__()


async def test_a_server_that_does_not_enter_it_says_so() -> None:
    server = MCPServer("tools", extensions=[TasksExtension()])
    server.tool()(Tools().quick)
    async with connected(server, raise_exceptions=True) as client:
        with pytest.raises((RuntimeError, MCPError)):
            await client.call_tool("quick")


async def on_call_tool(
    ctx: ServerRequestContext[Any], params: mcp_types.CallToolRequestParams
) -> mcp_types.CallToolResult:
    return mcp_types.CallToolResult(content=[mcp_types.TextContent(text=params.name)])


async def on_list_tools(
    ctx: ServerRequestContext[Any], params: mcp_types.PaginatedRequestParams | None
) -> mcp_types.ListToolsResult:
    return mcp_types.ListToolsResult(tools=[])


async def test_a_low_level_server_takes_it() -> None:
    tasks = TasksExtension(support={"sure": "required"}, poll_interval=0.05)
    server = Server[Any](
        "tools", lifespan=tasks.lifespan, on_call_tool=on_call_tool, on_list_tools=on_list_tools
    )
    install_extension(tasks, server)
    async with connected(server) as client:
        assert TASKS in (client.server_capabilities.extensions or {})
        assert text(await client.call_tool("sure")) == "sure"
    async with connected(server, mode="legacy") as client:
        with pytest.raises(MCPError, match="Method not found"):
            await ask(client, "tasks/get", taskId="any")


async def test_a_low_level_server_must_fit_the_extension() -> None:
    with pytest.raises(ValueError, match="no handler of tools/call"):
        install_extension(TasksExtension(), Server[Any]("tools"))
    server = Server[Any]("tools", on_call_tool=on_call_tool)
    install_extension(TasksExtension(), server)
    with pytest.raises(ValueError, match="has a handler of tasks/get"):
        install_extension(TasksExtension(), server)

    class Brings(Extension):
        identifier = "test/brings"

        def tools(self) -> list[ToolBinding]:
            return [ToolBinding(on_call_tool)]

    with pytest.raises(ValueError, match="brings tools"):
        install_extension(Brings(), server)


async def test_a_method_for_every_revision_is_not_gated() -> None:
    class Everywhere(Extension):
        identifier = "test/everywhere"

        def methods(self) -> list[MethodBinding]:
            return [MethodBinding("test/everywhere", mcp_types.RequestParams, self.answer)]

        async def answer(self, ctx: object, params: object) -> dict[str, Any]:
            return {"here": True}

    server = Server[Any]("tools", on_call_tool=on_call_tool)
    install_extension(Everywhere(), server)
    for mode in ("legacy", "auto"):
        async with connected(server, mode=mode, extensions=[advertise(TASKS)]) as client:
            assert (await ask(client, "test/everywhere", taskId="any"))["here"]
