"""Tasks: an MCP tool call that is polled instead of waited for, on both sides.

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

import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

import anyio
import mcp_types
from anyio import AsyncContextManagerMixin
from mcp.client.context import ClientRequestContext
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding, compose_tool_call_handler
from mcp.server.mcpserver import authenticated_principal, require_client_extension
from mcp.server.runner import modern_error_data
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.shared.transport_context import TransportContext
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json

from meup_agent.mcp.sdk.messages import ANSWERS, Question, as_json, is_declared
from meup_agent.protocol.wire.payloads import TOOL_CALL, JsonObject
from meup_agent.transport.base import background_tasks

__all__ = ["TASKS", "TaskSupport", "TasksClientExtension", "TasksExtension", "install_extension"]


# --- one tool call as a task ---
# Its state, and the channel of its handler.
#
# A `ToolTask` is changed by the run of its handler, by `tasks/update` and by `tasks/cancel`; the
# first end wins. It starts nothing: `tasks` runs it.

if TYPE_CHECKING:
    from mcp.client.session import ClientSession
    from mcp.server.lowlevel.server import Server
    from mcp.shared.dispatcher import CallOptions
    from mcp.shared.message import MessageMetadata

Ctx = ServerRequestContext[Any, Any]

logger = logging.getLogger(__name__)

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]

MAX_STATUS_MESSAGE = 1000
"""Characters of the text beside a task's status; longer ones are progress texts of strangers."""

MAX_INPUT_REQUESTS = 16
"""Questions of one task that wait for their answers at a time."""


class ToolTask:
    """One tool call and its state; the first end wins."""

    def __init__(self, ttl: float, poll_interval: float) -> None:
        self.id = secrets.token_urlsafe(16)
        self.final: TaskStatus | None = None
        self.status_message: str | None = None
        self.created = self.updated = datetime.now(UTC)
        self.ttl = ttl
        self.poll_interval = poll_interval
        #: When it is forgotten, by the loop's clock.
        self.deadline = anyio.current_time() + ttl
        self.scope = anyio.CancelScope(deadline=self.deadline)
        #: Set when the request need not wait any longer: there is an end, or a question.
        self.ready = anyio.Event()
        #: Set once the request is answered with the task, so that its stream leads nowhere.
        self.detached = False
        self.result: HandlerResult = None
        self.inlined: JsonObject | None = None
        #: Bytes of that.
        self.size = 0
        self.error: mcp_types.ErrorData | None = None
        self._inputs: dict[str, Question] = {}

    @property
    def ended(self) -> bool:
        """True once its status is final."""
        return self.final is not None

    @property
    def status(self) -> TaskStatus:
        return self.final or ("input_required" if self._inputs else "working")

    def end(self, status: TaskStatus, message: str | None = None) -> None:
        """Take the final status, unless there is one; questions go unanswered."""
        if self.ended:
            return
        self._inputs.clear()
        self.final = status
        self.note(message)
        self.ready.set()

    def cancel(self, reason: str) -> bool:
        """End it as cancelled, and stop its handler; false if it had ended."""
        if self.ended:
            return False
        self.end("cancelled", reason)
        self.scope.cancel()
        return True

    def note(self, message: str | None = None) -> None:
        """Note a change, and the text beside the status where there is a new one."""
        if message is not None:
            self.status_message = message[:MAX_STATUS_MESSAGE]
        self.updated = datetime.now(UTC)

    async def ask(
        self, method: str, params: Mapping[str, Any] | None, timeout: float | None = None
    ) -> JsonObject:
        """Put a question into ``inputRequests``, and wait for its answer.

        Raises:
            MCPError: There are too many questions, or ``timeout`` seconds went by.
        """
        question = Question(method, dict(params or {}))
        try:
            with anyio.fail_after(timeout):
                await self._wait_for({secrets.token_urlsafe(8): question})
        except TimeoutError:
            raise MCPError(
                mcp_types.REQUEST_TIMEOUT, f"{method} was not answered within {timeout} seconds"
            ) from None
        return question.answer

    async def ask_all(self, requests: Mapping[str, mcp_types.InputRequest]) -> JsonObject:
        """Put the questions of an ``input_required`` result, and wait for all answers."""
        dumped = {key: as_json(request) for key, request in requests.items()}
        questions = {
            key: Question(each["method"], each.get("params") or {}) for key, each in dumped.items()
        }
        await self._wait_for(questions)
        return {key: each.answer for key, each in questions.items()}

    async def _wait_for(self, questions: Mapping[str, Question]) -> None:
        try:
            for key, question in questions.items():
                if len(self._inputs) >= MAX_INPUT_REQUESTS:
                    raise MCPError(
                        mcp_types.INTERNAL_ERROR,
                        f"a task asks at most {MAX_INPUT_REQUESTS} at a time",
                    )
                self._inputs[key] = question
                self.note()
                self.ready.set()
            for question in questions.values():
                await question.answered.wait()
        finally:
            for key in questions:
                self._remove_input(key)

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Take the answers to questions that wait; others are ignored, as the protocol says.

        Raises:
            MCPError: An answer does not fit its question; then none is taken.
        """
        taken = {key: self._inputs[key] for key in responses if key in self._inputs}
        for key, request in taken.items():
            try:
                ANSWERS[request.method].validate_python(responses[key], by_name=False)
            except ValidationError:
                raise MCPError(
                    mcp_types.INVALID_PARAMS,
                    f"inputResponses[{key!r}] is not an answer to {request.method}",
                ) from None
        for key, request in taken.items():
            request.answer = responses[key]
            request.answered.set()
            self._remove_input(key)

    def _remove_input(self, key: str) -> None:
        if self._inputs.pop(key, None) is not None:
            self.note()

    def wire(self) -> JsonObject:
        """The fields that every form of a task has."""
        fields: JsonObject = {
            "taskId": self.id,
            "status": self.status,
            "createdAt": _timestamp(self.created),
            "lastUpdatedAt": _timestamp(self.updated),
            "ttlMs": round(self.ttl * 1000),
            "pollIntervalMs": round(self.poll_interval * 1000),
        }
        if self.status_message is not None:
            fields["statusMessage"] = self.status_message
        return fields

    def detailed(self) -> JsonObject:
        """The answer to ``tasks/get``."""
        fields = self.wire()
        if self.status == "completed":
            fields["result"] = self.inlined
        elif self.status == "failed" and self.error is not None:
            fields["error"] = as_json(self.error)
        elif self.status == "input_required":
            fields["inputRequests"] = {key: asked.wire() for key, asked in self._inputs.items()}
        return fields


class TaskChannel:
    """The channel of a handler under a task: questions become input requests.

    What it reports goes to the stream of its request while that is open, and afterwards into the
    status message.
    """

    transport = TransportContext(kind="task", can_send_request=True)
    message_metadata: MessageMetadata = None

    def __init__(self, task: ToolTask, ctx: Ctx) -> None:
        self._task = task
        self._request = ctx.session
        self.request_id = ctx.request_id
        self.cancel_requested = anyio.Event()

    @property
    def can_send_request(self) -> bool:
        return not self._task.ended

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
    ) -> JsonObject:
        """Ask the client, if it declared that it answers such questions."""
        if not is_declared(self._request.client_capabilities, method):
            raise NoBackChannelError(method)
        return await self._task.ask(method, params, (opts or {}).get("timeout"))

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
    ) -> None:
        """Send a notification, which is dropped once the request is answered."""
        if self._task.detached:
            logger.debug("dropped %s: its request was answered with a task", method)
            return
        notification = mcp_types.Notification[JsonObject, str](
            method=method, params=dict(params or {})
        )
        # The SDK's type lists its own notifications; it writes whatever has a method.
        await self._request.send_notification(
            cast("mcp_types.ServerNotification", notification),
            related_request_id=self.request_id,
        )

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Show the progress in the status message, and on the stream while that is open."""
        done = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
        self._task.note(message or done)
        if not self._task.detached:
            await self._request.report_progress(progress, total, message)


class TaskSession(ServerSession):
    """The session of a handler under a task: as that of its request, with a channel back.

    Attributes:
        task: The task.
    """

    def __init__(self, task: ToolTask, ctx: Ctx) -> None:
        channel = TaskChannel(task, ctx)
        connection = Connection.from_envelope(ctx.protocol_version, None, None, outbound=channel)
        connection.client_params = ctx.session.client_params
        connection.client_capabilities = ctx.session.client_capabilities
        super().__init__(channel, connection, request_meta=ctx.meta)
        self.task = task


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- tasks ---


TASKS: Final = "io.modelcontextprotocol/tasks"

#: ``forbidden`` always answers with the result, ``required`` always with a task; ``optional`` with
#: a task when the result is not there within a moment.
TaskSupport = Literal["forbidden", "optional", "required"]

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


class TaskParams(mcp_types.RequestParams):
    """The parameters of ``tasks/get`` and ``tasks/cancel``."""

    task_id: str


class TaskUpdateParams(TaskParams):
    """The parameters of ``tasks/update``."""

    input_responses: JsonObject


@dataclass(kw_only=True, eq=False)
class TasksExtension(Extension, AsyncContextManagerMixin):
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

    support: Mapping[str, TaskSupport] | Callable[[Ctx, str], Awaitable[TaskSupport]] | None = None
    owner: Callable[[Ctx], Hashable] = authenticated_principal
    is_withdrawn: Callable[[HandlerResult], bool] = lambda _: False
    grace: float = GRACE_SECONDS
    ttl: float = TASK_SECONDS
    poll_interval: float = POLL_SECONDS
    limit: int = MAX_TASKS

    def __post_init__(self) -> None:
        self._tasks: dict[Hashable, dict[str, ToolTask]] = {}
        self._group: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        """The block in which the tasks run; entered once, as its server starts."""
        try:
            async with background_tasks() as self._group:
                yield self
        finally:
            self._group = None

    @asynccontextmanager
    async def lifespan(self, server: object) -> AsyncGenerator[JsonObject]:
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
        ctx: Ctx,
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
        owner = self.owner(ctx)
        tasks = self._tasks.setdefault(owner, {})
        if len(tasks) >= self.limit or _size(tasks) > MAX_RESULT_BYTES:
            if support == "required":
                full = f"{len(tasks)} tasks with results of {_size(tasks)} bytes are kept already"
                raise MCPError(mcp_types.INTERNAL_ERROR, f"{full}: wait for the end of their ttlMs")
            return await call_next(ctx)
        task = ToolTask(self.ttl, self.poll_interval)
        tasks[task.id] = task
        kept = False
        try:
            self._require_running().start_soon(self._run, task, params, ctx, call_next)
            with anyio.move_on_after(self.grace):
                await task.ready.wait()
            kept = not isinstance(task.result, mcp_types.InputRequiredResult) and (
                support == "required" or not task.ended
            )
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

    async def _run(
        self,
        task: ToolTask,
        params: mcp_types.CallToolRequestParams,
        ctx: Ctx,
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
                task.end("cancelled" if self.is_withdrawn(result) else "completed")
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
        ctx: Ctx,
        call_next: CallNext,
    ) -> HandlerResult:
        """Run the handler, again with its answers for as long as it asks by its result."""
        inner = replace(ctx, session=TaskSession(task, ctx))
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
            inner = replace(inner, params=raw)
        raise MCPError(mcp_types.INTERNAL_ERROR, f"the tool asked more than {MAX_ROUNDS} times")

    async def _get(self, ctx: Ctx, params: TaskParams) -> HandlerResult:
        return self._find(ctx, params).detailed()

    async def _update(self, ctx: Ctx, params: TaskUpdateParams) -> HandlerResult:
        self._find(ctx, params).answer(params.input_responses)
        return {}

    async def _cancel(self, ctx: Ctx, params: TaskParams) -> HandlerResult:
        task = self._find(ctx, params)
        if task.cancel("cancelled by the client"):
            logger.info("task %s cancelled: %s", task.id, task.status_message)
        return {}

    def _find(self, ctx: Ctx, params: TaskParams) -> ToolTask:
        require_client_extension(ctx, TASKS)
        headers = getattr(ctx.request, "headers", None)
        if (
            headers is not None
            and decode_header_value(headers.get(MCP_NAME_HEADER)) != params.task_id
        ):
            raise MCPError(
                mcp_types.HEADER_MISMATCH,
                f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter",
            )
        task = self._tasks.get(self.owner(ctx), {}).get(params.task_id)
        if task is None:
            # The same for what another owner has: ids cannot be probed.
            raise MCPError(mcp_types.INVALID_PARAMS, "no task has this id, or its time is over")
        return task

    async def _support_of(self, ctx: Ctx, name: str) -> TaskSupport:
        if callable(self.support):
            return await self.support(ctx, name)
        return (self.support or {}).get(name, "optional")

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


def install_extension(extension: Extension, server: Server[Any]) -> None:
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
        server.add_request_handler(binding.method, binding.params_type, partial(_handle, binding))
    server.add_request_handler(
        TOOL_CALL, entry.params_type, compose_tool_call_handler([extension], entry.handler)
    )
    server.extensions[extension.identifier] = extension.settings()


async def _handle(binding: MethodBinding, ctx: Ctx, params: Any) -> HandlerResult:
    versions = binding.protocol_versions
    if versions is not None and ctx.protocol_version not in versions:
        raise MCPError(mcp_types.METHOD_NOT_FOUND, "Method not found", binding.method)
    return await binding.handler(ctx, params)


def _declares_tasks(ctx: Ctx) -> bool:
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and TASKS in (capabilities.extensions or {})


def _size(tasks: Mapping[str, ToolTask]) -> int:
    return sum(task.size for task in tasks.values())


def _inline(result: HandlerResult, version: str) -> JsonObject:
    """The result as the server would have written it in answer to ``tools/call``."""
    dumped = as_json(result) if isinstance(result, BaseModel) else dict(result or {})
    try:
        return methods.serialize_server_result(TOOL_CALL, version, dumped)
    except ValidationError:
        logger.exception("the tool's handler returned an invalid result")
        raise MCPError(mcp_types.INTERNAL_ERROR, "Handler returned an invalid result") from None


# --- the client's half of the tasks extension ---
# A call that became a task ends as any other.
#
# Given to the SDK's `Client(extensions=[TasksClientExtension()])`, it declares
# `io.modelcontextprotocol/tasks` in each request and claims the results of type `task`: these are
# polled until they end, questions are answered by the client's own callbacks, and a caller that
# stops waiting cancels the task.


CANCEL_TIMEOUT = 2.0
"""Seconds for the last word to a server that may be gone."""

POLL_INTERVAL = 1.0
"""Seconds between two questions to a server that asks for no interval."""

MIN_POLL_INTERVAL = 0.05
"""Seconds between two questions at least, whatever a server asks for."""


class CreatedTask(mcp_types.Result):
    """The answer to a ``tools/call`` that became a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    poll_interval_ms: float | None = None


class DetailedTask(mcp_types.Result):
    """The answer to ``tasks/get``."""

    status: str
    poll_interval_ms: float | None = None
    result: JsonObject | None = None
    error: mcp_types.ErrorData | None = None
    input_requests: dict[str, mcp_types.InputRequest] | None = None
    status_message: str | None = None


class _TaskRequest(mcp_types.Request[JsonObject, str]):
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
        if task.status == "completed":
            return mcp_types.CallToolResult.model_validate(task.result, by_name=False)
        if task.status == "failed" and task.error is not None:
            raise MCPError.from_error_data(task.error)
        if task.status in ("failed", "cancelled"):
            text = task.status_message or f"The server ended the call as {task.status}"
            return mcp_types.CallToolResult(
                content=[mcp_types.TextContent(text=text)], is_error=True
            )
        if task.status == "input_required":
            await _answer(session, created.task_id, task.input_requests or {})
            interval = MIN_POLL_INTERVAL * 1000


async def _answer(
    session: ClientSession, task_id: str, requests: Mapping[str, mcp_types.InputRequest]
) -> None:
    responses: JsonObject = {}
    for key, request in requests.items():
        meta = request.params.meta if request.params else None
        ctx = ClientRequestContext(session=session, request_id=key, meta=meta)
        response = await session.dispatch_input_request(ctx, request)
        if isinstance(response, mcp_types.ErrorData):
            raise MCPError.from_error_data(response)
        responses[key] = as_json(response)
    if responses:
        params = {"taskId": task_id, "inputResponses": responses}
        await session.send_request(
            _TaskRequest(method="tasks/update", params=params), mcp_types.EmptyResult
        )


async def _cancel(session: ClientSession, task_id: str) -> None:
    with anyio.move_on_after(CANCEL_TIMEOUT), suppress(MCPError):
        await session.send_request(
            _TaskRequest(method="tasks/cancel", params={"taskId": task_id}),
            mcp_types.EmptyResult,
        )


def _seconds(interval_ms: float | None) -> float:
    return max(MIN_POLL_INTERVAL, POLL_INTERVAL if interval_ms is None else interval_ms / 1000)
