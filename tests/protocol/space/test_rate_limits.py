"""Rate limits of a participant, in a time that the tests tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.protocol.space import allowance
from meup_agent.protocol.space.allowance import (
    MESSAGE_BYTES,
    NOTICE_SECONDS,
    NoticeThrottle,
    SenderLoad,
    TokenBucket,
)

SECOND = 1_000_000


def test_a_burst_then_the_rate_and_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(10, 3)
    assert [bucket.try_consume(0) for _ in range(4)] == [True, True, True, False]
    assert bucket.wait(SECOND // 20)
    assert bucket.wait(SECOND // 10) == 0
    assert bucket.try_consume(SECOND // 10)
    assert bucket.wait(SECOND // 10) == pytest.approx(0.1)
    bucket = TokenBucket(1, 1)
    assert [bucket.try_consume(at * SECOND) for at in (10, 5, 6)] == [True, False, True]
    assert not bucket.wait(7 * SECOND)


def test_what_was_taken_too_much_has_to_come_back() -> None:
    bucket = TokenBucket(10, 1)
    assert bucket.consume(0) == 0
    assert bucket.consume(0) == pytest.approx(0.1)
    assert bucket.consume(0) == pytest.approx(0.2)
    assert bucket.consume(SECOND) == 0
    assert bucket.consume(SECOND) == pytest.approx(0.1)


@given(st.lists(st.integers(0, 2 * SECOND), max_size=60))
def test_never_more_than_burst_and_rate(pauses: list[int]) -> None:
    bucket, at, passed = TokenBucket(5, 4), 0, 0
    for pause in pauses:
        at += pause
        passed += bucket.try_consume(at)
    assert passed <= 4 + 5 * at / SECOND + 1e-6


def test_somebody_is_told_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    told, again = NoticeThrottle(), round(NOTICE_SECONDS * SECOND)
    assert told.due("ann", "messages", 0)
    assert not told.due("ann", "messages", again - 1)
    assert told.due("ann", "withdrawals", 1)
    assert told.due("bob", "messages", 1)
    assert told.due("ann", "messages", again)
    monkeypatch.setattr(allowance, "MAX_NOTICES", 2)  # who was told is forgotten in the end
    told = NoticeThrottle()
    assert all(told.due(name, "messages", 0) for name in ("ann", "bob", "carol", "ann"))
    assert not told.due("carol", "messages", 0)


def test_who_said_most_lately_is_loud() -> None:
    loudness = SenderLoad()
    assert not loudness.is_heavy("ann")
    loudness.add("ann", 0, 1_000_000)
    loudness.add("bob", 0, 600_000)
    loudness.add("carol", 0, 400_000)
    assert [loudness.is_heavy(name) for name in ("ann", "bob", "carol")] == [True, True, False]
    # A second later, all of it counts half.
    loudness.add("carol", SECOND, 400_000)
    assert [loudness.is_heavy(name) for name in ("ann", "bob", "carol")] == [True, False, True]


def test_who_is_silent_for_long_is_quiet() -> None:
    loudness = SenderLoad()
    loudness.add("ann", 0, 1 << 40)
    loudness.add("bob", 10_000 * SECOND, 1)
    assert [loudness.is_heavy(name) for name in ("ann", "bob")] == [False, True]
    loudness.add("bob", 0, 1)  # a clock that goes back changes no order
    assert loudness.is_heavy("bob")


@given(st.lists(st.tuples(st.integers(0, 3 * SECOND), st.sampled_from("abc"), st.integers(0, 9))))
def test_the_loudest_is_always_loud(said: list[tuple[int, str, int]]) -> None:
    loudness, at, sums = SenderLoad(), 0, dict.fromkeys("abc", 0.0)
    for pause, name, size in said:
        at += pause
        sums = {each: most * 0.5 ** (pause / SECOND) for each, most in sums.items()}
        sums[name] += size + MESSAGE_BYTES
        loudness.add(name, at, size)
    if said:
        assert loudness.is_heavy(max(sums, key=lambda name: sums[name]))
