"""A gateway's time never goes back: what is expired is so for good (PROTOCOL 4.2)."""

import logging
from typing import Any

import pytest

from tests.gateways import ForwardClock
from tests.interaction.views import lines

pytestmark = pytest.mark.rule("4.2.expiry.for_good")

SECOND = 1_000_000_000
HOUR = 3_600 * SECOND


class Machine:
    """The two clocks of a machine, in nanoseconds."""

    def __init__(self) -> None:
        self.wall = 1_735_689_600 * SECOND
        self.steady = 5 * SECOND
        self.clock = ForwardClock(lambda: self.wall, lambda: self.steady)

    def passes(self, seconds: float) -> None:
        self.wall += round(seconds * SECOND)
        self.steady += round(seconds * SECOND)


def test_time_goes_on_where_the_machines_clock_is_put_back(caplog: Any) -> None:
    machine = Machine()
    begun = machine.clock()
    machine.passes(10)
    machine.wall -= HOUR
    with caplog.at_level(logging.WARNING):
        assert machine.clock() - begun == 10_000_000
        machine.passes(5)
        assert machine.clock() - begun == 15_000_000
    assert lines(caplog) == [
        "the clock of this machine was put back by 3600 s: the gateway counts on as before"
    ]
    machine.wall += HOUR
    assert machine.clock() - begun == 15_000_000
    machine.wall += 2 * HOUR
    caplog.clear()
    assert machine.clock() - begun == 2 * 3_600_000_000 + 15_000_000
    assert "was put forward by 7200 s" in caplog.text


def test_a_clock_that_is_put_back_and_forth_gains_nothing() -> None:
    machine = Machine()
    begun = machine.clock()
    for _ in range(1_000):
        machine.wall -= HOUR
        machine.clock()
        machine.wall += HOUR
        machine.clock()
    assert machine.clock() == begun
