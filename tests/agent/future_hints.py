"""Functions whose annotations are strings, for the tests of signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.agent.stand_ins import Context

Paths = list[str]


async def at_module_level(path: str, ctx: Context) -> Paths:
    return [path]


def in_a_local_scope() -> Callable[..., Any]:
    class Local:
        pass

    async def tool(item: Local) -> None: ...

    return tool
