"""Ask several participants the same, a bounded number of them at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

T = TypeVar("T")
R = TypeVar("R")


async def ask_each(
    asked: Iterable[T], ask: Callable[[T], Awaitable[R]], *, at_a_time: int
) -> list[R]:
    """The answers of all, in the order in which they are given here.

    Raises:
        Exception: The first that ``ask`` raised, as it is and in no group; what else was asked is
            cancelled.
    """
    items = list(asked)
    answers: dict[int, R] = {}
    failures: list[Exception] = []
    limiter = anyio.CapacityLimiter(at_a_time)

    async def ask_one(position: int) -> None:
        try:
            async with limiter:
                answers[position] = await ask(items[position])
        except Exception as failure:
            failures.append(failure)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for position in range(len(items)):
            tasks.start_soon(ask_one, position)
    if failures:
        raise failures[0]
    return [answers[position] for position in range(len(items))]
