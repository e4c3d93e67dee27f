"""The deduplicator knows an envelope again for as long as it may be sent again, and no longer."""

import pytest

from meup_agent import Envelope
from meup_agent.protocol.space.indexes import (
    MAX_REMEMBERED,
    REMEMBERED_SECONDS,
    SWEEP_INTERVAL,
    Deduplicator,
)
from tests.wire import draft

AGE = round(REMEMBERED_SECONDS * 1_000_000)


def said(number: int, sender: str = "alice", text: str = "hi") -> Envelope:
    return draft("chat", {"text": text}, id=str(number), sender=sender)


def found(recent: Deduplicator, envelope: Envelope, at: int) -> int | None:
    """The number under which an envelope was accepted before."""
    receipt = recent.find(envelope, at)
    return None if receipt is None else receipt.seq


@pytest.mark.rule("6.journal.again")
def test_the_same_is_known_again_for_ten_minutes() -> None:
    recent = Deduplicator()
    recent.remember(said(1), 0, 100)
    assert found(recent, said(1), AGE) == 100
    assert found(recent, said(1), AGE + 1) is None


@pytest.mark.rule("6.journal.again")
@pytest.mark.parametrize("other", [said(2), said(1, "bob"), said(1, text="ho")])
def test_another_id_sender_or_content_is_something_else(other: Envelope) -> None:
    recent = Deduplicator()
    recent.remember(said(1), 0, 100)
    assert found(recent, other, 0) is None


def test_an_id_that_is_used_again_means_the_latest() -> None:
    recent = Deduplicator()
    recent.remember(said(1), 0, 100)
    recent.remember(said(1, text="ho"), 1, 101)
    assert found(recent, said(1), 1) is None
    assert found(recent, said(1, text="ho"), 1) == 101


def test_the_oldest_of_a_sender_is_forgotten_first_and_nobody_elses() -> None:
    recent = Deduplicator()
    recent.remember(said(0, "bob"), 0, 1)
    for number in range(MAX_REMEMBERED + 1):
        recent.remember(said(number), 0, number)
    assert found(recent, said(0), 0) is None
    assert found(recent, said(1), 0) == 1
    assert found(recent, said(0, "bob"), 0) == 1
    assert len(recent) == MAX_REMEMBERED + 1


def test_what_is_too_old_is_forgotten_while_anybody_speaks() -> None:
    recent = Deduplicator()
    for number in range(100):
        for sender in ("alice", "bob", "carol"):
            recent.remember(said(number, sender), number, number)
    for number in range(5 * SWEEP_INTERVAL):
        recent.remember(said(number, "dave"), 2 * AGE, number)
        assert found(recent, said(number, "dave"), 2 * AGE) == number
    assert len(recent) == 5 * SWEEP_INTERVAL
    for number in range(2 * SWEEP_INTERVAL):
        recent.remember(said(number, "dave"), 4 * AGE, number)
    assert len(recent) == 2 * SWEEP_INTERVAL


@pytest.mark.rule("6.journal.again")
def test_number_may_come_after_the_same_came_again() -> None:
    recent = Deduplicator()
    receipt = recent.remember(said(1), 0)
    again = recent.find(said(1), 0)
    receipt.seq = 100  # as the journal says later
    assert again is receipt
