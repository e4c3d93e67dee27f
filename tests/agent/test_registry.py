"""The registry: what an agent includes, and what cannot be registered."""

import functools
import types
from collections.abc import Awaitable
from typing import Any

import pytest

from meup_agent.agent.decorators import Decorators, HandlerDefinition, Registry, definitions_of
from meup_agent.errors import HandlerDefinitionError, UsageError
from tests.agent import future_hints, marked, marked_elsewhere
from tests.agent.stand_ins import Context, Proposal
from tests.tables import Role
from tests.wire import draft, kinds, payloads

free = Decorators()


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def own(registry: Registry) -> Decorators:
    return Decorators(registry.add)


def names(registry: Registry) -> list[str]:
    return [each.name for each in registry.tools()]


def find(registry: Registry, role: Role, name: str) -> tuple[HandlerDefinition, ...]:
    """The handlers for a call of this tool, as a request or as a proposal."""
    call = payloads.read_call(payloads.request("tools/call", {"name": name}, "1"))
    match = registry.find(role, draft(kinds.MCP_REQUEST, {}, id="1", sender="other"), call)
    return () if match is None else match.handlers


def tool(registry: Registry, name: str) -> HandlerDefinition | None:
    return next(iter(find(registry, Role.REQUEST, name)), None)


class Base:
    def __init__(self, root: str) -> None:
        self.root = root

    @property
    def broken(self) -> str:
        raise RuntimeError("read while looking for handlers")

    @free.on_proposal(tool="write_*")
    async def second(self, proposal: Proposal) -> None: ...

    @free.on_proposal
    async def first(self, proposal: Proposal) -> None: ...

    @free.tool
    async def read(self, path: str, ctx: Context) -> str:
        return f"{self.root}/{path}"

    @free.tool(name="overridden")
    async def overridden(self, path: str) -> str:
        return path

    @staticmethod
    @free.tool
    async def double(n: int) -> int:
        return n * 2

    @classmethod
    @free.tool
    async def class_name(cls, suffix: str) -> str:
        return cls.__name__ + suffix


class Files(Base):
    async def overridden(self, path: str) -> str:
        return "not a tool"

    @free.tool
    async def write(self, path: str) -> str:
        return path


def test_second_tool_of_a_name_fails(registry: Registry, own: Decorators) -> None:

    @own.tool
    async def say(text: str) -> str:
        return text

    with pytest.raises(HandlerDefinitionError) as caught:

        @own.tool(name="say")
        async def other(text: str) -> str:
            return text

    message = str(caught.value)
    assert "tool test_second_tool_of_a_name_fails.<locals>.other (" in message
    assert "a tool named 'say' exists already" in message
    assert f"test_second_tool_of_a_name_fails.<locals>.say ({__file__}:" in message
    assert [each.fn for each in find(registry, Role.REQUEST, "say")] == [say]


def test_method_without_its_instance_fails(own: Decorators) -> None:
    with pytest.raises(HandlerDefinitionError, match="include") as caught:

        class Broken:
            @own.tool
            async def read(self, path: str) -> str:
                return path

    assert "Broken.read" in str(caught.value)


def test_module_gives_what_it_defines_and_what_it_exports(registry: Registry) -> None:
    registry.include(marked)
    assert sorted(names(registry)) == ["bye", "exported", "greet"]
    greet = tool(registry, "greet")
    assert greet is not None
    assert greet.fn is marked.greet


def test_including_again_changes_nothing(registry: Registry, own: Decorators) -> None:
    @own.tool
    async def say(text: str) -> str:
        return text

    files = Files("/")
    for source in (say, marked, marked_elsewhere, marked, files, files):
        registry.include(source)
    assert len(names(registry)) == len(set(names(registry))) == 9


def result_of(awaitable: Awaitable[Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    with pytest.raises(StopIteration) as stopped:
        awaitable.__await__().__next__()
    return stopped.value.value


def test_methods_are_bound_when_included(registry: Registry) -> None:
    registry.include(Files("/root"))
    assert names(registry) == ["read", "double", "class_name", "write"]

    def call(name: str, **arguments: Any) -> Any:
        this = tool(registry, name)
        assert this is not None
        assert this.tool is not None
        given: dict[str, Any] = dict.fromkeys(this.signature.injected)
        return result_of(this.fn(**this.tool.bind(arguments), **given))

    assert call("read", path="a") == "/root/a"
    assert call("double", n=2) == 4
    assert call("class_name", suffix="!") == "Files!"


def test_methods_are_handlers_in_their_order_and_once(registry: Registry) -> None:
    registry.include(Files("/a"))
    (first,) = find(registry, Role.PROPOSAL, "write_a")
    assert first.fn.__name__ == "second"
    # One that overrides another has no mark of its own.
    assert tool(registry, "overridden") is None
    with pytest.raises(HandlerDefinitionError, match="a tool named 'read' exists already"):
        registry.include(Files("/b"))


def test_wrapper_around_a_marked_function_is_what_runs(registry: Registry) -> None:
    @free.tool
    async def inner(text: str) -> str:
        return text

    @functools.wraps(inner)
    async def guarded(text: str) -> str:
        return f"guarded {await inner(text)}"

    module = types.ModuleType(__name__)
    module.inner = guarded  # type: ignore[attr-defined]
    registry.include(module)
    this = tool(registry, "inner")
    assert this is not None
    assert this.fn is guarded


def test_partial_and_object_in_a_module_are_included(registry: Registry) -> None:
    class Greeter:
        async def __call__(self, name: str) -> str:
            return name

    async def write(root: str, path: str) -> str:
        return root + path

    module = types.ModuleType("elsewhere")
    module.write = free.tool(functools.partial(write, "/"))  # type: ignore[attr-defined]
    module.greet = free.tool(name="greet")(Greeter())  # type: ignore[attr-defined]
    registry.include(module)
    assert names(registry) == ["write", "greet"]


def test_values_of_a_module_are_not_touched(registry: Registry) -> None:
    class NotReady:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("not ready")

    module = types.ModuleType("elsewhere")
    module.proxy = NotReady()  # type: ignore[attr-defined]
    module.say = marked.greet  # type: ignore[attr-defined]
    module.__all__ = ["say"]  # type: ignore[attr-defined]
    registry.include(module)
    assert names(registry) == ["greet"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (Files, "a class cannot be included: Files; include an instance"),
        (future_hints, "no handler to include in module tests.agent"),
        (object(), "no handler to include in an object of type object"),
        (future_hints.at_module_level, "in an object of type function"),
    ],
)
def test_including_nothing_fails(registry: Registry, source: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        registry.include(source)


def test_marking_a_method_does_not_mark_the_instance() -> None:
    assert definitions_of(Files("/")) == ()
    assert definitions_of(Files("/").read) == definitions_of(Files.read) != ()
