"""The types that the tests of tools use."""

import dataclasses
import enum
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typing_extensions
from pydantic import BaseModel, Field


class Color(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    name: str
    count: int = 1


class Tree(BaseModel):
    children: "list[Tree]" = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Old(typing.TypedDict):
    name: str
    size: typing.NotRequired[int]


class New(typing_extensions.TypedDict):
    name: str


class Nested(typing.TypedDict, total=False):
    inner: list[Old]
    must: typing.Required[Annotated[int, Field(gt=0)]]


class Endless(typing.TypedDict):
    again: "Endless | None"


class Opaque:
    pass


NAMES = typing_extensions.TypeAliasType("NAMES", list[str])


def one(annotation: Any, *default: Any) -> Callable[..., Any]:
    async def fn(value):  # type: ignore[no-untyped-def]
        pass

    fn.__annotations__ = {"value": annotation}
    fn.__defaults__ = default
    return fn


def returning(annotation: Any) -> Callable[..., Any]:
    async def fn():  # type: ignore[no-untyped-def]
        pass

    fn.__annotations__ = {"return": annotation}
    return fn
