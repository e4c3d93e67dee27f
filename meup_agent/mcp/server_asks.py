"""Questions of a server to its client during a call: elicitation, sampling, roots.

They go to the participant that made the call, or to a handler, as long as the call runs. A server
of 2026-07-28 puts them into its result and is called again with the answers; an older one sends
requests of its own, which do not say what call they belong to: over HTTP the stream that they come
on tells, and over standard input and output it is certain only while one call runs.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from meup_agent.errors import MeupError, RequestError
from meup_agent.protocol import payloads

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskGroup

    from meup_agent.agent.context import Context
    from meup_agent.client.messages import Request
    from meup_agent.protocol.payloads import JsonObject

log = logging.getLogger("meup_agent.mcp")

ELICITATION: Final = "elicitation/create"
SAMPLING: Final = "sampling/createMessage"
ROOTS: Final = "roots/list"

ASK_METHODS: Final = (ELICITATION, SAMPLING, ROOTS)
"""Everything that a server may ask its client for."""

MAY_ASK: Final = (payloads.TOOL_CALL, "prompts/get", "resources/read")
"""Requests during which a server may ask, by 2026-07-28; older revisions name none."""

MAX_ASKS: Final = 32
"""Questions during one call: a server that asks more would ask without an end."""

MAX_ROUNDS: Final = 10
"""Results of one call that ask for input before the last one; the SDK's client has the same."""

_EMPTY_ROUND_SECONDS: Final = 0.05
"""A server that asks for nothing but to be called again is, after so long; it doubles."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question of a server, for a handler.

    Attributes:
        server: The server's name.
        method: ``elicitation/create``, ``sampling/createMessage`` or ``roots/list``.
        params: Its parameters, which are the server's words.
        participant: The participant whose call the server works on.
        request: The id of the envelope of that call.
        proposal: The id of the proposal that it carries out; ``None`` if it carries out none.
    """

    server: str
    method: str
    params: JsonObject
    participant: str
    request: str
    proposal: str | None


OnAsk = Callable[[Ask], Awaitable[Mapping[str, Any]]]
"""Answers a question with MCP's result for it; may raise :class:`RequestError`."""

current_call: ContextVar[RunningCall | None] = ContextVar("meup_agent.mcp.call", default=None)
"""The call that a message to a server belongs to, or one that comes on the call's own stream."""


class RunningCall:
    """A request that a server works on.

    Args:
        server: The server's name.
        request: The request.
        ctx: Its handler's context.
        on_ask: Answers in place of the participant that made the call.
    """

    def __init__(
        self, server: str, request: Request, ctx: Context, on_ask: OnAsk | None = None
    ) -> None:
        self.server = server
        self.request = request
        self._ctx = ctx
        self._on_ask = on_ask
        self._asks = 0
        self._tasks: TaskGroup | None = None
        self._context = contextvars.copy_context()

    @property
    def asker(self) -> str:
        """The participant that is asked: the proposer, else the requester."""
        return self.request.proposer or self.request.sender

    @property
    def reason(self) -> str | None:
        """The reason of its cancellation; ``None`` while it was not cancelled."""
        cause = self._ctx.reason
        return None if cause is None else str(cause)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """The block in which the server works on it: its questions are answered as part of it."""
        token = current_call.set(self)
        failure: Exception | None = None
        try:
            self._context = contextvars.copy_context()
            async with anyio.create_task_group() as self._tasks:
                try:
                    yield
                except Exception as error:
                    failure = error  # by itself, not in a group
                # The call has its result, so nothing waits for an answer any more.
                self._tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            current_call.reset(token)
        if failure is not None:
            raise failure

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Ask what the server wants to know; from any task.

        Raises:
            RequestError: It is answered with an error, or cannot be answered.
        """
        tasks = self._tasks
        if method not in ASK_METHODS:
            raise RequestError(
                payloads.METHOD_NOT_FOUND, f"a server cannot ask for {method[:64]!r}"
            )
        if tasks is None:
            raise _unanswerable("the call that it belonged to has ended")
        self._asks += 1
        if self._asks > MAX_ASKS:
            raise _unanswerable(f"a server may ask {MAX_ASKS} times during one call")
        done = anyio.Event()
        answers: list[JsonObject | RequestError] = []

        async def answer() -> None:
            try:
                answers.append(await self._answer(method, params))
            except RequestError as error:
                answers.append(error)
            except MeupError as error:
                answers.append(_unanswerable(f"{self.asker!r} could not be asked: {error}"))
            except Exception:
                log.exception("the handler for %s of %r failed", method, self.server)
                answers.append(_unanswerable("its handler failed"))
            finally:
                done.set()

        # In the handler's task group and with its context: a cancelled call cancels what it asks.
        self._context.copy().run(tasks.start_soon, answer)
        await done.wait()
        if not answers:
            raise _unanswerable("the call that it belonged to was cancelled")
        if isinstance(answers[0], RequestError):
            raise answers[0]
        return answers[0]

    async def _answer(self, method: str, params: JsonObject) -> JsonObject:
        request = self.request
        if self._on_ask is not None:
            told = Ask(self.server, method, params, self.asker, request.id, request.proposal)
            return dict(await self._on_ask(told))
        # Which exchange it belongs to is ours to say: the server's word could name another one.
        params = payloads.without_our_meta(params)
        meta = payloads.as_object(params.get(payloads.META))
        meta = {**meta, payloads.ASKED_IN_REQUEST: request.id}
        if request.proposal is not None:
            meta[payloads.ASKED_IN_PROPOSAL] = request.proposal
        # A person may be asked, who takes time; it ends with the call at the latest.
        asked = {**params, payloads.META: meta}
        try:
            answer = await self._ctx.space.request(self.asker, method, asked, timeout=None)
        except RequestError as error:
            # Ours from here on: an error of the participant would be a failure of the handler.
            raise RequestError(
                error.code, f"{self.asker!r} answered {method} with: {error.message}", error.data
            ) from None
        return payloads.as_object(answer)


Call = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Sends a request with some parameters to a server; gives the result."""


async def answered(call: RunningCall, send: Call, params: JsonObject) -> JsonObject:
    """The result of a request, after what the server asked for in results before it.

    Raises:
        RequestError: The server answered with an error, or asks what cannot be answered.
    """
    result = await send(params)
    wait = _EMPTY_ROUND_SECONDS
    for _ in range(MAX_ROUNDS):
        if result.get("resultType") != "input_required":
            return result
        asked = payloads.as_object(result.get("inputRequests"))
        again = {name: value for name, value in params.items() if name != "inputResponses"}
        if asked:
            again["inputResponses"] = await _ask_all(call, asked)
        else:
            await anyio.sleep(wait)
            wait = min(2 * wait, 1.0)
        if "requestState" in result:
            again["requestState"] = result["requestState"]
        result = await send(again)
    if result.get("resultType") != "input_required":
        return result
    raise RequestError(
        payloads.INTERNAL_ERROR,
        f"the MCP server {call.server!r} asked for more input after {MAX_ROUNDS} rounds",
    )


async def _ask_all(call: RunningCall, asked: JsonObject) -> JsonObject:
    """The answers to every question of a result, asked at the same time."""
    answers: JsonObject = {}
    refused: list[RequestError] = []

    async def ask(key: str, one: JsonObject) -> None:
        method = one.get("method")
        try:
            params = payloads.as_object(one.get("params"))
            answers[key] = await call.ask(method if isinstance(method, str) else "", params)
        except RequestError as error:
            refused.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for key, value in asked.items():
            tasks.start_soon(ask, key, payloads.as_object(value))
    if refused:
        raise refused[0]
    return answers


class RunningCalls:
    """The calls that a server works on, to find the one that a question of it belongs to."""

    def __init__(self) -> None:
        self._calls: dict[int, RunningCall] = {}

    def __len__(self) -> int:
        """The number of calls."""
        return len(self._calls)

    def add(self, call: RunningCall) -> None:
        """Note that the server works on a call."""
        self._calls[id(call)] = call

    def remove(self, call: RunningCall) -> None:
        """Note that it does no longer."""
        self._calls.pop(id(call), None)

    def find(self) -> RunningCall:
        """The call that the question being handled in this context belongs to.

        Raises:
            RequestError: None does for certain.
        """
        call = current_call.get()
        if call is not None:
            if id(call) not in self._calls:
                raise _unanswerable("the call that it belonged to has ended")
            return call
        may_ask = [each for each in self._calls.values() if each.request.method in MAY_ASK]
        if not may_ask:
            raise _unanswerable("a server may only ask while it works on a call")
        if len(may_ask) > 1:
            # The answer may be a secret, and another participant's call is not to get it.
            raise _unanswerable("several calls run, and it does not say which one it belongs to")
        return may_ask[0]


def _unanswerable(why: str) -> RequestError:
    return RequestError(payloads.INVALID_REQUEST, f"this cannot be answered: {why}")
