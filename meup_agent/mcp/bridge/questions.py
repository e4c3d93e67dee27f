"""Questions of a server to its client during a call: elicitation, sampling, roots.

They go to the participant that made the call, or to a handler, as long as the call runs. A server
of 2026-07-28 puts them into its result and is called again with the answers; an older one sends
requests of its own, which do not say what call they belong to: over HTTP the stream that they come
on tells, and over standard input and output it is certain only while one participant's calls run.
Where it is not, a person is asked to fill in a form, by a proposal; and outside a call roots are
those that the bridge was given, or those of the client that called last.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from meup_agent.client.offers import ask_each
from meup_agent.client.schema_check import ArgumentChecker
from meup_agent.client.space import Space, propose_request
from meup_agent.errors import MeupError, RequestError
from meup_agent.mcp.sdk.messages import CAPABILITIES, ELICITATION, ROOTS
from meup_agent.protocol.exchange import Wait
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.outcomes import Fulfillment, Rejection
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from meup_agent.agent.context import Context
    from meup_agent.client.messages import Request
    from meup_agent.protocol.wire.payloads import JsonObject

log = logging.getLogger("meup_agent.mcp")

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


class NoCall(RequestError):
    """A question while the server works on no call."""


class UncertainCall(RequestError):
    """A question while the server works on calls of several participants."""


class RunningCall:
    """A request that a server works on.

    Args:
        server: The server's name.
        request: The request.
        ctx: Its handler's context.
        on_ask: Answers in place of the participant that made the call.
    """

    _context: contextvars.Context  # that of its block

    def __init__(
        self, server: str, request: Request, ctx: Context, on_ask: OnAsk | None = None
    ) -> None:
        self.server = server
        self.request = request
        self._ctx = ctx
        self._on_ask = on_ask
        self._asks = 0
        self._tasks: TaskGroup | None = None

    @property
    def asker(self) -> str:
        """The participant that is asked: the proposer, else the requester."""
        return self.request.proposer or self.request.sender

    @property
    def reason(self) -> str | None:
        """The reason of its cancellation; ``None`` while it was not cancelled."""
        cause = self._ctx.reason
        return None if cause is None else cause.words

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """The block in which the server works on it: its questions are answered as part of it."""
        token = current_call.set(self)
        try:
            self._context = contextvars.copy_context()
            # At its end the call has its result, so nothing waits for an answer any more.
            async with background_tasks() as self._tasks:
                yield
        finally:
            self._tasks = None
            current_call.reset(token)

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Ask what the server wants to know; from any task.

        Raises:
            RequestError: It is answered with an error, or cannot be answered.
        """
        tasks = self._tasks
        if method not in CAPABILITIES:
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
        # A person may be asked, who takes time; it ends with the call at the latest.
        asked = naming_call(request, params)
        try:
            answer = await self._ctx.space.request(self.asker, method, asked, timeout=None)
        except RequestError as error:
            # Ours from here on: an error of the participant would be a failure of the handler.
            raise RequestError(
                error.code, f"{self.asker!r} answered {method} with: {error.message}", error.data
            ) from None
        return payloads.as_object(answer)


def naming_call(request: Request, params: JsonObject) -> JsonObject:
    """Parameters of a question or a note for the participant that made a call, which they name."""
    # Which exchange it belongs to is ours to say: the server's word could name another one.
    params = payloads.without_our_meta(params)
    meta = {
        **payloads.as_object(params.get(payloads.META)),
        payloads.ASKED_IN_REQUEST: request.id,
    }
    if request.proposal is not None:
        meta[payloads.ASKED_IN_PROPOSAL] = request.proposal
    return {**params, payloads.META: meta}


async def answered(
    call: RunningCall, send: Callable[[JsonObject], Awaitable[JsonObject]], params: JsonObject
) -> JsonObject:
    """The result of a request, after what the server asked for in results before it.

    Args:
        call: The call.
        send: Sends the request with some parameters, and gives the result.
        params: The parameters.

    Raises:
        RequestError: The server answered with an error, or asks what cannot be answered.
    """
    again, wait, rounds = params, _EMPTY_ROUND_SECONDS, 0
    while (result := await send(again)).get("resultType") == "input_required":
        rounds += 1
        if rounds > MAX_ROUNDS:
            raise RequestError(
                payloads.INTERNAL_ERROR,
                f"the MCP server {call.server!r} asked for more input after {MAX_ROUNDS} rounds",
            )
        again = {name: value for name, value in params.items() if name != "inputResponses"}
        if asked := payloads.as_object(result.get("inputRequests")):
            again["inputResponses"] = await _ask_all(call, asked)
        else:
            await anyio.sleep(wait)
            wait = min(2 * wait, 1.0)
        if "requestState" in result:
            again["requestState"] = result["requestState"]
    return result


async def _ask_all(call: RunningCall, asked: JsonObject) -> JsonObject:
    """The answers to every question of a result, asked at the same time."""

    async def ask(one: JsonObject) -> JsonObject:
        method = one.get("method")
        params = payloads.as_object(one.get("params"))
        return await call.ask(method if isinstance(method, str) else "", params)

    # One more than may be asked, so that it is refused at once.
    questions = map(payloads.as_object, asked.values())
    answers = await ask_each(questions, ask, at_a_time=MAX_ASKS + 1)
    return dict(zip(asked, answers, strict=True))


def call_asked_about(calls: Collection[RunningCall]) -> RunningCall:
    """The call that the question being handled in this context belongs to.

    Args:
        calls: The calls that the server works on.

    Raises:
        RequestError: None does for certain.
    """
    call = current_call.get()
    if call is not None:
        if call not in calls:
            raise _unanswerable("the call that it belonged to has ended")
        return call
    may_ask = [each for each in calls if each.request.method in MAY_ASK]
    if not may_ask:
        raise _unanswerable("a server may only ask while it works on a call", NoCall)
    if len({each.asker for each in may_ask}) > 1:
        # The answer may be a secret, and another participant's call is not to get it.
        raise _unanswerable(
            "calls of several participants run, and it does not say which one it belongs to",
            UncertainCall,
        )
    return may_ask[-1]  # the latest: what is asked at all is asked soon


def _unanswerable(why: str, kind: type[RequestError] = RequestError) -> RequestError:
    return kind(payloads.INVALID_REQUEST, f"this cannot be answered: {why}")


# --- without a call that is certain ---

LAST_CALLER_SECONDS: Final = 10.0
"""Wait for the roots of the client that called last."""

MAX_PERSON_ROUNDS: Final = 5
"""Proposals of one form, of which each was approved with arguments that do not fill it in."""

MAX_PERSON_ASKS: Final = 4
"""Forms of a server that wait for a person at once."""

Say = Callable[[str], None]


async def roots_of_last_caller(space: Space, last: Request | None, say: Say) -> JsonObject:
    """The roots of the client whose call a server worked on last; none where it gives none."""
    if last is None:
        return {"roots": []}
    asked = last.proposer or last.sender
    try:
        answer = await space.request(
            asked, ROOTS, naming_call(last, {}), timeout=LAST_CALLER_SECONDS
        )
    except MeupError as error:
        say(f"has no roots, {asked!r} gave none: {error}")
        return {"roots": []}
    return payloads.as_object(answer)


async def ask_person(space: Space, params: JsonObject) -> JsonObject:
    """Propose that a person fills in a form, as the arguments of the proposal.

    Who approves it with other arguments has answered; a rejection declines.

    Raises:
        RequestError: The form cannot be proposed.
    """
    schema = payloads.as_object(params.get("requestedSchema"))
    if params.get("mode", "form") != "form" or not schema:
        raise _unanswerable("a person can be asked to fill in a form alone")
    fields = payloads.as_object(schema.get("properties"))
    empty = {key: payloads.as_object(each).get("default") for key, each in fields.items()}
    form = {"message": params.get("message"), "requestedSchema": schema, "arguments": empty}
    for _ in range(MAX_PERSON_ROUNDS):
        try:
            outcome = await propose_request(space, space.me, ELICITATION, form, wait=Wait.FIRST)
        except MeupError as error:
            raise _unanswerable(f"no person could be asked: {error}") from None
        if not isinstance(outcome, Fulfillment):
            return {"action": "decline" if isinstance(outcome, Rejection) else "cancel"}
        if outcome.error is None:
            return payloads.as_object(outcome.response)
        # An approval is used once, so what lacks an answer is another proposal.
        form = {"problem": outcome.error.get("message"), **form}
    return {"action": "cancel"}


def take_form(params: JsonObject) -> JsonObject:
    """The answer that a person approved a form with.

    Raises:
        RequestError: It lacks something; the form is proposed again.
    """
    given = payloads.as_object(params.get("arguments"))
    filled = {key: value for key, value in given.items() if value is not None}
    checker = ArgumentChecker(params.get("requestedSchema"), "a form", exact=True)
    problems = checker.problems(filled)
    if problems:
        said = "; ".join(map(str, problems))
        raise RequestError(
            payloads.INVALID_PARAMS,
            f"this form needs your answers: {said}; approve it with other arguments",
        )
    return {"action": "accept", "content": filled}
