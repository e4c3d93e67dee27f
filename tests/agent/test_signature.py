"""Functions that can be handlers, and the errors of those that cannot."""

import functools
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
import typing_extensions

from meup_agent.errors import HandlerDefinitionError
from tests.agent import future_hints
from tests.agent.stand_ins import Context, Envelope, Proposal, SpecialContext, read, reads

Ctx = typing_extensions.TypeAliasType("Ctx", Context)


def parameters_of(signature: Any) -> list[str]:
    return [] if signature.arguments is None else list(signature.arguments.parameters.values())


async def plain(path: str, ctx: Context, text: str = "") -> str:
    return path + text


async def no_parameters() -> None: ...
async def only_injected(ctx: Context, envelope: Envelope) -> None: ...
async def as_string(path: "str", ctx: "Context") -> None: ...
async def annotated(ctx: Annotated[Context, "the context"], n: Annotated[int, "n"]) -> None: ...
async def aliased(ctx: Ctx, n: int) -> None: ...
async def with_default(n: int, ctx: Context = None) -> None: ...  # type: ignore[assignment]
async def keyword_only(*, n: int, ctx: Context) -> None: ...
async def twice(one: Context, two: Context) -> None: ...


@pytest.mark.parametrize(
    ("fn", "injected", "arguments"),
    [
        (plain, reads(ctx=Context), ["path", "text"]),
        (no_parameters, {}, []),
        (only_injected, reads(ctx=Context, envelope=Envelope), []),
        (as_string, reads(ctx=Context), ["path"]),
        (annotated, reads(ctx=Context), ["n"]),
        (aliased, reads(ctx=Context), ["n"]),
        (with_default, reads(ctx=Context), ["n"]),
        (keyword_only, reads(ctx=Context), ["n"]),
        (twice, reads(one=Context, two=Context), []),
        (future_hints.at_module_level, reads(ctx=Context), ["path"]),
    ],
)
def test_parameters_are_told_apart(
    fn: Callable[..., Any], injected: dict[str, Any], arguments: list[str]
) -> None:
    signature = read(fn)
    assert signature.injected == injected
    assert parameters_of(signature) == arguments


def test_return_annotation_is_resolved() -> None:
    assert read(plain).returns is str
    assert read(future_hints.at_module_level).returns == list[str]
    assert read(no_parameters).returns is type(None)
    assert read(lambda: 1).returns is Any


def plain_sync(n: int) -> int:
    return n


class Callables:
    async def method(self, n: int, ctx: Context) -> None: ...
    def sync_method(self, n: int) -> None: ...

    @classmethod
    async def class_method(cls, n: int) -> None: ...

    @staticmethod
    async def static_method(n: int) -> None: ...


class AsyncCall:
    """Greets."""

    async def __call__(self, n: int, ctx: Context) -> None: ...


class SyncCall:
    def __call__(self, n: int) -> None: ...


def through(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await fn(*args, **kwargs)

    return wrapper


class ThroughObject:
    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


@pytest.mark.parametrize(
    ("fn", "is_async"),
    [
        pytest.param(plain, True, id="async"),
        pytest.param(plain_sync, False, id="sync"),
        pytest.param(functools.partial(plain, "a.txt"), True, id="partial-async"),
        pytest.param(functools.partial(plain_sync), False, id="partial-sync"),
        pytest.param(functools.partial(Callables().method), True, id="partial-of-method"),
        pytest.param(functools.partial(AsyncCall()), True, id="partial-of-object"),
        pytest.param(Callables().method, True, id="method"),
        pytest.param(Callables().sync_method, False, id="sync-method"),
        pytest.param(Callables.class_method, True, id="classmethod"),
        pytest.param(Callables.static_method, True, id="staticmethod"),
        pytest.param(AsyncCall(), True, id="object"),
        pytest.param(AsyncCall().__call__, True, id="method-of-object"),
        pytest.param(SyncCall(), False, id="sync-object"),
        pytest.param(through(plain), True, id="wrapped"),
        pytest.param(ThroughObject(plain), True, id="wrapped-by-object"),
        pytest.param(functools.lru_cache(plain_sync), False, id="lru-cache"),
    ],
)
def test_async_is_seen(fn: Callable[..., Any], is_async: bool) -> None:
    assert read(fn).is_async is is_async


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (functools.partial(plain, "a.txt"), ["text"]),
        (functools.partial(plain, path="a.txt"), ["text"]),
        (functools.partial(functools.partial(plain, path="a.txt"), text="x"), []),
        (functools.partial(through(functools.partial(plain, text="x"))), ["path"]),
    ],
)
def test_what_a_partial_fixes_is_no_argument(fn: Callable[..., Any], arguments: list[str]) -> None:
    signature = read(fn)
    assert parameters_of(signature) == arguments
    assert signature.injected == reads(ctx=Context)
    # Nor does its keyword become an argument that a stranger could set otherwise.
    described = signature.arguments.schema["properties"] if signature.arguments else {}
    assert list(described) == arguments


def test_wrapper_is_read_through_in_the_module_of_what_it_wraps() -> None:
    assert read(through(future_hints.at_module_level)).injected == reads(ctx=Context)


async def optional(ctx: Context | None) -> None: ...
async def optional_the_old_way(ctx: typing.Optional[Context]) -> None: ...  # noqa: UP045
async def many(contexts: list[Context]) -> None: ...
async def subclass(ctx: SpecialContext) -> None: ...
async def of_another_role(proposal: Proposal) -> None: ...
async def optional_of_another_role(proposal: Proposal | None = None) -> None: ...
async def star(*paths: str) -> None: ...
async def double_star(**options: str) -> None: ...
async def positional_only(path: str, /) -> None: ...
async def positional_only_injected(ctx: Context, /) -> None: ...
async def unannotated(path, ctx: Context) -> None: ...  # type: ignore[no-untyped-def]
async def no_such_name(path: "NoSuchName") -> None: ...  # type: ignore[name-defined] # noqa: F821
async def syntax_error(path: "str |") -> None: ...  # type: ignore[valid-type] # noqa: F722
async def unresolvable_return() -> "NoSuchName": ...  # type: ignore[name-defined] # noqa: F821
async def not_json(callback: Callable[[], None]) -> None: ...
async def arbitrary(path: str, thing: SyncCall) -> None: ...


async def generator(n: int) -> AsyncIterator[int]:
    yield n


def sync_generator(n: int) -> Iterator[int]:
    yield n


class GeneratorCall:
    async def __call__(self, n: int) -> AsyncIterator[int]:
        yield n


TOOLS_THAT_FAIL = [
    (optional, ["'ctx' is meup_agent.agent.context.Context | None", "annotate it as Context"]),
    (optional_the_old_way, ["'ctx'", "annotate it as Context"]),
    (many, ["'contexts' is list[", "annotate it as Context"]),
    (subclass, ["'ctx' is SpecialContext", "annotate it as Context"]),
    (of_another_role, ["'proposal' is Proposal", "handler can have: Context, Space, Envelope"]),
    (optional_of_another_role, ["'proposal' is", "have"]),
    (star, ["'*paths'", "name each parameter"]),
    (double_star, ["'**options'", "name each parameter"]),
    (positional_only, ["'path' is positional-only", "'/'"]),
    (positional_only_injected, ["'ctx' is positional-only"]),
    (unannotated, ["'path' has no annotation", "the argument's type", "Context, Space, Envelope"]),
    (no_such_name, ["'path'", "'NoSuchName' cannot be resolved", "is not defined", "at module"]),
    (syntax_error, ["'path'", "'str |' cannot be resolved"]),
    (unresolvable_return, ["its return annotation 'NoSuchName' cannot be resolved"]),
    (future_hints.in_a_local_scope(), ["'item'", "'Local' cannot be resolved", "at module level"]),
    (not_json, ["'callback' is", "cannot be an argument", "reads from JSON"]),
    (arbitrary, ["'thing' is SyncCall", "cannot be an argument", "reads from JSON"]),
    (generator, ["it is a generator", "return the value"]),
    (sync_generator, ["it is a generator"]),
    (functools.partial(generator, 1), ["it is a generator"]),
    (GeneratorCall(), ["it is a generator"]),
]


@pytest.mark.parametrize(("fn", "said"), TOOLS_THAT_FAIL)
def test_tool_that_cannot_work_fails(fn: Callable[..., Any], said: list[str]) -> None:
    with pytest.raises(HandlerDefinitionError) as caught:
        read(fn)
    message = str(caught.value)
    assert "\n" not in message
    for part in said:
        assert part in message
    code = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
    if not inspect.isfunction(code):
        code = type(code).__call__
    assert message.startswith(
        f"tool {code.__qualname__} ({code.__code__.co_filename}:{code.__code__.co_firstlineno}): "
    )


INJECTED, TO_INJECT = "Context, Space, Envelope, Proposal", "what is to be injected"


async def wants_more(proposal: Proposal, verbose: bool) -> None: ...
async def wants_more_by_default(proposal: Proposal, verbose: bool = False) -> None: ...


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (wants_more, ["'verbose' is bool, which cannot be injected", f"can have: {INJECTED}"]),
        (wants_more_by_default, ["'verbose' is bool"]),
        (unannotated, [f"'path' has no annotation; annotate it with {TO_INJECT}: {INJECTED}"]),
        (no_such_name, ["'NoSuchName' cannot be resolved"]),
        (star, ["'*paths'"]),
        (generator, ["it is a generator"]),
    ],
)
def test_other_handler_that_cannot_work_fails(fn: Callable[..., Any], said: list[str]) -> None:
    with pytest.raises(HandlerDefinitionError) as caught:
        read(fn, tool=False)
    message = str(caught.value)
    assert message.startswith(f"on_proposal {fn.__qualname__} ({__file__}:")
    for part in said:
        assert part in message


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (Callables, "it is a class"),
        (5, "it cannot be called"),
        (staticmethod(plain), "@staticmethod"),
        (vars(Callables)["class_method"], "@classmethod"),
        (len, "'obj' is positional-only"),
        (dict.fromkeys, "parameter"),
        (min, "its parameters cannot be read"),
    ],
)
def test_what_is_no_function_fails(fn: Any, said: str) -> None:
    with pytest.raises(HandlerDefinitionError, match=said):
        read(fn)
