"""Starts the handler that an exchange is for, and tells the session how it ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio

from meup_agent.agent import mcp
from meup_agent.agent.context import Context
from meup_agent.agent.definitions import HandlerDefinition, Role
from meup_agent.agent.scope import (
    LATE_SECONDS,
    THREADS,
    HandlerCancelled,
    Scope,
    is_cancelled_here,
)
from meup_agent.client.chat import Chat
from meup_agent.client.current import RunningHandler, handler_is
from meup_agent.client.deciding import Proposal
from meup_agent.errors import InvalidArguments, RequestError
from meup_agent.protocol import exchange, payloads
from meup_agent.protocol.exchange.roster import participant_of

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from meup_agent.agent.registry import Registry
    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import Key, Work
    from meup_agent.protocol.reasons import Cause
    from meup_agent.session import Session

log = logging.getLogger("meup_agent.agent")

_ROLES = {
    exchange.Role.REJECT: Role.REJECT,
    exchange.Role.WITHDRAW: Role.WITHDRAW,
    exchange.Role.CONFLICT: Role.CONFLICT,
    exchange.Role.CHAT: Role.CHAT,
    exchange.Role.JOIN: Role.JOIN,
    exchange.Role.LEAVE: Role.LEAVE,
}


class Runner:
    """Runs an agent's handlers, each in a task and a cancel scope of its own.

    Args:
        registry: The handlers.
        name: The agent's name.
        tasks: Where the handlers' tasks live.
    """

    def __init__(self, registry: Registry, name: str, tasks: TaskGroup) -> None:
        self._registry = registry
        self._name = name
        self._tasks = tasks
        self._scopes: dict[Key, Scope] = {}
        self._idle = anyio.Event()
        self._threads = anyio.CapacityLimiter(THREADS)
        self._session: Session | None = None
        self._space: Space | None = None

    def attach(self, session: Session, space: Space) -> None:
        """Name the session that the handlers work in."""
        self._session, self._space = session, space

    # --- what the session asks ---

    def wants(self, role: exchange.Role, envelope: Envelope) -> bool:
        """Whether there is a handler for an envelope in a role."""
        match role:
            case exchange.Role.REQUEST:
                call = payloads.read_call(envelope.payload)
                return mcp.knows(self._registry, call, addressed=bool(envelope.to))
            case exchange.Role.PROPOSAL:
                call = payloads.read_call(envelope.payload)
                return self._registry.proposal_handler(call.method, call.name or None) is not None
            case exchange.Role.KIND:
                return bool(self._registry.for_kind(envelope.kind))
            case _:
                return bool(self._registry.handlers(_ROLES[role]))

    def start(self, key: Key, work: Work) -> None:
        """Start the handlers for some work."""
        scope = Scope(key, self._name_of(work))
        self._scopes[key] = scope
        self._tasks.start_soon(self._run, scope, work, name=scope.name)

    def cancel(self, key: Key, cause: Cause) -> None:
        """End the scope of a handler."""
        scope = self._scopes.get(key)
        if scope is None or scope.cause is not None:
            return
        log.info("%s is cancelled by %r: %s", scope.name, cause.by, cause)
        scope.cancel(cause)
        self._tasks.start_soon(self._watch_the_end, scope, name=f"end of {scope.name}")

    async def wait_idle(self) -> None:
        """Return when no handler runs."""
        while self._scopes:
            self._idle = anyio.Event()
            await self._idle.wait()

    def abandon_threads(self) -> None:
        """Stop waiting for worker threads that do not look whether they were cancelled."""
        for scope in self._scopes.values():
            scope.abandon()

    # --- one handler ---

    async def _run(self, scope: Scope, work: Work) -> None:
        settled = False
        try:
            running = RunningHandler(scope.key, self._used_session, lambda: scope.cause)
            with handler_is(running):
                result = await self._result(scope, work)
            scope.ended.set()
            if scope.cause is None:
                self._used_session.returned(scope.key, result)
            else:
                self._cancelled(scope)
            settled = True
        except RequestError as error:
            self._failed(scope, int(error.code) if _is_number(error.code) else -32000, error)
            settled = True
        except InvalidArguments as error:
            scope.ended.set()
            self._used_session.raised(
                scope.key,
                payloads.INVALID_PARAMS,
                str(error),
                {"problems": list(error.problems)} if error.problems else None,
            )
            settled = True
        except HandlerCancelled:
            self._cancelled(scope)
            settled = True
        except Exception as error:
            self._failed(scope, payloads.INTERNAL_ERROR, error)
            settled = True
        except anyio.get_cancelled_exc_class():
            if is_cancelled_here():
                raise
            # A future of the handler's own was cancelled: its failure, and nobody else's.
            self._used_session.raised(
                scope.key, payloads.INTERNAL_ERROR, f"{scope.name} was interrupted"
            )
            settled = True
        finally:
            scope.ended.set()
            if not settled:
                self._cancelled(scope)
            del self._scopes[scope.key]
            if not self._scopes:
                self._idle.set()

    def _cancelled(self, scope: Scope) -> None:
        self._used_session.raised(scope.key, payloads.EXCHANGE_ERROR, "cancelled")
        log.info("%s has stopped", scope.name)

    def _failed(self, scope: Scope, code: int, error: Exception) -> None:
        """A handler raised: the requester gets a sentence, the log gets the rest."""
        scope.ended.set()
        if scope.cause is None:
            log.error("%s failed", scope.name, exc_info=error)
        else:
            log.info("%s failed while it was cancelled: %r", scope.name, error)
        if isinstance(error, RequestError):
            self._used_session.raised(scope.key, code, error.message, error.data)
        else:
            self._used_session.raised(scope.key, code, f"{scope.name} failed")

    async def _watch_the_end(self, scope: Scope) -> None:
        """Name a handler that does not end although it was cancelled."""
        with anyio.move_on_after(LATE_SECONDS):
            await scope.ended.wait()
        if scope.ended.is_set():
            return
        log.warning(
            "%s goes on %g s after its cancellation; it swallows it, or cleans up slowly",
            scope.name,
            LATE_SECONDS,
        )

    # --- which function, and what it gets ---

    async def _result(self, scope: Scope, work: Work) -> Any:
        """Run what some work is for; for a request, the result to answer with."""
        envelope = work.envelope
        if work.role is exchange.Role.REQUEST:
            call = payloads.read_call(envelope.payload)
            if call.method in mcp.PLAIN_METHODS:
                return mcp.answer(self._registry, self._name, call)
            return await self._call_tool(scope, work, call)
        definitions = self._definitions(work)
        async with anyio.create_task_group() as tasks:
            for definition in definitions[1:]:
                tasks.start_soon(self._run_beside, scope, work, definition)
            await self._invoke(scope, work, definitions[0], {})
        return None

    async def _call_tool(self, scope: Scope, work: Work, call: payloads.Call) -> Any:
        handler = self._registry.tool(call.name)
        if handler is None:
            raise InvalidArguments(f"there is no tool {call.name!r} here")
        arguments = handler.tool.bind(call.params.get("arguments"))
        try:
            value = await self._invoke(scope, work, handler, arguments)
            return None if scope.cause is not None else handler.tool.result(value)
        except RequestError:
            raise
        except Exception as error:
            if scope.cause is None:
                log.exception("%s failed", scope.name)
            return handler.tool.error_result(error)

    async def _run_beside(self, scope: Scope, work: Work, definition: HandlerDefinition) -> None:
        """A further handler for the same notice: its failure is its own."""
        beside = Scope(scope.key, definition.signature.source.qualname)
        try:
            await self._invoke(beside, work, definition, {})
        except Exception:
            log.exception("%s failed", beside.name)

    async def _invoke(
        self, scope: Scope, work: Work, definition: HandlerDefinition, arguments: dict[str, Any]
    ) -> Any:
        signature = definition.signature
        injected = {
            parameter: self._injected(what, scope, work)
            for parameter, what in signature.injected.items()
        }
        return await scope.run(
            definition.fn,
            {**arguments, **injected},
            is_async=signature.is_async,
            threads=self._threads,
        )

    def _injected(self, what: str, scope: Scope, work: Work) -> Any:
        envelope = work.envelope
        match what:
            case "context":
                return Context(space=self._used_space, envelope=envelope, scope=scope, log=log)
            case "space":
                return self._used_space
            case "proposal":
                return Proposal(self._used_session, envelope)
            case "chat":
                return Chat(envelope)
            case "participant":
                return participant_of(envelope.payload_object.get("participant"))
            case "subject":
                return work.subject
            case _:
                return envelope

    def _definitions(self, work: Work) -> tuple[HandlerDefinition, ...]:
        if work.role is exchange.Role.PROPOSAL:
            call = payloads.read_call(work.envelope.payload)
            handler = self._registry.proposal_handler(call.method, call.name or None)
            assert handler is not None  # wants() said so
            return (handler,)
        if work.role is exchange.Role.KIND:
            return self._registry.for_kind(work.envelope.kind)
        return self._registry.handlers(_ROLES[work.role])

    def _name_of(self, work: Work) -> str:
        """The handler's name and the exchange's, for the log."""
        envelope = work.envelope
        if work.role is exchange.Role.REQUEST:
            call = payloads.read_call(envelope.payload)
            what = call.name if call.method == mcp.TOOL_CALL else call.method
            return f"{what[:64]!r} for {envelope.sender!r} ({envelope.id[:32]})"
        name = self._definitions(work)[0].signature.source.qualname
        return f"{name} for {envelope.sender!r} ({envelope.id[:32]})"

    @property
    def _used_session(self) -> Session:
        assert self._session is not None
        return self._session

    @property
    def _used_space(self) -> Space:
        assert self._space is not None
        return self._space


def _is_number(code: int | str) -> bool:
    return isinstance(code, int)
