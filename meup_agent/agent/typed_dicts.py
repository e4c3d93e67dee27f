"""``typing.TypedDict`` for pydantic, which before Python 3.12 refuses it."""

from __future__ import annotations

import sys
import types
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin

import typing_extensions

# A class written with the standard library's TypedDict keeps no record of its bases before 3.12,
# which is why pydantic refuses it; the same keys and hints in the other class lose nothing.
_NEEDED = sys.version_info < (3, 12)


def readable(hint: Any) -> Any:
    """The annotation with each ``typing.TypedDict`` in it replaced by one that pydantic takes.

    Those inside the fields of models and dataclasses are not reached; pydantic says so.

    Raises:
        TypeError: A ``typing.TypedDict`` contains itself.
    """
    return _readable(hint, ()) if _NEEDED else hint


def _readable(hint: Any, inside: tuple[Any, ...]) -> Any:
    if typing_extensions.is_typeddict(hint) and type(hint).__module__ == "typing":
        return _rebuilt(hint, inside)
    arguments = get_args(hint)
    replaced = tuple(_readable(argument, inside) for argument in arguments)
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
        fields[key] = presence[_readable(hint, (*inside, typed_dict))]
    functional: Any = typing_extensions.TypedDict
    rebuilt = functional(name, fields)
    rebuilt.__doc__ = typed_dict.__doc__
    rebuilt.__module__ = typed_dict.__module__
    return rebuilt
