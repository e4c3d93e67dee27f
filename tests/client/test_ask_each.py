"""Asking several the same: in order, so many at a time, and the first failure ends it."""

import anyio
import pytest

from meup_agent.client.offers import ask_each
from tests.patience import PATIENCE


async def test_answers_are_in_the_order_of_the_asked() -> None:
    turns = [anyio.Event() for _ in range(3)]

    async def ask(position: int) -> int:
        if position + 1 < len(turns):
            await turns[position + 1].wait()
        turns[position].set()
        return position * 10

    with anyio.fail_after(PATIENCE):
        assert await ask_each(range(3), ask, at_a_time=3) == [0, 10, 20]


async def test_so_many_are_asked_at_a_time() -> None:
    asking, most = 0, 0

    async def ask(_: int) -> None:
        nonlocal asking, most
        asking += 1
        most = max(most, asking)
        await anyio.lowlevel.checkpoint()
        asking -= 1

    await ask_each(range(20), ask, at_a_time=4)
    assert most == 4


async def test_first_failure_cancels_the_others_and_is_raised_in_no_group() -> None:
    cancelled: list[int] = []

    async def ask(position: int) -> None:
        if position == 1:
            raise LookupError(position)
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(position)
            raise

    with anyio.fail_after(PATIENCE), pytest.raises(LookupError):
        await ask_each(range(3), ask, at_a_time=3)
    assert sorted(cancelled) == [0, 2]
