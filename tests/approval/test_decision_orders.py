"""People decide in any order, at several inboxes: each call runs once at most, as approved."""

import os

import pytest
from trio.testing import MockClock

from tests.approval.orders import begun
from tests.effort import scaled

pytestmark = pytest.mark.anyio

BEGIN = int(os.environ.get("MEUP_SEED") or 0)
SEEDS = int(os.environ.get("MEUP_EXAMPLES") or scaled(8))


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}


@pytest.mark.rule("race.any_order", "4.4.before_it_is_sent", "4.4.edits_judged")
async def test_whatever_the_order_what_runs_was_approved_and_runs_once() -> None:
    ran = refused = 0
    for seed in range(BEGIN, BEGIN + SEEDS):
        try:
            async with begun(seed) as orders:
                for _ in range(120):
                    await orders.step()
                await orders.settle()
                orders.check()
                ran += len(orders.done)
                refused += orders.refused
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert ran
    assert refused
