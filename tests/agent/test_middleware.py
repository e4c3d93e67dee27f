"""Functions that can be a middleware, and the messages that pass them."""

import functools
from typing import Annotated, Any

import anyio
import pytest

from meup_agent import Agent, Space
from meup_agent.agent import agent, runner
from meup_agent.agent.middleware import messages_of
from meup_agent.errors import HandlerDefinitionError
from meup_agent.testing import MemorySpace
from meup_agent.types import CallNext, InboundMessage, OutboundMessage
from tests.patience import PATIENCE


async def inbound(message: InboundMessage, call_next: CallNext) -> Any: ...
async def outbound(message: "OutboundMessage", call_next: CallNext) -> Any: ...
async def both(message: InboundMessage | OutboundMessage, call_next: CallNext) -> Any: ...


class Layer:
    async def __call__(self, message: InboundMessage, call_next: CallNext) -> Any: ...
    async def method(self, message: OutboundMessage, call_next: CallNext, /) -> Any: ...


async def with_option(limit: int, message: InboundMessage, call_next: CallNext) -> Any: ...


@pytest.mark.parametrize(
    ("layer", "passing"),
    [
        (inbound, {InboundMessage}),
        (outbound, {OutboundMessage}),
        (both, {InboundMessage, OutboundMessage}),
        (Layer(), {InboundMessage}),
        (Layer().method, {OutboundMessage}),
        (functools.partial(with_option, 3), {InboundMessage}),
    ],
)
def test_annotation_tells_what_passes(layer: Any, passing: set[type]) -> None:
    assert messages_of(layer) == passing


async def no_annotation(message, call_next) -> Any: ...  # type: ignore[no-untyped-def]
async def alone(message: InboundMessage) -> Any: ...
async def by_name(*, message: InboundMessage, call_next: CallNext) -> Any: ...
async def other_type(message: Annotated[str, "text"], call_next: CallNext) -> Any: ...
async def unknown(message: "Nothing", call_next: CallNext) -> Any: ...  # type: ignore[name-defined]  # noqa: F821
def plain(message: InboundMessage, call_next: CallNext) -> Any: ...


async def generator(message: InboundMessage, call_next: CallNext) -> Any:
    yield await call_next(message)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (no_annotation, "'message' has no annotation; annotate it with the messages"),
        (alone, "takes a message and call_next, by position"),
        (by_name, "takes a message and call_next, by position"),
        (other_type, r"annotate it as InboundMessage, OutboundMessage or both"),
        (unknown, "'Nothing' cannot be resolved"),
        (plain, "is not an async function; declare it with async def"),
        (generator, "is a generator"),
        (Layer, "is a class"),
        (3, "cannot be called"),
    ],
)
def test_what_cannot_work_fails_when_added(layer: Any, said: str) -> None:
    with pytest.raises(HandlerDefinitionError, match=f"^middleware .*{said}"):
        Agent("tools", middleware=[layer])


def test_decorator_gives_the_function_back() -> None:
    assert Agent("tools").middleware(inbound) is inbound


async def test_nothing_is_in_the_way_without_middleware(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in_the_way(*_: object) -> None:
        raise AssertionError("a message passed the onion of an agent that has none")

    monkeypatch.setattr(runner, "pass_inbound", stand_in_the_way)
    monkeypatch.setattr(agent, "outbound_through", stand_in_the_way)
    tools = Agent("tools")
    given: list[Space] = []

    @tools.tool
    async def echo(text: str, space: Space) -> str:
        given.append(space)
        return text

    seats: dict[str, list[dict[str, Any]]] = {"tools": [], "caller": [{"kind": "mcp/request"}]}
    meeting = MemorySpace(participants=seats)
    with anyio.fail_after(PATIENCE):
        async with (
            tools.join(meeting.connector("tools")),
            Agent("caller").join(meeting.connector("caller")) as caller,
        ):
            assert await caller.call("tools", "echo", {"text": "hi"}) == "hi"
    assert [type(each) for each in (*given, caller)] == [Space, Space]
