"""Decorators give the function back unchanged, with a record of what it is."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_overloads

import pytest

from meup_agent import Chat
from meup_agent.agent.decorators import Decorators, HandlerDefinition, HandlerRow, definitions_of
from meup_agent.agent.tool import ToolOptions
from meup_agent.errors import HandlerDefinitionError
from tests.agent.stand_ins import Context, Proposal, reads
from tests.tables import Role

free = Decorators()


async def echo(text: str, ctx: Context) -> str:
    return text


async def observe(ctx: Context) -> None: ...


PLAIN = [name for name, row in vars(Decorators).items() if isinstance(row, HandlerRow)]


def fresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy that no other test has marked."""

    @functools.wraps(fn)
    async def copy(*args: Any, **kwargs: Any) -> Any:
        return await fn(*args, **kwargs)

    return copy


def test_function_is_returned_unchanged() -> None:
    fn = fresh(echo)
    signature, name = inspect.signature(fn), fn.__name__
    assert free.tool(fn) is fn
    assert free.tool(name="other")(fn) is fn
    assert (inspect.signature(fn), fn.__name__) == (signature, name)


def test_a_tool_takes_the_options_that_its_signature_declares() -> None:
    _, with_options = get_overloads(Decorators.tool)
    declared = inspect.signature(with_options).parameters.keys() - {"self"}
    assert declared == {*ToolOptions.__struct_fields__}
    with pytest.raises(TypeError, match=r"@tool has no option 'nome'; it has .*name, title"):
        free.tool(nome="say")  # type: ignore[call-overload]


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("with_parentheses", [False, True])
def test_plain_decorators(name: str, with_parentheses: bool) -> None:
    fn = fresh(observe)
    decorator = getattr(free, name)
    assert (decorator() if with_parentheses else decorator)(fn) is fn
    (definition,) = definitions_of(fn)
    assert (definition.role, definition.fn) == (Role(name.removeprefix("on_")), fn)
    assert definition.signature.injected == reads(ctx=Context)


def test_on_proposal_without_parentheses_takes_every_tool() -> None:
    @free.on_proposal
    async def fn(proposal: Proposal) -> None: ...

    (definition,) = definitions_of(fn)
    assert definition.signature.injected == reads(proposal=Proposal)
    assert definition.matches_call("tools/call", "anything")
    assert definition.matches_call("tools/call", None)
    assert not definition.matches_call("resources/read", None)


@pytest.mark.parametrize(
    ("method", "name", "matching", "other"),
    [
        ("tools/call", "write_*", ("tools/call", "write_a"), ("tools/call", "read_a")),
        ("tools/call", "write_*", ("tools/call", "write_"), ("tools/call", None)),
        ("tools/call", "a", ("tools/call", "a"), ("tools/call", "ab")),
        ("tools/call", ["a", "b*"], ("tools/call", "bc"), ("tools/call", "c")),
        ("tools/*", None, ("tools/list", None), ("resources/list", None)),
        (["a/b", "c/d"], None, ("c/d", "x"), ("tools/call", "x")),
    ],
)
def test_on_proposal_matches_by_pattern(
    method: Any, name: Any, matching: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    @free.on_proposal(method=method, tool=name)
    async def fn(proposal: Proposal) -> None: ...

    (definition,) = definitions_of(fn)
    assert definition.matches_call(*matching)
    assert not definition.matches_call(*other)


@pytest.mark.parametrize(
    ("patterns", "matching", "other"),
    [
        (["mcp/reject"], ["mcp/reject"], ["mcp/withdraw", "mcp.reject"]),
        (["mcp.reject"], ["mcp/reject"], ["mcp/withdraw"]),
        (["mcp/*"], ["mcp/reject", "mcp/request"], ["chat"]),
        (["mcp.*"], ["mcp/reject", "mcp/request"], ["chat", "acme/x"]),
        (["acme.event"], ["acme.event"], ["acme/event"]),
        (["acme/event"], ["acme/event"], ["acme.event"]),
        (["chat", "acme/*"], ["chat", "acme/x"], ["mcp/reject"]),
        (["*"], ["chat", "mcp/reject", "a/b/c"], []),
    ],
)
def test_on_matches_kinds(patterns: list[str], matching: list[str], other: list[str]) -> None:
    @free.on(*patterns)
    async def fn(ctx: Context) -> None: ...

    (definition,) = definitions_of(fn)
    assert [kind for kind in [*matching, *other] if definition.matches_kind(kind)] == matching


def test_function_may_have_several_roles() -> None:
    fn = fresh(observe)
    free.on_join(free.on_leave(free.on("chat")(fn)))
    assert [each.role for each in definitions_of(fn)] == [Role.KIND, Role.LEAVE, Role.JOIN]


async def answer(chat: Chat) -> None: ...


@pytest.mark.parametrize(
    ("decorate", "said"),
    [
        (lambda: free.on_control(observe), r"on_control\(…\) takes one of 'pause', "),  # type: ignore[arg-type]
        (lambda: free.on_control("rest")(observe), "not 'rest'"),  # type: ignore[arg-type]
        (lambda: free.on()(observe), r'on\(…\) takes patterns .* @on\("kind"\)'),
        (lambda: free.on(observe), "takes patterns"),  # type: ignore[arg-type]
        (lambda: free.on("")(observe), r"on observe \(.*kind='' matches nothing"),
        (lambda: free.on_proposal(tool=[])(observe), r"on_proposal observe .*tool=\(\) matches"),
        (lambda: free.on_proposal(method="/(/")(observe), r"'/\(/' is not a pattern: "),
        (lambda: free.on("/(/")(observe), r"kind='/\(/' is not a pattern: "),
        (
            lambda: free.on_proposal("build"),  # type: ignore[call-overload]
            r"^on_proposal\('build'\) does not say what 'build' is; "
            r"write on_proposal\(tool='build'\) or on_proposal\(method='build'\)$",
        ),
        (lambda: free.tool("say"), r"; write tool\(name='say'\)$"),  # type: ignore[call-overload]
        (lambda: free.on_reject(echo), "on_reject echo .*'text' is str"),
        (lambda: free.on_proposal(echo), "on_proposal echo .*'text' is str"),
        (lambda: free.on("chat")(echo), "on echo .*'text' is str"),
        (lambda: free.on_chat(echo), "on_chat echo .*can have: Context, Space, Envelope, Chat"),
        (lambda: free.tool(answer), "'chat' is Chat, which handlers of this role have not"),
    ],
)
def test_what_cannot_work_fails_when_decorated(decorate: Callable[[], Any], said: str) -> None:
    with pytest.raises(HandlerDefinitionError, match=said):
        decorate()
    assert definitions_of(echo) == definitions_of(observe) == ()


class Methods:
    async def say(self, text: str) -> str:
        return text


def test_bound_method_can_be_registered_but_not_marked() -> None:
    registered: list[HandlerDefinition] = []
    method = Methods().say
    assert Decorators(registered.append).tool(method) == method
    assert registered[0].fn == method
    assert definitions_of(method) == ()
    with pytest.raises(HandlerDefinitionError, match=r"tool Methods\.say .*of an agent"):
        free.tool(method)
