"""Signatures: a handler's parameters are injected by annotation, or arguments of a tool.

Read once, when the function is decorated, so that a function that cannot work fails where it is
written.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from meup_agent.agent.arguments import ToolArguments, build_arguments
from meup_agent.agent.source import Handler, Source, first_line, read_source, type_name

_EMPTY = inspect.Parameter.empty
_INSTANCE = ("self", "cls")


@dataclass(frozen=True, slots=True)
class HandlerSignature:
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
    parameters, returns = _parameters(fn, source)
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
        if returns is _EMPTY
        else resolve_hint(returns, source, "its return annotation"),
        unbound=unbound,
    )


def _parameters(fn: Handler, source: Source) -> tuple[list[inspect.Parameter], Any]:
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError, NameError) as error:
        raise source.error(
            f"its parameters cannot be read: {first_line(error)}; wrap it in a plain function"
        ) from error
    return list(signature.parameters.values()), signature.return_annotation


@dataclass(frozen=True, slots=True)
class _AnnotationReader:
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
        if parameter.annotation is _EMPTY:
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
