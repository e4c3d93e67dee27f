"""Messages of MCP: as JSON, what is wrong with one, questions during a call, and streams."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, get_args

import anyio
import mcp_types as types
from anyio.abc import ObjectReceiveStream
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError

from meup_agent.errors import RequestError, printable

if TYPE_CHECKING:
    from contextvars import Context

    from meup_agent.protocol.wire.payloads import JsonObject

Item = SessionMessage | Exception

log = logging.getLogger("meup_agent.mcp")

MAX_PROBLEM_CHARS: Final = 2_000
"""Characters of what is wrong with a message."""


class RawResult(RootModel[dict[str, Any]]):
    """A result as it came: fields that the SDK does not know survive."""


def mcp_error(error: RequestError) -> MCPError:
    """A participant's error, for the other end of MCP; codes of some peers are texts."""
    code = error.code if isinstance(error.code, int) else types.INTERNAL_ERROR
    return MCPError(code, str(error.message), error.data)


def as_json(model: BaseModel) -> JsonObject:
    """A message, or a part of one, as JSON values."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def first_problem(error: ValidationError, *, skip: int = 0) -> str:
    """The first thing that is wrong with a message, in words, with the path to it.

    Args:
        error: What the validation says.
        skip: Parts of the path that are left out; negative: all but so many.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"][skip:]))
    return printable(f"{place}: {first['msg']}")[:MAX_PROBLEM_CHARS]


# --- log messages ---

_LEVELS: Final = get_args(types.LoggingLevel)  # from the least on


def read_log_message(
    participant: str, params: JsonObject
) -> types.LoggingMessageNotificationParams | None:
    """A participant's log message; ``None``: it is none of MCP."""
    try:
        return types.LoggingMessageNotificationParams.model_validate(params, by_name=False)
    except ValueError:
        log.info("%r sends a log message that is none of MCP", participant)
        return None


def is_wanted(said: types.LoggingMessageNotificationParams, least: types.LoggingLevel) -> bool:
    """True if a message has at least a level."""
    return _LEVELS.index(said.level) >= _LEVELS.index(least)


# --- questions ---
# Elicitation, sampling, and the client's roots.

ELICITATION: Final = "elicitation/create"
SAMPLING: Final = "sampling/createMessage"
ROOTS: Final = "roots/list"

CAPABILITIES: Final = {ELICITATION: "elicitation", SAMPLING: "sampling", ROOTS: "roots"}
"""Methods of questions → the capability that a client must have declared to be asked."""

ANSWERS: Final[dict[str, TypeAdapter[Any]]] = {
    ELICITATION: TypeAdapter(types.ElicitResult),
    SAMPLING: TypeAdapter(types.CreateMessageResult | types.CreateMessageResultWithTools),
    ROOTS: TypeAdapter(types.ListRootsResult),
}
"""Methods of questions → the form of their answers."""


class Question:
    """A question that a client answers by a later request.

    Attributes:
        answered: Set once :attr:`answer` is there.
    """

    def __init__(self, method: str, params: JsonObject) -> None:
        self.method = method
        self.params = params
        self.answered = anyio.Event()
        self.answer: JsonObject = {}

    def wire(self) -> JsonObject:
        """The entry of ``inputRequests``."""
        return {"method": self.method, "params": self.params}


def is_declared(capabilities: types.ClientCapabilities | None, method: object) -> bool:
    declared = CAPABILITIES.get(method) if isinstance(method, str) else None
    return declared is not None and getattr(capabilities, declared, None) is not None


# --- streams of messages ---
# They stand in the place of the SDK's.


class ForwardingReader(ObjectReceiveStream[Item]):
    """A stream of messages that passes on another one.

    Args:
        inner: The stream of the SDK's transport.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def last_context(self) -> Context | None:
        """The context in which the last message was sent, where the transport tells."""
        context: Context | None = getattr(self._inner, "last_context", None)
        return context

    async def receive(self) -> Item:
        """The next message."""
        item: Item = await self._inner.receive()
        return item

    async def aclose(self) -> None:
        """Close it."""
        await self._inner.aclose()
