"""Sources: the function behind a callable, whose names and lines count, and words about it.

Text of senders and exceptions is made short and printable before it goes into a message.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, get_origin

from pydantic import ValidationError

from meup_agent.errors import HandlerDefinitionError

Handler = Callable[..., Any]
"""A function, bound method, ``functools.partial`` or object with ``__call__``."""


@dataclass(frozen=True, slots=True)
class Source:
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
    names: Mapping[str, Any] = field(repr=False, compare=False)
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
    source = Source(
        role=role,
        name=own,
        qualname=qualname,
        location=_location(code),
        doc=_first_paragraph(code, fn),
        is_async=inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(called),
        in_class_body=direct and _stands_in_class_body(qualname),
        names=getattr(code, "__globals__", {}),
        fixed=_fixed(fn),
    )
    _refuse_what_cannot_run(fn, called, source)
    return source


def _refuse_what_cannot_run(fn: object, called: object, source: Source) -> None:
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


def _location(code: object) -> str:
    code_object = getattr(code, "__code__", None)
    if code_object is None:
        return ""
    return f"{code_object.co_filename}:{code_object.co_firstlineno}"


def _first_paragraph(code: object, fn: object) -> str:
    doc = getattr(code, "__doc__", None)
    if not doc and getattr(code, "__name__", "") == "__call__":
        doc = type(_without_partials(fn)).__doc__
    if not isinstance(doc, str):
        return ""
    return " ".join(inspect.cleandoc(doc).partition("\n\n")[0].split())


def _stands_in_class_body(qualname: str) -> bool:
    parent = qualname.rpartition(".")[0]
    return bool(parent) and not parent.endswith("<locals>")


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
    if isinstance(error, ValidationError):
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
