"""Messages as handlers, callers and middleware see them: progress, chats, requests, parameters."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import anyio
import msgspec

from meup_agent.client.running_handler import handler_is
from meup_agent.errors import RequestError, UsageError, printable
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.payloads import INVALID_PARAMS, PROPOSER, read_call, without_meta
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterable
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskStatus

    from meup_agent.protocol.exchange import Progressed
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.payloads import Call, JsonObject


# --- as handlers and callers see them ---

log = logging.getLogger("meup_agent.client")


class Progress(msgspec.Struct, frozen=True):
    """Progress of a request.

    Attributes:
        done: How much is done; it grows.
        total: How much there is to do, where that is known.
        message: The step at hand, for a person.
    """

    done: float
    total: float | None = None
    message: str = ""


OnProgress = Callable[[Progress], None]
"""Called with each progress, by the reader of the connection: it must return at once, and
what it raises is only logged."""


def relay(on_progress: OnProgress) -> Callable[[Progressed], None]:
    """The session's callback for the caller's."""

    def report(told: Progressed) -> None:
        try:
            on_progress(Progress(told.done, told.total, told.message))
        except Exception:
            log.exception("on_progress failed")

    return report


class Chat:
    """A chat message.

    Attributes:
        id: Its id.
        sender: The participant that sent it.
        text: Its text. It is a stranger's: escape it where a person reads it.
        about: The id of the envelope that it refers to, for example a reject that it explains.
        envelope: The message as it came.
    """

    def __init__(self, envelope: Envelope) -> None:
        payload = envelope.payload_object
        text = payload.get("message", payload.get("text", ""))
        self.id = envelope.id
        self.sender = envelope.sender
        self.text = text if isinstance(text, str) else ""
        self.about = envelope.correlation[0] if envelope.correlation else None
        self.envelope = envelope

    def __repr__(self) -> str:
        """The sender, and the beginning of the text."""
        return f"<Chat of {self.sender!r}: {self.text[:60]!r}>"


class Request:
    """An MCP request of another participant.

    Attributes:
        id: The id of its envelope.
        sender: The participant that sent it.
        method: The MCP method.
        params: The method's parameters, ``_meta`` included; a copy of its own.
        proposal: The id of the proposal that it carries out; ``None`` if it carries out none.
        proposer: The participant whose proposal that is, as its sender says (PROTOCOL 4.4).
        envelope: The request as it came.
    """

    def __init__(self, envelope: Envelope, call: Call) -> None:
        proposer = call.meta.get(PROPOSER)
        self.id = envelope.id
        self.sender = envelope.sender
        self.method = call.method
        self.params: dict[str, Any] = copy.deepcopy(call.params)
        self.proposer = proposer if isinstance(proposer, str) and envelope.correlation else None
        self.proposal = envelope.correlation[0] if self.proposer is not None else None
        self.envelope = envelope

    def __repr__(self) -> str:
        """The sender and the method."""
        return f"<Request of {self.sender!r}: {self.method[:60]!r}>"


def is_own_request(envelope: Envelope) -> bool:
    """True if its sender made a request of its own accord: it carries out no proposal.

    A fulfiller sends its proposer's arguments under its own name.
    """
    return not envelope.correlation and PROPOSER not in read_call(envelope.payload).meta


# --- method params ---
# Parameters of the methods of our own, as records: written, and read strictly.

Params = TypeVar("Params", bound=msgspec.Struct)


def write_params(params: msgspec.Struct) -> dict[str, Any]:
    """Parameters as JSON values."""
    written: dict[str, Any] = msgspec.to_builtins(params)
    return written


def read_params(request: Request, form: type[Params]) -> Params:
    """The parameters of a request.

    Raises:
        RequestError: They are not of that form.
    """
    try:
        return msgspec.convert(without_meta(request.params), form)
    except msgspec.ValidationError as error:
        said = f"{request.method} cannot be answered: {printable(str(error))}; correct its params"
        raise RequestError(INVALID_PARAMS, said) from None


# --- outbound middleware ---
# Every verb that sends passes the agent's layers, where it has any.
#
# In comes the call of a verb: `outbound` marks each that passes, and names the fields of the
# message that its parameters are. Out goes the same call, with what the layers have changed. Layers
# may refuse it (by raising), change and time it; a changed call is checked, and becomes a request
# or a proposal, as the call that it now is. Where there is no middleware, a verb runs as if it were
# not marked. The messages themselves, and the onion, are `middleware`.

P = ParamSpec("P")
T = TypeVar("T")

SendMessage = Callable[[Any], Awaitable[Any]]
"""Sends a message that passed; it reads the fields of it."""

Outbound = Callable[[str, dict[str, Any], SendMessage], Awaitable[Any]]
"""Passes a verb's message, by its fields, through the middleware to what sends it."""


def names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Several names, or the only one."""
    return (given,) if isinstance(given, str) else tuple(given)


def _copy_object(given: JsonObject | None) -> JsonObject:
    return copy.deepcopy(given or {})


# Copies: a layer that writes into them must not write into what its caller holds.
_SHOWN: Final[dict[str, Callable[[Any], Any]]] = {
    "to": names,
    "correlation": names,
    "kind": kinds.canonical,
    "reason": str,
    "arguments": _copy_object,
    "payload": copy.deepcopy,
}


def shown(**fields: Any) -> dict[str, Any]:
    """The fields of a message as layers see them."""
    return {name: _SHOWN.get(name, lambda as_is: as_is)(each) for name, each in fields.items()}


def outbound(
    verb: str,
    *,
    about: Callable[[Any], dict[str, Any]] = lambda _: {},
    complete: Callable[[Any, dict[str, Any]], Awaitable[None]] | None = None,
    must_pass: bool = False,
    **parameters: str,
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Pass a verb of a space or proposal through the middleware.

    Args:
        verb: Its name for layers.
        about: Fields of the message that none of its parameters has.
        complete: Fills in arguments that the layers are to see, where the caller left them out.
        must_pass: Its result is what it returned itself, and never the word of a layer.
        parameters: Each field of the message that may be changed, and its parameter.
    """

    def mark(send: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        signature = inspect.signature(send)

        async def pass_on(through: Outbound, *args: P.args, **kwargs: P.kwargs) -> T:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            if complete is not None:
                await complete(args[0], given.arguments)
            fields = {name: given.arguments[each] for name, each in parameters.items()}

            async def send_changed(message: Any) -> T:
                for name, each in parameters.items():
                    given.arguments[each] = getattr(message, name)
                return await send(*given.args, **given.kwargs)

            said = shown(**fields) | about(args[0])
            if must_pass:
                return await pass_whole(through, verb, said, send_changed)
            result: T = await through(verb, said, send_changed)
            return result

        @functools.wraps(send)
        def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
            sender: Any = args[0]
            through: Outbound | None = sender._outbound
            if through is None:
                return send(*args, **kwargs)
            return pass_on(through, *args, **kwargs)

        return call

    return mark


async def pass_whole(
    through: Outbound, verb: str, fields: dict[str, Any], send: Callable[[Any], Awaitable[T]]
) -> T:
    """Pass a message whose result no layer can stand in for."""
    results: list[T] = []

    async def note(message: Any) -> T:
        results.append(await send(message))
        return results[-1]

    await through(verb, fields, note)
    if not results:
        raise _not_passed(verb)
    # The last one: a layer may send again what failed.
    return results[-1]


def _not_passed(verb: str) -> UsageError:
    return UsageError(
        f"a middleware returned without call_next, so there was no {verb}; "
        "raise an exception to refuse it"
    )


# --- proposals --------------------------------------------------------------------------------


@asynccontextmanager
async def proposing(
    through: Outbound,
    fields: dict[str, Any],
    propose: Callable[[Any], AbstractAsyncContextManager[T]],
) -> AsyncGenerator[T]:
    """Propose within the layers, which run beside the block and are told of its outcome.

    Beside it, since the block goes on while a layer waits in ``call_next``, and the outcome may
    come long before the block is left. In a group of the block's own, so that a layer ends with it.
    """
    made: Any = None  # the proposal
    raised: Exception | None = None
    failure: Exception | None = None
    begun = False
    opened, ended = anyio.Event(), anyio.Event()

    async def pass_layers(*, task_status: TaskStatus[Any]) -> None:
        """Pass the layers; the message that passed is the status of the task."""
        nonlocal failure

        async def send(message: Any) -> Any:
            nonlocal begun, raised
            if begun:
                raise UsageError("call_next makes a proposal once; it was called again")
            begun = True
            task_status.started(message)
            await opened.wait()
            if made is None:
                assert raised is not None
                raise raised
            try:
                # The layers wait beside the handler: it keeps its place, since it may be at work.
                with handler_is(None):
                    return await made.outcome()
            except Exception as error:
                raised = error
                raise

        try:
            await through("propose", fields, send)
            if not begun:
                raise _not_passed("propose")
        except Exception as error:
            if not begun:
                raise
            if error is not raised:  # which the block raises where it is asked for
                logging.getLogger("meup_agent.agent").error(
                    "a middleware failed after the proposal was made", exc_info=error
                )
                failure = error
        finally:
            ended.set()

    async with background_tasks() as tasks:
        given: Any = await tasks.start(pass_layers, name="meup middleware")
        try:
            async with propose(given) as made:
                opened.set()
                yield made
        except Exception as error:
            if made is None:
                raised = error
                opened.set()
            # The outcome is known by now: the layers see it, and end. A cancellation, which is not
            # caught here, ends them as it ends the block.
            await ended.wait()
            raise
        await ended.wait()
        if failure is not None:
            raise failure
