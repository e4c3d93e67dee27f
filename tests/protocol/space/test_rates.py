"""How fast a participant may speak, in a time that the tests tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.protocol.space import rates
from meup_agent.protocol.space.rates import TOLD_AGAIN_SECONDS, Bucket, Told

SECOND = 1_000_000


def test_a_burst_then_the_rate() -> None:
    bucket = Bucket(10, 3)
    assert [bucket.take_if_there(0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.has(SECOND // 20)
    assert bucket.has(SECOND // 10)
    assert bucket.wait(SECOND // 10) == 0
    assert bucket.take_if_there(SECOND // 10)
    assert bucket.wait(SECOND // 10) == pytest.approx(0.1)


def test_what_was_taken_too_much_has_to_come_back() -> None:
    bucket = Bucket(10, 1)
    assert bucket.take(0) == 0
    assert bucket.take(0) == pytest.approx(0.1)
    assert bucket.take(0) == pytest.approx(0.2)
    assert bucket.take(SECOND) == 0
    assert bucket.take(SECOND) == pytest.approx(0.1)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(1, 1)
    assert bucket.take_if_there(10 * SECOND)
    assert not bucket.take_if_there(5 * SECOND)
    assert bucket.take_if_there(6 * SECOND)
    assert bucket.full(7 * SECOND)


@given(st.lists(st.integers(0, 2 * SECOND), max_size=60))
def test_never_more_than_burst_and_rate(pauses: list[int]) -> None:
    bucket, at, passed = Bucket(5, 4), 0, 0
    for pause in pauses:
        at += pause
        passed += bucket.take_if_there(at)
    assert passed <= 4 + 5 * at / SECOND + 1e-6


def test_somebody_is_told_once_in_a_while() -> None:
    told, again = Told(), round(TOLD_AGAIN_SECONDS * SECOND)
    assert told.due("ann", "messages", 0)
    assert not told.due("ann", "messages", again - 1)
    assert told.due("ann", "withdrawals", 1)
    assert told.due("bob", "messages", 1)
    assert told.due("ann", "messages", again)


def test_who_was_told_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_TOLD", 2)
    told = Told()
    assert all(told.due(name, "messages", 0) for name in ("ann", "bob", "carol"))
    assert told.due("ann", "messages", 0)
    assert not told.due("carol", "messages", 0)
