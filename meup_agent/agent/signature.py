"""Signatures of handlers and tools: the function behind each, its parameters, its JSON Schema.

Read once, when the function is decorated, so that a function that cannot work fails where it is
written.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FunctionType, MappingProxyType, MethodType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    cast,
    get_args,
    get_origin,
)

import msgspec
import pydantic  # it loads a name when it is first used: half of it only for tools
import typing_extensions

from meup_agent.errors import HandlerDefinitionError, InvalidArguments

if TYPE_CHECKING:
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

# --- sources ---
# The function behind a callable, whose names and lines count, and words about it.
#
# Text of senders and exceptions is made short and printable before it goes into a message.

Handler = Callable[..., Any]
"""A function, bound method, ``functools.partial`` or object with ``__call__``."""


class Source(msgspec.Struct, frozen=True):
    """The origin of a handler, for messages.

    A lambda, and an object that is called, have no name of their own. Where there is no Python code
    the location is empty. Names that a ``functools.partial`` has ``fixed`` no caller may give.
    """

    role: str
    name: str | None
    qualname: str
    location: str
    doc: str
    is_async: bool
    in_class_body: bool
    names: Mapping[str, Any]
    fixed: frozenset[str]

    def error(self, problem: str) -> HandlerDefinitionError:
        """The exception that says what is wrong with this function, and where it stands."""
        where = f" ({self.location})" if self.location else ""
        return HandlerDefinitionError(f"{self.role} {self.qualname}{where}: {problem}")


def read_source(fn: object, role: str) -> Source:
    """Look behind partials, bound methods, wrappers and callable objects.

    Classes, generators, and ``staticmethod`` and ``classmethod`` objects cannot be called as
    handlers.
    """
    called = _called(fn)
    code = _innermost(fn)
    direct = isinstance(_without_partials(fn), FunctionType)
    own = getattr(code, "__name__", None) if code is not None else None
    if not isinstance(own, str) or own in ("<lambda>", "__call__"):
        own = None
    qualname = getattr(code, "__qualname__", None) or type(fn).__qualname__
    parent, written = qualname.rpartition(".")[0], getattr(code, "__code__", None)
    source = Source(
        role=role,
        name=own,
        qualname=qualname,
        location=f"{written.co_filename}:{written.co_firstlineno}" if written else "",
        doc=_first_paragraph(code, fn),
        is_async=inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(called),
        in_class_body=direct and bool(parent) and not parent.endswith("<locals>"),
        names=getattr(code, "__globals__", {}),
        fixed=_fixed(fn),
    )
    if isinstance(fn, staticmethod | classmethod):
        kind = "staticmethod" if isinstance(fn, staticmethod) else "classmethod"
        raise source.error(f"the decorator stands above @{kind}; write @{kind} first, on top")
    if isinstance(fn, type):
        raise source.error("it is a class; decorate a function, a method or an instance")
    if not callable(fn):
        raise source.error("it cannot be called; decorate a function")
    if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        raise source.error(
            "it is a generator and would give no answer; return the value instead of yielding it"
        )
    return source


def _without_partials(fn: object) -> object:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def _called(fn: object) -> object:
    """The function that a call of ``fn`` enters first."""
    fn = _without_partials(fn)
    if isinstance(fn, MethodType):
        return _called(fn.__func__)
    if not isinstance(fn, FunctionType | type):
        call = inspect.getattr_static(type(fn), "__call__", None)
        if isinstance(call, FunctionType):
            return call
    return fn


def _innermost(fn: object) -> object:
    """The function that decorators with ``functools.wraps`` were put around."""
    fn = _without_partials(fn)
    wrapped = getattr(fn, "__wrapped__", None)
    if wrapped is not None:
        return _innermost(wrapped)
    called = _called(fn)
    return called if called is fn else _innermost(called)


def _fixed(fn: object) -> frozenset[str]:
    if isinstance(fn, functools.partial):
        return _fixed(fn.func) | fn.keywords.keys()
    wrapped = getattr(fn, "__wrapped__", None)
    return frozenset() if wrapped is None else _fixed(wrapped)


def _first_paragraph(code: object, fn: object) -> str:
    doc = getattr(code, "__doc__", None)
    if not doc and getattr(code, "__name__", "") == "__call__":
        doc = type(_without_partials(fn)).__doc__
    if not isinstance(doc, str):
        return ""
    return " ".join(inspect.cleandoc(doc).partition("\n\n")[0].split())


def clip(text: str, limit: int) -> str:
    """At most ``limit`` characters of a text; lone surrogates, which UTF-8 has not, are escaped."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()


def first_line(error: BaseException) -> str:
    """The message of an exception, as part of a sentence; its type if it has none.

    Libraries add links and dumps below the first line. Of a validation it is the first problem,
    without the value, which may be huge or secret.
    """
    if isinstance(error, pydantic.ValidationError):
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = format_path(problem["loc"])
        return f"{where}: {problem['msg']}" if where else problem["msg"]
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__


def format_path(location: tuple[int | str, ...]) -> str:
    """The place of a problem in a value, as ``items[2].name``."""
    said = ""
    for step in location:
        said += f"[{step}]" if isinstance(step, int) else f".{step}" if said else step
    return said


def type_name(hint: object) -> str:
    """An annotation as its author would write it: ``int | None``, ``list[Item]``, ``Context``."""
    if isinstance(hint, str):
        return hint
    if isinstance(hint, type) and get_origin(hint) is None:
        return hint.__qualname__
    return str(hint).replace("typing.", "")


# --- schema ---
# JSON Schema as tools announce it, from the types that pydantic reads.

JsonObject = dict[str, Any]

_DEFINITION = "#/$defs/"


@functools.cache
def _tool_schema() -> type[GenerateJsonSchema]:
    from pydantic.json_schema import GenerateJsonSchema

    class ToolSchema(GenerateJsonSchema):
        """Leaves out titles that only repeat a field's name: a model reads every word of a list."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
            # A default that JSON cannot show still works: the function gets it.
            if kind != "non-serializable-default":
                raise ValueError(detail)

    return ToolSchema


def json_schema(
    of: type[pydantic.BaseModel] | pydantic.TypeAdapter[Any],
    *,
    mode: Literal["validation", "serialization"],
) -> JsonObject:
    """The schema of a model or type, with a root that says what it is instead of a reference."""
    if isinstance(of, pydantic.TypeAdapter):
        schema = of.json_schema(mode=mode, schema_generator=_tool_schema())
    else:
        schema = of.model_json_schema(mode=mode, schema_generator=_tool_schema())
        schema.pop("title", None)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(_DEFINITION):
        # A type that contains itself: its references stay, MCP wants "type" at the root.
        definition = schema["$defs"][reference.removeprefix(_DEFINITION)]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**definition, **rest}
    return schema


def wrap_schema(schema: JsonObject) -> JsonObject:
    """An object schema with the given one as its only member, ``result``."""
    inner = dict(schema)
    outer: JsonObject = {"type": "object", "properties": {"result": inner}, "required": ["result"]}
    definitions = cast("JsonObject | None", inner.pop("$defs", None))
    if definitions:
        outer["$defs"] = definitions
    return outer


_NEEDED = sys.version_info < (3, 12)


def pydantic_hint(hint: Any) -> Any:
    """The annotation with each ``typing.TypedDict`` in it replaced by one that pydantic takes.

    Those inside the fields of models and dataclasses are not reached; pydantic says so.
    """
    return _pydantic_hint(hint, ()) if _NEEDED else hint


def _pydantic_hint(hint: Any, inside: tuple[Any, ...]) -> Any:
    if typing_extensions.is_typeddict(hint) and type(hint).__module__ == "typing":
        return _rebuilt(hint, inside)
    arguments = get_args(hint)
    replaced = tuple(_pydantic_hint(argument, inside) for argument in arguments)
    if all(new is old for new, old in zip(replaced, arguments, strict=True)):
        return hint
    origin = get_origin(hint)
    if origin is Annotated:
        return Annotated[(replaced[0], *hint.__metadata__)]
    if origin is types.UnionType:
        return Union[replaced]  # noqa: UP007 - there is no other spelling for a tuple of types
    return origin[replaced] if isinstance(hint, types.GenericAlias) else hint.copy_with(replaced)


def _rebuilt(typed_dict: Any, inside: tuple[Any, ...]) -> Any:
    name = typed_dict.__name__
    if typed_dict in inside:
        raise TypeError(f"{name} contains itself; use typing_extensions.TypedDict for it")
    hints = typing_extensions.get_type_hints(typed_dict, include_extras=True)
    fields: dict[str, Any] = {}
    for key, hint in hints.items():
        origin: Any = get_origin(hint)
        if origin is Required or origin is NotRequired:
            (hint,) = get_args(hint)
        presence: Any = Required if key in typed_dict.__required_keys__ else NotRequired
        fields[key] = presence[_pydantic_hint(hint, (*inside, typed_dict))]
    functional: Any = typing_extensions.TypedDict
    rebuilt = functional(name, fields)
    rebuilt.__doc__ = typed_dict.__doc__
    rebuilt.__module__ = typed_dict.__module__
    return rebuilt


# --- a tool's arguments ---
# One pydantic model, its JSON Schema, and the words for wrong ones.

MAX_PROBLEMS = 8
"""Problems that an error tells of; the sender of a thousand wrong arguments needs no full list."""
MAX_PROBLEM_CHARS = 200
"""Length of one problem: a validator may quote the value, and the value may be huge."""
MAX_NAME_CHARS = 80
"""Length of an argument's name in a message: unknown names come from the sender."""

_ANNOTATED: Any = Annotated  # type checkers take it only with types written out
_NOT_GIVEN = inspect.Parameter.empty
_FIELD_PREFIX = "arg_"
"""Fields are named apart from parameters: pydantic keeps ``schema``, ``copy``, ``model_…`` and
leading underscores for itself. The parameter's own name is the field's alias."""


class ToolArguments(msgspec.Struct, frozen=True):
    """The arguments of one tool: their model, the parameter of each field, and its schema."""

    model: type[pydantic.BaseModel]
    parameters: Mapping[str, str]
    schema: JsonObject

    def bind(self, tool: str, arguments: object) -> dict[str, Any]:
        """Validated keyword arguments, defaults included.

        Values are converted as pydantic does by default: ``"5"`` is taken for an ``int``,
        ``"five"`` is not.
        """
        none: dict[str, Any] = {}
        given = none if arguments is None else arguments
        if not isinstance(given, Mapping):
            raise InvalidArguments(
                f"tool {tool!r} takes its arguments as an object, not as "
                f'{_json_type(given)}; send {{"name": value}}'
            )
        try:
            model = self.model.__pydantic_validator__.validate_python(
                dict(cast("Mapping[str, Any]", given))
            )
        except pydantic.ValidationError as error:
            raise self._invalid(tool, error) from None
        return {name: getattr(model, field) for field, name in self.parameters.items()}

    def _invalid(self, tool: str, error: pydantic.ValidationError) -> InvalidArguments:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        problems = [
            {
                "argument": clip(format_path(problem["loc"]), MAX_NAME_CHARS),
                "problem": clip(_expectation(problem["type"], problem["msg"]), MAX_PROBLEM_CHARS),
            }
            for problem in found[:MAX_PROBLEMS]
        ]
        said = "; ".join(f"{each['argument']!r} {each['problem']}" for each in problems)
        more = f"; and {len(found) - MAX_PROBLEMS} more" if len(found) > MAX_PROBLEMS else ""
        return InvalidArguments(
            f"tool {tool!r} does not take these arguments: {said}{more}", problems
        )


def build_arguments(parameters: Mapping[str, tuple[Any, Any]], source: Source) -> ToolArguments:
    """The model of a tool's arguments, of each parameter's annotation and default."""
    try:
        model, schema = _build(parameters)
    except Exception as error:  # types are the author's own: their hooks may raise anything
        name, why = _culprit(parameters, error)
        if name is None:
            raise source.error(f"its arguments have no JSON Schema: {why}") from error
        raise source.error(
            f"parameter {name!r} is {type_name(parameters[name][0])}, which cannot be an argument "
            f"of a tool: {why}; use a type that pydantic reads from JSON"
        ) from error
    if len(schema["properties"]) < len(parameters):
        raise source.error("two parameters have the same alias; give each argument its own name")
    return ToolArguments(
        model, MappingProxyType({_FIELD_PREFIX + name: name for name in parameters}), schema
    )


def _build(
    parameters: Mapping[str, tuple[Any, Any]],
) -> tuple[type[pydantic.BaseModel], JsonObject]:
    fields: dict[str, Any] = {}
    for name, (given, default) in parameters.items():
        hint = pydantic_hint(given)
        value, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        # Ours comes first: of two aliases the later one counts, and that is the author's.
        annotated = _ANNOTATED[(value, pydantic.Field(alias=name), *metadata)]
        fields[_FIELD_PREFIX + name] = annotated if default is _NOT_GIVEN else (annotated, default)
    model = pydantic.create_model(
        "Arguments", __config__=pydantic.ConfigDict(extra="forbid"), **fields
    )
    schema = json_schema(model, mode="validation")
    schema.setdefault("properties", {})
    return model, schema


def _culprit(parameters: Mapping[str, tuple[Any, Any]], error: Exception) -> tuple[str | None, str]:
    """The parameter that makes the model fail, and why."""
    for name, parameter in parameters.items():
        try:
            _build({name: parameter})
        except Exception as own_error:  # as above
            return name, first_line(own_error)
    return None, first_line(error)


def _expectation(kind: str, message: str) -> str:
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return "is not an argument of this tool"
    message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message.removeprefix("Input ") or "is not valid"


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return "a string" if isinstance(value, str) else "an array"


# --- signatures ---

_INSTANCE = ("self", "cls")


class HandlerSignature(msgspec.Struct, frozen=True):
    """A handler's parameters and return annotation, resolved.

    It is unbound where an instance is still missing: the function stands in a class body.
    """

    source: Source
    injected: Mapping[str, Callable[[Any], Any]]
    arguments: ToolArguments | None
    is_async: bool
    returns: Any
    unbound: bool


def read_signature(
    fn: Handler,
    *,
    injectable: Mapping[type, Callable[[Any], Any]],
    takes_arguments: bool,
    role: str,
    elsewhere: Collection[type] = (),
) -> HandlerSignature:
    """Separate injected parameters from arguments, and build the arguments' model.

    Types that are injected ``elsewhere``, into handlers of other roles, are a mistake here, even
    where pydantic could read them from JSON. An error names the function, its place, the parameter
    and what was expected.
    """
    source = read_source(fn, role)
    reader = _AnnotationReader(
        source, injectable, takes_arguments, frozenset(elsewhere) - set(injectable)
    )
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError, NameError) as error:
        raise source.error(
            f"its parameters cannot be read: {first_line(error)}; wrap it in a plain function"
        ) from error
    parameters, returns = list(signature.parameters.values()), signature.return_annotation
    unbound = source.in_class_body and bool(parameters) and parameters[0].name in _INSTANCE
    injected: dict[str, Callable[[Any], Any]] = {}
    arguments: dict[str, tuple[Any, Any]] = {}
    for parameter in parameters[1:] if unbound else parameters:
        if parameter.name in source.fixed:
            continue
        hint = reader.hint_of(parameter)
        read = reader.injected(parameter.name, hint)
        if read is None:
            arguments[parameter.name] = (hint, parameter.default)
        else:
            injected[parameter.name] = read
    return HandlerSignature(
        source=source,
        injected=MappingProxyType(injected),
        arguments=build_arguments(arguments, source) if takes_arguments else None,
        is_async=source.is_async,
        returns=Any
        if returns is _NOT_GIVEN
        else resolve_hint(returns, source, "its return annotation"),
        unbound=unbound,
    )


class _AnnotationReader(msgspec.Struct, frozen=True):
    """Judges one function's annotations."""

    source: Source
    injectable: Mapping[type, Callable[[Any], Any]]
    takes_arguments: bool
    elsewhere: frozenset[type]

    def hint_of(self, parameter: inspect.Parameter) -> Any:
        """The resolved annotation of a parameter that can be given by name."""
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise self.source.error(
                f"parameter {str(parameter).partition(':')[0]!r} takes any number of values; "
                "name each parameter and annotate it"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise self.source.error(
                f"parameter {name!r} is positional-only, and handlers are called by name; "
                "remove the '/' behind it"
            )
        if parameter.annotation is _NOT_GIVEN:
            wanted = "the argument's type, or " if self.takes_arguments else ""
            raise self.source.error(
                f"parameter {name!r} has no annotation; annotate it with {wanted}"
                f"what is to be injected: {self._choices()}"
            )
        return resolve_hint(
            parameter.annotation, self.source, f"parameter {name!r}: its annotation"
        )

    def injected(self, name: str, hint: Any) -> Callable[[Any], Any] | None:
        """The reader of the value for this annotation; ``None`` for an argument."""
        bare = _bare(hint)
        for injectable, read in self.injectable.items():
            if bare is injectable:
                return read
        for part in _parts(bare):
            self._refuse_near_miss(name, hint, part)
        if self.takes_arguments:
            return None
        raise self.source.error(
            f"parameter {name!r} is {type_name(hint)}, which cannot be injected; "
            f"this handler can have: {self._choices()}"
        )

    def _refuse_near_miss(self, name: str, hint: Any, part: type) -> None:
        for injectable in self.injectable:
            if issubclass(part, injectable):
                raise self.source.error(
                    f"parameter {name!r} is {type_name(hint)}, but what is injected is always "
                    f"a {injectable.__name__}; annotate it as {injectable.__name__}"
                )
        if part in self.elsewhere:
            raise self.source.error(
                f"parameter {name!r} is {type_name(hint)}, which handlers of this role have "
                f"not; this handler can have: {self._choices()}"
            )

    def _choices(self) -> str:
        return ", ".join(injectable.__name__ for injectable in self.injectable)


def resolve_hint(annotation: Any, source: Source, what: str) -> Any:
    """Resolve an annotation, with its strings evaluated in the function's module."""

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    names = dict(source.names)
    try:
        return typing.get_type_hints(holder, globalns=names, include_extras=True)["it"]
    except Exception as error:  # evaluating an annotation runs code that is not ours
        raise source.error(
            f"{what} {type_name(annotation)!r} cannot be resolved: {first_line(error)}; "
            "import or define it at module level, and not only for type checkers"
        ) from error


def _bare(hint: Any) -> Any:
    """The annotation without ``Annotated`` and without the name of a type alias."""
    while True:
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return hint


def _parts(hint: Any) -> Iterator[type]:
    """The classes that an annotation is made of, as far as they say what the value is.

    The items of containers count: a ``list[Context]`` is as much a mistake as an optional one.
    """
    hint = _bare(hint)
    origin = get_origin(hint)
    if origin is None:
        if isinstance(hint, type):
            yield hint
        return
    if origin not in (Union, UnionType) and isinstance(origin, type):
        yield origin
    for argument in get_args(hint):
        yield from _parts(argument)
