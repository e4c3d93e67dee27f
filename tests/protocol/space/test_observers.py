"""A space with observers, without a loop."""

import pytest

from tests.protocol.frames import frame_by
from tests.protocol.space.test_server import chat, host_with, joins
from tests.spaces import Allowance, FrameFormat, Place

MOST = Allowance().max_observers


@pytest.mark.rule("3.observe.takes_no_part")
def test_the_agent_of_the_same_participant_hears_first_what_names_it() -> None:
    """An observer has its name, and must not take its place among those that are named."""
    host, (alice, bob) = host_with("alice", "bob")
    watching = joins(host, "bob", Place.OBSERVING)
    order: list[str] = []
    for listener, named in ((alice, "alice"), (bob, "bob"), (watching, "observer of bob")):
        listener.label, listener.order = named, order
    host.receive(alice, frame_by("alice", "chat", to=["bob"]))
    assert order == ["bob", "alice", "observer of bob"]
    host.leave(watching)
    order.clear()
    host.receive(alice, frame_by("alice", "chat", id="2", to=["bob"]))
    assert order == ["bob", "alice"]


@pytest.mark.rule("3.observe.limit")
def test_one_too_many_is_closed_and_counts_for_nothing() -> None:
    """At the door it is refused with 429; this is for those who pass the door at one time."""
    host, (alice, bob) = host_with("alice", "bob")
    let_in = [joins(host, "alice", Place.OBSERVING) for _ in range(10_000)]
    assert [each.closed for each in let_in[:MOST]] == [None] * MOST
    turned_away = let_in[MOST:]
    assert {each.closed and each.closed[0] for each in turned_away} == {1013}
    assert all(each.closed and "(max_observers)" in each.closed[1] for each in turned_away)
    assert not any(each.frames for each in turned_away)
    assert joins(host, "bob", Place.OBSERVING).closed is None
    assert host.delivery.observers == MOST + 1
    host.leave(turned_away[0])
    assert host.delivery.observers == MOST + 1
    host.leave(let_in[0])
    assert joins(host, "alice", Place.OBSERVING).closed is None
    assert (alice.closed, bob.closed) == (None, None)


@pytest.mark.rule("3.observe.says_nothing")
def test_what_an_observer_says_is_not_kept_and_its_id_not_taken() -> None:
    """The agent may use the id afterwards: nothing was accepted under it."""
    host, (alice,) = host_with("alice")
    one = joins(host, "alice", Place.OBSERVING)
    one.form = FrameFormat("meup/v0.1", numbered=True)
    latest = host.journal.latest("demo")
    one.frames.clear()
    host.receive(one, chat("alice"))
    [(kind, error)] = one.heard()
    assert (kind, error["error"]) == ("system.error", "observing")
    host.leave(one)  # then it is not heard at all
    one.frames.clear()
    assert host.receive(one, chat("alice")) == 0.0
    assert one.heard() == alice.heard() == []
    assert (host.journal.latest("demo"), host.counters.accepted) == (latest, 0)
    host.receive(alice, chat("alice"))
    assert [kind for kind, _ in alice.heard()] == ["chat"]
