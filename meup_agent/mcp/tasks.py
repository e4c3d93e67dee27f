"""Tasks: an MCP tool call that is polled instead of waited for.

``io.modelcontextprotocol/tasks`` of 2026-07-28 as an extension of the SDK, for any of its servers:
:class:`TasksExtension` runs a tool call beside the request that made it, answers the request with a
task as soon as the call takes longer than a moment, and serves ``tasks/get``, ``tasks/update`` and
``tasks/cancel``. A client that does not declare the extension in a request waits for its result, as
without it.

What comes in is the tool handler that it wraps; what goes out is that handler's result, or its
error, kept for the caller that made the task until its time (``ttlMs``) is over. A handler asks
the client through its session, as in the revisions that have a channel back: under a task the
question becomes an entry of ``inputRequests``. It never decides what a tool does, and knows no
spaces.

Every task runs inside ``async with extension``, and ends with it.
"""

from __future__ import annotations

import dataclasses
import logging
import typing
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.server.extension import Extension, MethodBinding, compose_tool_call_handler
from mcp.server.mcpserver import authenticated_principal, require_client_extension
from mcp.server.runner import modern_error_data
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from meup_agent.mcp.tool_task import TaskSession, ToolTask
from meup_agent.protocol.payloads import TOOL_CALL

if typing.TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import TracebackType

    from mcp.server.context import CallNext, HandlerResult
    from mcp.server.lowlevel.server import Server

__all__ = ["TASKS", "TaskSupport", "TasksExtension", "install_extension"]

logger = logging.getLogger(__name__)

TASKS: typing.Final = "io.modelcontextprotocol/tasks"

#: ``forbidden`` always answers with the result, ``required`` always with a task; ``optional`` with
#: a task when the result is not there within a moment.
TaskSupport = typing.Literal["forbidden", "optional", "required"]

GRACE_SECONDS = 0.1
"""Wait for the result of a call before it becomes a task."""

TASK_SECONDS = 3600.0
"""Time for which a task is kept, and runs at most, for a server that is not told otherwise."""

POLL_SECONDS = 1.0
"""Interval at which a client is asked to poll a task."""

MAX_TASKS = 100
"""Tasks kept for one participant; its further calls wait for their results."""

MAX_RESULT_BYTES = 32 << 20
"""Bytes of the results of one participant's tasks: more of them come only from tasks that run
already."""

MAX_ROUNDS = 32
"""Rounds in which a handler under a task asks by its result: one that answers every answer with a
new question ends here."""

_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)
_INPUT_RESPONSES: TypeAdapter[mcp_types.InputResponses] = TypeAdapter(mcp_types.InputResponses)

Context: typing.TypeAlias = ServerRequestContext[typing.Any, typing.Any]


class TaskParams(mcp_types.RequestParams):
    """The parameters of ``tasks/get`` and ``tasks/cancel``."""

    task_id: str


class TaskUpdateParams(TaskParams):
    """The parameters of ``tasks/update``."""

    input_responses: dict[str, typing.Any]


class TasksExtension(Extension):
    """Serves tool calls as tasks to the clients that declare it.

    Args:
        support: By the name of a tool, or by a function of the request and the name, if its calls
            become tasks; ``optional`` for the others.
        owner: The caller that a task belongs to: no other can see it. The authenticated client, if
            there is none.
        is_withdrawn: Whether a result says that the call was withdrawn, which is ``cancelled`` for
            a task.
        grace: Seconds within which an ``optional`` call is answered with its result.
        ttl: Seconds after which a task is forgotten, and stopped if it runs.
        poll_interval: Seconds that a client is asked to leave between two ``tasks/get``.
        limit: Tasks kept for one owner. Further calls are answered with their results, and refused
            where a task is ``required``.
    """

    identifier = TASKS

    def __init__(
        self,
        *,
        support: Mapping[str, TaskSupport]
        | Callable[[Context, str], Awaitable[TaskSupport]]
        | None = None,
        owner: Callable[[Context], Hashable] = authenticated_principal,
        is_withdrawn: Callable[[HandlerResult], bool] = lambda _: False,
        grace: float = GRACE_SECONDS,
        ttl: float = TASK_SECONDS,
        poll_interval: float = POLL_SECONDS,
        limit: int = MAX_TASKS,
    ) -> None:
        self._support = support or {}
        self._owner = owner
        self._is_withdrawn = is_withdrawn
        self._grace = grace
        self._ttl = ttl
        self._poll_interval = poll_interval
        self._limit = limit
        self._tasks: dict[Hashable, dict[str, ToolTask]] = {}
        self._group: anyio.abc.TaskGroup | None = None
        self._exit_stack = AsyncExitStack()

    async def __aenter__(self) -> typing.Self:
        if self._group is not None:
            raise RuntimeError("enter a TasksExtension once, as its server starts")
        self._group = await self._exit_stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if self._group is not None:
            self._group.cancel_scope.cancel()
        self._group = None
        return await self._exit_stack.__aexit__(exc_type, exc, traceback)

    @asynccontextmanager
    async def lifespan(self, server: object) -> AsyncGenerator[dict[str, typing.Any]]:
        """The ``lifespan`` of a server that needs none of its own."""
        async with self:
            yield {}

    def methods(self) -> Sequence[MethodBinding]:
        """``tasks/get``, ``tasks/update`` and ``tasks/cancel``, in the revisions that have them."""
        return (
            MethodBinding("tasks/get", TaskParams, self._get, _MODERN),
            MethodBinding("tasks/update", TaskUpdateParams, self._update, _MODERN),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, _MODERN),
        )

    async def intercept_tool_call(
        self,
        params: mcp_types.CallToolRequestParams,
        ctx: Context,
        call_next: CallNext,
    ) -> HandlerResult:
        """Answer with the result, or with a task, as the client and the tool allow."""
        if ctx.protocol_version not in _MODERN:
            return await call_next(ctx)
        support = await self._support_of(ctx, params.name)
        if support == "required":
            require_client_extension(ctx, TASKS)
        elif support == "forbidden" or not _declares_tasks(ctx):
            return await call_next(ctx)
        owner = self._owner(ctx)
        tasks = self._tasks.setdefault(owner, {})
        if len(tasks) >= self._limit or _size(tasks) > MAX_RESULT_BYTES:
            if support == "required":
                full = f"{len(tasks)} tasks with results of {_size(tasks)} bytes are kept already"
                raise MCPError(mcp_types.INTERNAL_ERROR, f"{full}: wait for the end of their ttlMs")
            return await call_next(ctx)
        task = ToolTask(self._ttl, self._poll_interval)
        tasks[task.id] = task
        kept = False
        try:
            self._require_running().start_soon(self._run, task, params, ctx, call_next)
            with anyio.move_on_after(self._grace):
                await task.ready.wait()
            kept = self._keeps(task, support)
        finally:
            if not kept:
                # Also when the client is gone before it knew of a task.
                task.cancel("the request was cancelled")
                self._forget(owner, task)
        if not kept:
            if task.error is not None:
                raise MCPError.from_error_data(task.error)
            return task.result
        task.detached = True
        self._require_running().start_soon(self._forget_later, owner, task)
        return {"resultType": "task", **task.wire()}

    @staticmethod
    def _keeps(task: ToolTask, support: TaskSupport) -> bool:
        if isinstance(task.result, mcp_types.InputRequiredResult):
            return False
        return support == "required" or not task.ended

    async def _run(
        self,
        task: ToolTask,
        params: mcp_types.CallToolRequestParams,
        ctx: Context,
        call_next: CallNext,
    ) -> None:
        try:
            with task.scope:
                result = await self._call(task, params, ctx, call_next)
                if not isinstance(result, mcp_types.InputRequiredResult):
                    task.inlined = _inline(result, ctx.protocol_version)
                    task.size = len(to_json(task.inlined))
                if not task.detached:
                    task.result = result
                task.end("cancelled" if self._is_withdrawn(result) else "completed")
        except Exception as error:
            task.error = modern_error_data(error)
            task.end("failed", task.error.message)
        finally:
            over = task.scope.cancelled_caught
            if task.cancel("its time (ttlMs) is over" if over else "the server stops"):
                logger.info("task %s cancelled: %s", task.id, task.status_message)

    async def _call(
        self,
        task: ToolTask,
        params: mcp_types.CallToolRequestParams,
        ctx: Context,
        call_next: CallNext,
    ) -> HandlerResult:
        """Run the handler, again with its answers for as long as it asks by its result."""
        inner = dataclasses.replace(ctx, session=TaskSession(task, ctx))
        for _ in range(MAX_ROUNDS):
            result = await call_next(inner)
            if isinstance(result, dict) and methods.is_input_required(result):
                result = mcp_types.InputRequiredResult.model_validate(result, by_name=False)
            if not isinstance(result, mcp_types.InputRequiredResult) or not task.detached:
                return result
            answers = await task.ask_all(result.input_requests or {})
            # The handler is called with the very parameters that the interceptor got, so the
            # answers are laid into them, as its client would have sent them in another request.
            params.input_responses = _INPUT_RESPONSES.validate_python(answers)
            params.request_state = result.request_state
            raw = {**(ctx.params or {}), "inputResponses": answers}
            raw.pop("requestState", None)
            if result.request_state is not None:
                raw["requestState"] = result.request_state
            inner = dataclasses.replace(inner, params=raw)
        raise MCPError(mcp_types.INTERNAL_ERROR, f"the tool asked more than {MAX_ROUNDS} times")

    async def _get(self, ctx: Context, params: TaskParams) -> HandlerResult:
        return self._find(ctx, params).detailed()

    async def _update(self, ctx: Context, params: TaskUpdateParams) -> HandlerResult:
        self._find(ctx, params).answer(params.input_responses)
        return {}

    async def _cancel(self, ctx: Context, params: TaskParams) -> HandlerResult:
        task = self._find(ctx, params)
        if task.cancel("cancelled by the client"):
            logger.info("task %s cancelled: %s", task.id, task.status_message)
        return {}

    def _find(self, ctx: Context, params: TaskParams) -> ToolTask:
        require_client_extension(ctx, TASKS)
        headers = getattr(ctx.request, "headers", None)
        if headers is not None:
            _check_routing_header(headers, params.task_id)
        task = self._tasks.get(self._owner(ctx), {}).get(params.task_id)
        if task is None:
            # The same for what another owner has: ids cannot be probed.
            raise MCPError(mcp_types.INVALID_PARAMS, "no task has this id, or its time is over")
        return task

    async def _support_of(self, ctx: Context, name: str) -> TaskSupport:
        if callable(self._support):
            return await self._support(ctx, name)
        return self._support.get(name, "optional")

    async def _forget_later(self, owner: Hashable, task: ToolTask) -> None:
        await anyio.sleep_until(task.deadline)
        self._forget(owner, task)

    def _forget(self, owner: Hashable, task: ToolTask) -> None:
        tasks = self._tasks.get(owner, {})
        tasks.pop(task.id, None)
        if not tasks:
            self._tasks.pop(owner, None)

    def _require_running(self) -> anyio.abc.TaskGroup:
        if self._group is None:
            raise RuntimeError(
                "a TasksExtension runs inside `async with`: enter it in the server's lifespan"
            )
        return self._group


def install_extension(extension: Extension, server: Server[typing.Any]) -> None:
    """Add an extension to a low-level server, as ``MCPServer(extensions=[…])`` does to itself.

    The server must have its handler of ``tools/call``. An extension's tools and resources are not
    taken: a low-level server lists its own.

    Raises:
        ValueError: The server has no such handler, or one of the extension's methods already; or
            the extension brings tools or resources.
    """
    if extension.tools() or extension.resources():
        raise ValueError(
            f"{extension.identifier} brings tools or resources, which a low-level server lists"
        )
    entry = server.get_request_handler(TOOL_CALL)
    if entry is None:
        raise ValueError("the server has no handler of tools/call yet: add it before the extension")
    for binding in extension.methods():
        if server.get_request_handler(binding.method) is not None:
            raise ValueError(f"the server has a handler of {binding.method} already")
        server.add_request_handler(binding.method, binding.params_type, _gated(binding))
    server.add_request_handler(
        TOOL_CALL, entry.params_type, compose_tool_call_handler([extension], entry.handler)
    )
    server.extensions[extension.identifier] = extension.settings()


def _gated(
    binding: MethodBinding,
) -> Callable[[Context, typing.Any], Awaitable[HandlerResult]]:
    versions = binding.protocol_versions

    async def handle(ctx: Context, params: typing.Any) -> HandlerResult:
        if versions is not None and ctx.protocol_version not in versions:
            raise MCPError(mcp_types.METHOD_NOT_FOUND, "Method not found", binding.method)
        return await binding.handler(ctx, params)

    return handle


def _check_routing_header(headers: Mapping[str, str], task_id: str) -> None:
    if decode_header_value(headers.get(MCP_NAME_HEADER)) != task_id:
        raise MCPError(
            mcp_types.HEADER_MISMATCH,
            f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter",
        )


def _declares_tasks(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and TASKS in (capabilities.extensions or {})


def _size(tasks: Mapping[str, ToolTask]) -> int:
    return sum(task.size for task in tasks.values())


def _inline(result: HandlerResult, version: str) -> dict[str, typing.Any]:
    """The result as the server would have written it in answer to ``tools/call``."""
    if isinstance(result, Mapping):
        dumped = dict(result)
    elif result is None:
        dumped = {}
    else:
        dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    try:
        return methods.serialize_server_result(TOOL_CALL, version, dumped)
    except ValidationError:
        logger.exception("the tool's handler returned an invalid result")
        raise MCPError(mcp_types.INTERNAL_ERROR, "Handler returned an invalid result") from None
