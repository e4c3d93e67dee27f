"""The client's half of the tasks extension: a call that became a task ends as any other.

Given to the SDK's ``Client(extensions=[TasksClientExtension()])``, it declares
``io.modelcontextprotocol/tasks`` in each request and claims the results of type ``task``: these are
polled until they end, questions are answered by the client's own callbacks, and a caller that stops
waiting cancels the task.
"""

from __future__ import annotations

import contextlib
import typing

import anyio
import mcp_types
from mcp.client.context import ClientRequestContext
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError

from meup_agent.mcp.tasks import TASKS

if typing.TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp.client.session import ClientSession

__all__ = ["TasksClientExtension"]

CANCEL_TIMEOUT = 2.0
"""Seconds for the last word to a server that may be gone."""

POLL_INTERVAL = 1.0
"""Seconds between two questions to a server that asks for no interval."""

MIN_POLL_INTERVAL = 0.05
"""Seconds between two questions at least, whatever a server asks for."""


class CreatedTask(mcp_types.Result):
    """The answer to a ``tools/call`` that became a task."""

    result_type: typing.Literal["task"] = "task"
    task_id: str
    poll_interval_ms: float | None = None


class DetailedTask(mcp_types.Result):
    """The answer to ``tasks/get``."""

    status: str
    poll_interval_ms: float | None = None
    result: dict[str, typing.Any] | None = None
    error: mcp_types.ErrorData | None = None
    input_requests: dict[str, mcp_types.InputRequest] | None = None
    status_message: str | None = None


class _TaskRequest(mcp_types.Request[dict[str, typing.Any], str]):
    name_param = "taskId"


class TasksClientExtension(ClientExtension):
    """Declares tasks, and waits for those that a server makes of calls."""

    identifier = TASKS

    def claims(self) -> Sequence[ResultClaim[CreatedTask]]:
        """The results of type ``task``."""
        return (ResultClaim(result_type="task", model=CreatedTask, resolve=self._resolve),)

    async def _resolve(self, created: CreatedTask, ctx: ClaimContext) -> mcp_types.CallToolResult:
        session, task_id = ctx.session, created.task_id
        try:
            with anyio.fail_after(ctx.read_timeout_seconds):
                return await _wait_for_end(session, created)
        except TimeoutError:
            await _cancel(session, task_id)
            raise MCPError(
                mcp_types.REQUEST_TIMEOUT,
                f"{ctx.tool_name} did not end within {ctx.read_timeout_seconds} seconds",
            ) from None
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await _cancel(session, task_id)
            raise


async def _wait_for_end(session: ClientSession, created: CreatedTask) -> mcp_types.CallToolResult:
    interval = created.poll_interval_ms
    while True:
        await anyio.sleep(_seconds(interval))
        task = await session.send_request(
            _TaskRequest(method="tasks/get", params={"taskId": created.task_id}),
            DetailedTask,
        )
        interval = task.poll_interval_ms
        match task.status:
            case "completed":
                return mcp_types.CallToolResult.model_validate(task.result, by_name=False)
            case "failed" if task.error is not None:
                raise MCPError.from_error_data(task.error)
            case "failed" | "cancelled":
                text = task.status_message or f"The server ended the call as {task.status}"
                return mcp_types.CallToolResult(
                    content=[mcp_types.TextContent(text=text)], is_error=True
                )
            case "input_required":
                await _answer(session, created.task_id, task.input_requests or {})
                interval = MIN_POLL_INTERVAL * 1000
            case _:
                pass


async def _answer(
    session: ClientSession, task_id: str, requests: Mapping[str, mcp_types.InputRequest]
) -> None:
    responses: dict[str, typing.Any] = {}
    for key, request in requests.items():
        meta = request.params.meta if request.params else None
        ctx = ClientRequestContext(session=session, request_id=key, meta=meta)
        response = await session.dispatch_input_request(ctx, request)
        if isinstance(response, mcp_types.ErrorData):
            raise MCPError.from_error_data(response)
        responses[key] = response.model_dump(by_alias=True, mode="json", exclude_none=True)
    if responses:
        params = {"taskId": task_id, "inputResponses": responses}
        await session.send_request(
            _TaskRequest(method="tasks/update", params=params), mcp_types.EmptyResult
        )


async def _cancel(session: ClientSession, task_id: str) -> None:
    with anyio.move_on_after(CANCEL_TIMEOUT), contextlib.suppress(MCPError):
        await session.send_request(
            _TaskRequest(method="tasks/cancel", params={"taskId": task_id}),
            mcp_types.EmptyResult,
        )


def _seconds(interval_ms: float | None) -> float:
    return max(MIN_POLL_INTERVAL, POLL_INTERVAL if interval_ms is None else interval_ms / 1000)
