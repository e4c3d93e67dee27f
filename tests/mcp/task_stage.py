"""Tools that become tasks, and the SDK's client that asks for them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import mcp_types
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from meup_agent.mcp import TasksClientExtension, TasksExtension, TaskSupport
from meup_agent.mcp.sdk.tasks import MAX_INPUT_REQUESTS, CreatedTask
from tests.patience import PATIENCE

SCHEMA: mcp_types.ElicitRequestedSchema = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}},
}
SUPPORT: dict[str, TaskSupport] = {
    "sure": "required",
    "never": "forbidden",
    "ask_by_result": "required",
}


class Answer(BaseModel):
    """Any result, as it was sent."""

    model_config = {"extra": "allow"}

    def __getitem__(self, key: str) -> Any:
        return self.model_dump()[key]


class Tools:
    """A server whose tools wait until the test lets them go on."""

    def __init__(self, **settings: Any) -> None:
        self.started = anyio.Event()
        self.proceed = anyio.Event()
        self.stopped = anyio.Event()
        self.tasks = TasksExtension(
            **{"support": SUPPORT, "grace": 0.01, "poll_interval": 0.05, **settings}
        )
        self.server = MCPServer("tools", lifespan=self.tasks.lifespan, extensions=[self.tasks])
        simple, asking = (self.quick, self.sure, self.never, self.slow), (self.ask, self.ask_much)
        for tool in (*simple, *asking, self.ask_by_result):
            self.server.tool()(tool)

    async def quick(self) -> str:
        return "quick"

    async def sure(self) -> str:
        return "sure"

    async def never(self) -> str:
        await anyio.lowlevel.checkpoint()
        return "never"

    async def slow(self, outcome: str, ctx: Context) -> str:
        self.started.set()
        try:
            await ctx.request_context.session.report_progress(1, 2, "half of it")
            await self.proceed.wait()
            await ctx.request_context.session.report_progress(2, 2, "nearly there")
        finally:
            self.stopped.set()
        if outcome == "protocol error":
            raise MCPError(-32050, "out of order", {"why": "test"})
        if outcome == "error":
            raise ToolError("it did not work")
        return outcome

    async def ask(self, ctx: Context) -> str:
        answer = await ctx.request_context.session.elicit_form("Sure?", SCHEMA)
        return f"{answer.action} {answer.content}"

    async def ask_much(self, ctx: Context) -> str:
        async with anyio.create_task_group() as group:
            for _ in range(MAX_INPUT_REQUESTS + 1):
                group.start_soon(ctx.request_context.session.elicit_form, "Sure?", SCHEMA)
        return "asked"

    async def ask_by_result(
        self, ctx: Context, late: bool = False
    ) -> str | mcp_types.InputRequiredResult:
        if late:
            await self.proceed.wait()
        params = ctx.request_context.params or {}
        if "inputResponses" not in params:
            question = mcp_types.ElicitRequestFormParams(message="Sure?", requested_schema=SCHEMA)
            return mcp_types.InputRequiredResult(
                input_requests={"sure": mcp_types.ElicitRequest(params=question)},
                request_state="first",
            )
        return f"{params['requestState']} {params['inputResponses']['sure']['action']}"


async def accept(
    context: ClientRequestContext, params: mcp_types.ElicitRequestParams
) -> mcp_types.ElicitResult:
    return mcp_types.ElicitResult(action="accept", content={"sure": True})


@asynccontextmanager
async def connected(server: MCPServer | Server[Any], **settings: Any) -> AsyncIterator[Client]:
    """A client that declares tasks, and answers every question with yes."""
    extensions = [TasksClientExtension()]
    with anyio.fail_after(PATIENCE):
        async with Client(
            server, **{"extensions": extensions, "elicitation_callback": accept, **settings}
        ) as client:
            yield client


class TaskRequest(mcp_types.Request[dict[str, Any], str]):
    name_param = "taskId"


async def ask(client: Client, method: str, **params: Any) -> Answer:
    return await client.session.send_request(TaskRequest(method=method, params=params), Answer)


async def call(client: Client, name: str, **arguments: Any) -> CreatedTask:
    created = await client.session.call_tool(name, arguments, allow_claimed=True)
    assert isinstance(created, CreatedTask)
    return created


async def until(client: Client, task_id: str, status: str) -> Answer:
    while True:
        task = await ask(client, "tasks/get", taskId=task_id)
        if task["status"] == status:
            return task
        await anyio.lowlevel.checkpoint()


def text(result: mcp_types.CallToolResult | Mapping[str, Any]) -> str:
    if isinstance(result, mcp_types.CallToolResult):
        result = result.model_dump(by_alias=True)
    return str(result["content"][0]["text"])
