"""One tool call as a task: its state, and the channel of its handler.

A :class:`ToolTask` is changed by the run of its handler, by ``tasks/update`` and by
``tasks/cancel``; the first end wins. It starts nothing: :mod:`tasks` runs it.
"""

from __future__ import annotations

import datetime
import logging
import secrets
import typing
from collections.abc import Mapping

import anyio
import mcp_types
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.transport_context import TransportContext
from pydantic import TypeAdapter, ValidationError

if typing.TYPE_CHECKING:
    from mcp.server.context import HandlerResult, ServerRequestContext
    from mcp.shared.dispatcher import CallOptions
    from mcp.shared.message import MessageMetadata

logger = logging.getLogger(__name__)

TaskStatus = typing.Literal["working", "input_required", "completed", "failed", "cancelled"]

#: The capability that a client must declare to be asked by each method.
INPUT_CAPABILITY: typing.Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}

MAX_STATUS_MESSAGE = 1000
"""Characters of the text beside a task's status; longer ones are progress texts of strangers."""

MAX_INPUT_REQUESTS = 16
"""Questions of one task that wait for their answers at a time."""

_ANSWERS: dict[str, TypeAdapter[typing.Any]] = {
    "elicitation/create": TypeAdapter(mcp_types.ElicitResult),
    "sampling/createMessage": TypeAdapter(
        mcp_types.CreateMessageResult | mcp_types.CreateMessageResultWithTools
    ),
    "roots/list": TypeAdapter(mcp_types.ListRootsResult),
}


class InputRequest:
    """A question to the client, until it is answered."""

    def __init__(self, method: str, params: Mapping[str, typing.Any] | None) -> None:
        self.method = method
        self.params = dict(params or {})
        self.answered = anyio.Event()
        self.answer: dict[str, typing.Any] = {}

    def wire(self) -> dict[str, typing.Any]:
        """The entry of ``inputRequests``."""
        return {"method": self.method, "params": self.params}


class ToolTask:
    """One tool call and its state; the first end wins."""

    def __init__(self, ttl: float, poll_interval: float) -> None:
        self.id = secrets.token_urlsafe(16)
        self.status: TaskStatus = "working"
        self.status_message: str | None = None
        self.created = self.updated = datetime.datetime.now(datetime.UTC)
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
        self.inlined: dict[str, typing.Any] | None = None
        #: Bytes of that.
        self.size = 0
        self.error: mcp_types.ErrorData | None = None
        self._inputs: dict[str, InputRequest] = {}

    @property
    def ended(self) -> bool:
        """True once its status is final."""
        return self.status in ("completed", "failed", "cancelled")

    def end(self, status: TaskStatus, message: str | None = None) -> None:
        """Take the final status, unless there is one; questions go unanswered."""
        if self.ended:
            return
        self._inputs.clear()
        self._change(status)
        if message is not None:
            self.status_message = message[:MAX_STATUS_MESSAGE]
        self.ready.set()

    def cancel(self, reason: str) -> bool:
        """End it as cancelled, and stop its handler; false if it had ended."""
        if self.ended:
            return False
        self.end("cancelled", reason)
        self.scope.cancel()
        return True

    def note(self, message: str) -> None:
        """Show a text beside the status."""
        self.status_message = message[:MAX_STATUS_MESSAGE]
        self.updated = datetime.datetime.now(datetime.UTC)

    async def ask(
        self, method: str, params: Mapping[str, typing.Any] | None, timeout: float | None = None
    ) -> dict[str, typing.Any]:
        """Put a question into ``inputRequests``, and wait for its answer.

        Raises:
            MCPError: There are too many questions, or ``timeout`` seconds went by.
        """
        request = InputRequest(method, params)
        key = self._add_input(secrets.token_urlsafe(8), request)
        try:
            with anyio.fail_after(timeout):
                await request.answered.wait()
        except TimeoutError:
            raise MCPError(
                mcp_types.REQUEST_TIMEOUT, f"{method} was not answered within {timeout} seconds"
            ) from None
        finally:
            self._remove_input(key)
        return request.answer

    async def ask_all(
        self, requests: Mapping[str, mcp_types.InputRequest]
    ) -> dict[str, typing.Any]:
        """Put the questions of an ``input_required`` result, and wait for all answers."""
        inputs: dict[str, InputRequest] = {}
        try:
            for key, request in requests.items():
                dumped = request.model_dump(by_alias=True, mode="json", exclude_none=True)
                inputs[key] = InputRequest(dumped["method"], dumped.get("params"))
                self._add_input(key, inputs[key])
            for waiting in inputs.values():
                await waiting.answered.wait()
        finally:
            for key in inputs:
                self._remove_input(key)
        return {key: waiting.answer for key, waiting in inputs.items()}

    def answer(self, responses: Mapping[str, typing.Any]) -> None:
        """Take the answers to questions that wait; others are ignored, as the protocol says.

        Raises:
            MCPError: An answer does not fit its question; then none is taken.
        """
        taken = {key: self._inputs[key] for key in responses if key in self._inputs}
        for key, request in taken.items():
            try:
                _ANSWERS[request.method].validate_python(responses[key], by_name=False)
            except ValidationError:
                raise MCPError(
                    mcp_types.INVALID_PARAMS,
                    f"inputResponses[{key!r}] is no answer to {request.method}",
                ) from None
        for key, request in taken.items():
            request.answer = responses[key]
            request.answered.set()
            self._remove_input(key)

    def _add_input(self, key: str, request: InputRequest) -> str:
        if len(self._inputs) >= MAX_INPUT_REQUESTS:
            raise MCPError(
                mcp_types.INTERNAL_ERROR,
                f"a task asks at most {MAX_INPUT_REQUESTS} at a time",
            )
        self._inputs[key] = request
        self._change("input_required")
        self.ready.set()
        return key

    def _remove_input(self, key: str) -> None:
        if self._inputs.pop(key, None) is not None and not self.ended:
            self._change("input_required" if self._inputs else "working")

    def _change(self, status: TaskStatus) -> None:
        self.status = status
        self.updated = datetime.datetime.now(datetime.UTC)

    def wire(self) -> dict[str, typing.Any]:
        """The fields that every form of a task has."""
        fields: dict[str, typing.Any] = {
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

    def detailed(self) -> dict[str, typing.Any]:
        """The answer to ``tasks/get``."""
        fields = self.wire()
        if self.status == "completed":
            fields["result"] = self.inlined
        elif self.status == "failed" and self.error is not None:
            fields["error"] = self.error.model_dump(mode="json", by_alias=True, exclude_none=True)
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

    def __init__(self, task: ToolTask, ctx: ServerRequestContext[typing.Any, typing.Any]) -> None:
        self._task = task
        self._request = ctx.session
        self._capabilities = ctx.session.client_capabilities
        self.request_id = ctx.request_id
        self.cancel_requested = anyio.Event()

    @property
    def can_send_request(self) -> bool:
        """True while the task has not ended."""
        return not self._task.ended

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, typing.Any] | None,
        opts: CallOptions | None = None,
    ) -> dict[str, typing.Any]:
        """Ask the client, if it declared that it answers such questions."""
        capability = INPUT_CAPABILITY.get(method)
        if capability is None or getattr(self._capabilities, capability, None) is None:
            raise NoBackChannelError(method)
        return await self._task.ask(method, params, (opts or {}).get("timeout"))

    async def notify(
        self,
        method: str,
        params: Mapping[str, typing.Any] | None,
        opts: CallOptions | None = None,
    ) -> None:
        """Send a notification, which is dropped once the request is answered."""
        if self._task.detached:
            logger.debug("dropped %s: its request was answered with a task", method)
            return
        notification = mcp_types.Notification[dict[str, typing.Any], str](
            method=method, params=dict(params or {})
        )
        # The SDK's type lists its own notifications; it writes whatever has a method.
        await self._request.send_notification(
            typing.cast("mcp_types.ServerNotification", notification),
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

    def __init__(self, task: ToolTask, ctx: ServerRequestContext[typing.Any, typing.Any]) -> None:
        channel = TaskChannel(task, ctx)
        connection = Connection.from_envelope(ctx.protocol_version, None, None, outbound=channel)
        connection.client_params = ctx.session.client_params
        connection.client_capabilities = ctx.session.client_capabilities
        super().__init__(channel, connection, request_meta=ctx.meta)
        self.task = task


def _timestamp(moment: datetime.datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
