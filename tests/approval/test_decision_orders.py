"""People decide in any order, at several inboxes: each call runs once at most, as approved."""

import pytest

from tests.approval.orders import begun, run_seeds
from tests.virtual_time import anyio_backend as anyio_backend


@pytest.mark.rule("race.any_order", "4.4.before_it_is_sent", "4.4.edits_judged")
async def test_whatever_the_order_what_runs_was_approved_and_runs_once() -> None:
    ran = refused = 0

    async def run(seed: int) -> None:
        nonlocal ran, refused
        async with begun(seed) as orders:
            for _ in range(120):
                await orders.step()
            await orders.settle()
            orders.check()
            ran += len(orders.done)
            refused += orders.refused

    await run_seeds(run)
    assert ran
    assert refused
