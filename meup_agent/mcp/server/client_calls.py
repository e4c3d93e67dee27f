"""The calls that run for MCP clients: their progress, their log, and what is asked during them.

A participant that carries out a call may ask its client something (an elicitation, a sampling, its
roots), by a request to us that names the call. Only the participant that we called may, and only
while the call runs. In the revisions with a handshake, and under a task, the client is asked at
once. In 2026-07-28 it is asked by the result of its own request: the call waits meanwhile, until
the client comes back with the answers.

A call that is proposed may wait for longer than its client does. It is answered before that, goes
on without its client, and is *held*: its result is kept until its deadline, and told once.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections import OrderedDict, deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import mcp_types as types
import msgspec
from anyio.lowlevel import checkpoint
from mcp.server.connection import allowed_log_levels
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from meup_agent.client.messages import Progress, Request
from meup_agent.errors import RequestError
from meup_agent.mcp.sdk.messages import (
    CAPABILITIES,
    ROOTS,
    Question,
    RawResult,
    is_declared,
    is_wanted,
    read_log_message,
)
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.ttl_map import keep_last
from meup_agent.transport.base import Condition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from meup_agent.client.proposal import ProposalHandle
    from meup_agent.mcp.sdk.tasks import Ctx
    from meup_agent.protocol.wire.payloads import JsonObject

log = logging.getLogger("meup_agent.mcp")

MAX_REQUESTS: Final = 256
"""Requests of a participant's clients that wait for answers at once, and calls that run, which may
wait for their clients in between; one more is refused. Each may be a proposal for people to see."""

MAX_ASKS: Final = 64
"""Questions during one call."""

MAX_NOTES: Final = 256
"""Progress and log messages kept for a client that reads slowly; later ones are left out."""

MAX_PROGRESS_CHARS: Final = 1000
"""Characters of a progress message."""

ANSWER_SECONDS: Final = 600.0
"""Wait for a client that was asked by a result to come back; then the call is cancelled."""

MAX_HELD: Final = 256
"""Results of a participant's calls that are kept for clients to ask for; the oldest makes room."""

MAX_TOLD: Final = 4_096
"""Outcomes of a participant that are remembered as told; an older one may be told once more."""

MAX_HELD_BYTES: Final = 32 * 1024 * 1024
"""Bytes of these; the newest is kept in any case."""

HELD_SECONDS: Final = 60.0
"""A result is kept so long at least, also where its deadline comes before."""

MAX_HELD_SECONDS: Final = 86_400.0
"""A result of a call without a deadline is kept so long."""

STATE: Final = "meup:"
"""Beginning of a ``requestState`` of ours; others are the participants'."""

AFTER_SECONDS: Final = 10.0
"""Wait for a client that is asked for its roots after its call."""

MAX_ENDED_CALLS: Final = 64
"""Calls that have ended and whose participant may still ask for the client's roots."""

_STEP: Final = 1e-6
"""MCP wants progress to grow: what tells of waiting is less than any real progress."""


class ClientCall:
    """A call that runs for a client.

    Args:
        participant: The participant that carries it out.
        ctx: The client's request.
        log_level: The least level of log messages that the client wants.
        start_soon: Starts a task beside the call, for notes.

    Attributes:
        ids: The ids of its envelopes: a request's, or a proposal's.
        proposal: The proposal that it became, if it did.
        detached: Its client was answered that it still waits, and hears nothing of it.
        questions: What the client is to answer by its next request, by keys of ours.
        changed: Notified when it has ended, there is a question, or its client was told of all.
    """

    def __init__(
        self,
        participant: str,
        ctx: Ctx,
        log_level: types.LoggingLevel,
        start_soon: Callable[..., object],
    ) -> None:
        self.participant = participant
        self.ctx = ctx
        self.ids: set[str] = set()
        self.proposal: ProposalHandle | None = None
        self.detached = False
        self.questions: dict[str, Question] = {}
        self.changed = Condition()
        self._start_soon = start_soon
        self._log_level: types.LoggingLevel = log_level
        self._asks = 0
        self._done = -_STEP
        self._notes: deque[Callable[[], Awaitable[None]]] = deque()
        self._ended = False
        self._relay: anyio.CancelScope | None = None
        self._failure: Exception | None = None

    @property
    def is_carried_out(self) -> bool:
        """True once it runs at its participant: before a decision that has nothing to ask."""
        return self.proposal is None or self.proposal.state is not ProposalState.PENDING

    def detach(self) -> None:
        """Go on without a client."""
        self.detached = True
        self._notes.clear()
        if self._relay is not None:
            self._relay.cancel()

    def attach(self, ctx: Ctx) -> None:
        """Go on for a client that has come back with another request."""
        self.ctx, self.detached = ctx, False
        self._failure = None

    def note_proposed(self, proposal: ProposalHandle) -> None:
        """Note the proposal that it became."""
        self.proposal = proposal
        self.changed.notify_all()

    # --- what it tells its client ---

    @property
    def wants_progress(self) -> bool:
        """True if the client asked for progress, or polls the call as a task."""
        meta = self.ctx.meta or {}
        polled = self.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        return meta.get("progress_token") is not None or (
            polled and self.ctx.session.can_send_request
        )

    def put_progress(self, progress: Progress) -> None:
        """Tell the client of a progress, soon; returns at once."""
        self._put(partial(self._tell_progress, progress))

    def put_waiting(self, text: str) -> None:
        """Tell the client something that is not progress of the tool's."""
        self.put_progress(Progress(float("-inf"), None, text))

    def put_log(self, params: JsonObject) -> None:
        """Tell the client of a log message, soon; returns at once."""
        self._put(partial(self._tell_log, params))

    def _put(self, note: Callable[[], Awaitable[None]]) -> None:
        if self._ended or self.detached or len(self._notes) >= MAX_NOTES:
            log.debug("left out, the client reads slowly: %r", note)
            return
        self._notes.append(note)
        if self._relay is None:  # a task group of each call would slow down those that tell nothing
            self._relay = anyio.CancelScope()
            self._start_soon(self._relay_notes, self._relay)

    async def finish_notes(self) -> None:
        """Wait until the client was told of each note.

        Raises:
            Exception: It could not be told.
        """
        while self._relay is not None:
            await self.changed.wait()
        if self._failure is not None and not self.detached:
            raise self._failure

    def end(self) -> None:
        """Tell the client nothing more."""
        self._ended = True
        if self._relay is not None:
            self._relay.cancel()

    async def _relay_notes(self, relay: anyio.CancelScope) -> None:
        try:
            with relay:
                while self._notes:
                    await self._notes.popleft()()
        except Exception as error:  # the call's, and not its participant's
            self._failure, self._ended = error, not self.detached
        finally:
            self._relay = None
            self.changed.notify_all()

    async def _tell_progress(self, progress: Progress) -> None:
        self._done = max(progress.done, self._done + _STEP)
        message = progress.message[:MAX_PROGRESS_CHARS] or None
        await self.ctx.session.report_progress(self._done, progress.total, message)

    async def _tell_log(self, params: JsonObject) -> None:
        said = read_log_message(self.participant, params)
        meta: Any = self.ctx.meta
        levels = allowed_log_levels(self.ctx.protocol_version, meta)
        if said is not None and said.level in levels and is_wanted(said, self._log_level):
            await self.ctx.session.send_notification(
                types.LoggingMessageNotification(params=said), self.ctx.request_id
            )

    # --- what it asks its client ---

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Ask the client; its answer.

        Raises:
            RequestError: It does not answer such questions, or answers with an error.
        """
        if self.detached:
            raise RequestError(
                types.INVALID_REQUEST,
                "the MCP client of this call was told that it takes longer, and cannot be asked",
            )
        if not is_declared(self.ctx.session.client_capabilities, method):
            raise _missing_capability(method)
        self._asks += 1
        if self._asks > MAX_ASKS:
            raise RequestError(types.INVALID_REQUEST, f"{MAX_ASKS} questions were asked already")
        if self._ended:
            if self.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
                raise RequestError(types.INVALID_REQUEST, "its client is asked during calls alone")
        elif not self.ctx.session.can_send_request:
            return await self._ask_by_result(method, params)
        request = types.Request[dict[str, Any], str](method=method, params=params)
        try:
            answer = await self.ctx.session.send_request(
                request,  # type: ignore[arg-type] # the SDK writes any that has a method
                RawResult,
                AFTER_SECONDS if self._ended else None,
                metadata=None
                if self._ended
                else ServerMessageMetadata(related_request_id=self.ctx.request_id),
            )
        except MCPError as error:
            raise RequestError(error.code, error.message, error.data) from error
        except ValueError as error:  # what the SDK's own types do not take
            raise RequestError(types.INVALID_REQUEST, "the client's answer is invalid") from error
        return answer.root

    async def _ask_by_result(self, method: str, params: JsonObject) -> JsonObject:
        key, question = secrets.token_urlsafe(8), Question(method, params)
        self.questions[key] = question
        self.changed.notify_all()
        try:
            await question.answered.wait()
        finally:
            self.questions.pop(key, None)
        return question.answer


class CallKey(NamedTuple):
    """The call that a client would make twice: its own label, and what is called.

    Attributes:
        client: The client's label.
        tool: The tool's name for clients.
        digest: The digest of the call.
    """

    client: tuple[str, ...]
    tool: str
    digest: str


class ClientCalls:
    """The calls for the clients of a participant.

    Attributes:
        running: Those that run, and can be found.
        left_joined: The proposals of other processes of the participant for which a client waits
            here, since it has made the same call again.
    """

    def __init__(self) -> None:
        self.running: set[ClientCall] = set()
        self.left_joined: set[str] = set()
        self._ended: deque[ClientCall] = deque(maxlen=MAX_ENDED_CALLS)
        self._waiting: dict[str, WaitingCall] = {}
        self._held: dict[str, WaitingCall] = {}  # by their proposals, the oldest first
        self._told = OrderedDict[str, None]()  # the last proposals whose outcome was told

    def end(self, call: ClientCall) -> None:
        """Note that a call runs no more."""
        self.running.discard(call)
        call.end()
        if call.is_carried_out:
            self._ended.append(call)

    def has_called(self, participant: str) -> bool:
        """True if a participant carries out a call for a client here, or did lately."""
        return any(call.participant == participant for call in (*self.running, *self._ended))

    def find(self, sender: str, params: JsonObject) -> ClientCall | None:
        """The running call that a participant names; ``None``: none that it carries out."""
        return self._named(self.running, sender, params)

    @staticmethod
    def _named(calls: Iterable[ClientCall], sender: str, params: JsonObject) -> ClientCall | None:
        named = payloads.exchanges_of((), payloads.as_object(params.get(payloads.META)))
        for call in calls:
            is_its = call.participant == sender and call.is_carried_out
            if is_its and not call.ids.isdisjoint(named):
                return call
        return None

    async def answer(self, request: Request) -> payloads.JsonObject:
        """Answer what a participant asks during a call, by asking the call's client.

        Raises:
            RequestError: There is no such call, or its client cannot be asked.
        """
        call = self.find(request.sender, request.params)
        if call is None and request.method == ROOTS:
            # A server may look at them at any time, and what it works on tells nobody's secret.
            call = self._named(self._ended, request.sender, request.params)
        if call is None:
            raise RequestError(
                types.INVALID_REQUEST, "you may ask only during a call that you carry out for us"
            )
        return await call.ask(request.method, payloads.without_our_meta(request.params))

    # --- calls that go on without their clients ---

    @property
    def holds(self) -> bool:
        """True while there is an outcome that a client may ask for."""
        self._forget_old()
        return bool(self._held)

    def hold(self, call: WaitingCall) -> None:
        """Keep a call, whose client was answered that it still waits."""
        assert call.call.proposal is not None, "what was not proposed does not wait"
        self._held.setdefault(call.call.proposal.id, call)

    def held(self, proposal: str) -> WaitingCall | None:
        """The call that is held under the id of its proposal."""
        self._forget_old()
        return self._held.get(proposal)

    def held_again(self, key: CallKey) -> WaitingCall | None:
        """The call that the same call joins; ``None``: it is one of its own.

        Only if its own call was answered with *still waits*, and no other has joined it: so that
        two equal calls that are meant to be two stay two.
        """
        self._forget_old()
        return next(
            (each for each in self._held.values() if each.key == key and not each.readers), None
        )

    @property
    def proposals(self) -> set[str]:
        """The proposals of this process whose outcome is not told, and those that it waits for."""
        own = {each.proposal.id for each in self.running if each.proposal is not None}
        return own | self._held.keys() | self.left_joined

    def _forget_old(self) -> None:
        """Forget outcomes whose time is over, and the oldest of too many."""
        now, count, size = anyio.current_time(), 0, 0
        for name, each in reversed(list(self._held.items())):
            if not each.ended:
                continue  # its deadline ends it
            count, size = count + 1, size + each.size
            too_many = count > MAX_HELD or (size > MAX_HELD_BYTES and count > 1)
            if (now >= each.kept_until or too_many) and not each.readers:
                del self._held[name]

    # --- calls that wait for their clients ---

    def wait_for_client(self, call: WaitingCall) -> str:
        """Keep a call until its client comes back; the state that the client must bring."""
        state = f"{STATE}{secrets.token_urlsafe(16)}"
        self._waiting[state] = call
        call.scope.deadline = anyio.current_time() + ANSWER_SECONDS
        return state

    def resume(self, state: str) -> WaitingCall:
        """The call that a client comes back to.

        Raises:
            MCPError: It does not wait any more.
        """
        call = self._waiting.pop(state, None)
        if call is None:
            raise MCPError(
                types.INVALID_PARAMS, "this call waits no longer for an answer; call the tool again"
            )
        call.scope.deadline = float("inf")
        return call

    def told(self, call: WaitingCall) -> None:
        """Hold a call no longer: its client has its outcome."""
        proposal = call.call.proposal
        if proposal is not None and self._held.get(proposal.id) is call:
            del self._held[proposal.id]
            keep_last(self._told, proposal.id, None, MAX_TOLD)

    def was_told(self, proposal: str) -> bool:
        """True if a client has had the outcome of a proposal from this process."""
        return proposal in self._told

    def forget(self, call: WaitingCall) -> None:
        for state in [each for each, waiting in self._waiting.items() if waiting is call]:
            del self._waiting[state]


class WaitingCall:
    """A call that runs beside its client's requests.

    It may ask the client by their results, or take longer than one of them may.

    Args:
        call: The call.
        calls: The calls of its participant.
        still_waits: Makes the result for a client that would give up before its end.
        key: The call that joins it if it is made again; ``None``: none does.
        deadline: The time of the loop at which its proposal expires.

    Attributes:
        held: Its client was answered that it still waits.
        readers: The requests of clients that wait for it.
        size: Bytes of its result, about.
        kept_until: The time of the loop until which its result is kept for a client.
    """

    def __init__(
        self,
        call: ClientCall,
        calls: ClientCalls,
        *,
        still_waits: Callable[[], JsonObject] | None = None,
        key: CallKey | None = None,
        deadline: float = math.inf,
    ) -> None:
        self.call = call
        self.scope = anyio.CancelScope()
        self.ended = False
        self.held = False
        self.readers = 0
        self.key = key
        self.size = 0
        self.kept_until = min(deadline, anyio.current_time() + MAX_HELD_SECONDS)
        self._still_waits = still_waits
        self._calls = calls
        self._result: JsonObject = {}
        self._error: Exception | None = None

    async def run(self, work: Callable[[], Awaitable[JsonObject]]) -> None:
        """Do the work of the call."""
        try:
            with self.scope:
                self._result = await work()
            if self.scope.cancelled_caught:
                self._error = MCPError(types.INTERNAL_ERROR, "the call was cancelled")
        except Exception as error:
            self._error = error
        except anyio.get_cancelled_exc_class():
            self._error = MCPError(types.INTERNAL_ERROR, "this participant has left the space")
            raise
        finally:
            self.ended = True
            self.kept_until = max(self.kept_until, anyio.current_time() + HELD_SECONDS)
            if self.held:
                self.size = len(msgspec.json.encode(self._result))
            self._calls.forget(self)
            self.call.changed.notify_all()

    async def next_result(self, within: float | None = None) -> JsonObject:
        """Wait for its result, or for questions that its client is to answer first.

        A cancelled wait, of its client's request, cancels it for the same reason, unless it is held
        already: then its client knows where to ask for it.

        Args:
            within: Seconds after which its client is told that it still waits, once it is proposed.
        """
        deadline = math.inf if within is None else anyio.current_time() + within
        self.readers += 1
        try:
            while not (self.ended or self.call.questions):
                # What is not proposed yet waits for no person.
                proposed = self._still_waits is not None and self.call.proposal is not None
                with anyio.CancelScope(deadline=deadline if proposed else math.inf):
                    await self.call.changed.wait()
                if proposed and anyio.current_time() >= deadline:
                    break
            await checkpoint()  # several questions at once go out together
        except anyio.get_cancelled_exc_class():
            if not self.held:
                self.scope.cancel()
            raise
        finally:
            self.readers -= 1
            if self.held and not self.readers:
                self.call.detach()
        if self.ended:
            self._calls.told(self)
            if self._error is not None:
                raise self._error
            return self._result
        if not self.call.questions:
            return self._hold()
        return {
            "resultType": "input_required",
            "inputRequests": {k: each.wire() for k, each in self.call.questions.items()},
            "requestState": self._calls.wait_for_client(self),
        }

    def _hold(self) -> JsonObject:
        """Go on without a client; its result."""
        assert self._still_waits is not None, "it has a time at which its client is answered"
        if not self.held:
            self.held = True
            self._calls.hold(self)
            if self.call.proposal is not None:
                self.call.proposal.keep()
        if not self.readers:
            self.call.detach()
        return self._still_waits()

    def take_answers(self, answers: JsonObject, ctx: Ctx) -> None:
        """Go on with a client's answers; a question without one is asked again."""
        self.call.ctx = ctx
        for key, question in list(self.call.questions.items()):
            if key in answers:
                question.answer = payloads.as_object(answers[key])
                question.answered.set()
                self.call.questions.pop(key, None)


def declared_only(ctx: Ctx, result: JsonObject) -> JsonObject:
    """A result that asks its client, without what the client does not answer.

    Raises:
        RequestError: It answers none of that.
    """
    requests = payloads.as_object(result.get("inputRequests"))
    methods = {key: payloads.as_object(each).get("method") for key, each in requests.items()}
    declared = ctx.session.client_capabilities
    kept = {key: requests[key] for key, method in methods.items() if is_declared(declared, method)}
    if requests and not kept:
        raise _missing_capability(str(next(iter(methods.values()))))
    return {**result, "inputRequests": kept} if len(kept) < len(requests) else result


def too_many_requests() -> MCPError:
    """The answer to a request that is one too many."""
    return MCPError(
        types.INVALID_REQUEST,
        f"{MAX_REQUESTS} requests of this participant wait for their results; try again when one"
        " of them has ended",
    )


def _missing_capability(method: str) -> RequestError:
    capability = CAPABILITIES.get(method, method[:64])
    return RequestError(
        types.MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"the MCP client of this call has no {capability}",
        {"requiredCapabilities": {capability: {}}},
    )
