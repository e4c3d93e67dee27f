"""A space with connections beside, and observers, without a loop."""

import gc
import weakref

import pytest

from tests.protocol.frames import frame_by
from tests.protocol.space.scene import TOOL_CALL, Scene
from tests.protocol.space.test_server import chat, host_with, joins
from tests.spaces import Allowance, FrameFormat, Place


@pytest.mark.rule("3.beside.pace")
def test_all_connections_of_a_participant_have_one_pace() -> None:
    host, (alice, bob) = host_with("alice", "bob")
    senders = [alice, joins(host, "alice", Place.BESIDE), joins(host, "alice", Place.BESIDE)]
    for listener in senders:
        listener.frames.clear()
    burst = Allowance().messages_burst
    waits = [host.receive(senders[n % 3], chat("alice")) for n in range(burst + 3)]
    assert not any(waits[:burst])
    assert all(waits[burst:])
    assert host.receive(bob, chat("bob")) == 0.0
    # The one that was too fast is told.
    told = [[kind for kind, _ in each.heard()].count("system.error") for each in senders]
    assert sum(told) == 1


@pytest.mark.rule("3.beside.limit", "3.observe.limit")
@pytest.mark.parametrize("place", [Place.BESIDE, Place.OBSERVING])
def test_one_too_many_is_closed_and_counts_for_nothing(place: Place) -> None:
    """At the door it is refused with 429; this is for those who pass the door at one time."""
    name = "max_beside" if place is Place.BESIDE else "max_observers"
    most = getattr(Allowance(), name)
    host, (alice, bob) = host_with("alice", "bob")
    let_in = [joins(host, "alice", place) for _ in range(most + 1_000)]
    assert [each.closed for each in let_in[:most]] == [None] * most
    turned_away = let_in[most:]
    assert {each.closed and each.closed[0] for each in turned_away} == {1013}
    assert all(each.closed and f"({name})" in each.closed[1] for each in turned_away)
    assert not any(each.frames for each in turned_away)
    assert joins(host, "bob", place).closed is None
    observers = host.delivery.observers
    assert observers == (most + 1 if place is Place.OBSERVING else 0)
    assert host.receive(turned_away[0], chat("alice")) == 0.0
    assert host.counters.accepted == 0
    host.leave(turned_away[0])
    assert host.delivery.observers == observers
    host.leave(let_in[0])
    assert joins(host, "alice", place).closed is None
    assert (len(host.owner), alice.closed, bob.closed) == (2, None, None)


def test_what_it_began_keeps_no_memory_of_a_connection_that_has_ended() -> None:
    host = Scene().host
    one = joins(host, "admin", Place.BESIDE)
    for kind in ("mcp.request", "mcp.proposal"):
        host.receive(one, frame_by("admin", kind, TOOL_CALL, id=kind, to=["lead"]))
    assert len(host.owner.in_flight) == 2
    host.leave(one)
    ended = weakref.ref(one)
    del one
    gc.collect()
    assert ended() is None


@pytest.mark.rule("3.beside.ends")
def test_of_one_that_is_removed_others_hear_only_that_it_leaves() -> None:
    scene = Scene()
    connections = [scene.members["worker"], joins(scene.host, "worker", Place.BESIDE)]
    scene.forget()
    scene.say("admin", "space.kick", {"participant_id": "worker"})
    assert [each.closed and each.closed[0] for each in connections] == [4403, 4403]
    _, *presences = scene.got("lead")
    assert [each["payload"]["event"] for each in presences] == ["leave"]


@pytest.mark.rule("3.beside.alone")
def test_it_is_present_until_its_last_connection_ends() -> None:
    host, (watcher, first) = host_with("bob", "alice")
    host.leave(first)
    one, two = joins(host, "alice", Place.BESIDE), joins(host, "alice", Place.BESIDE)
    assert host.delivery.member("alice") is None  # neither answers for it
    agent = joins(host, "alice")
    assert host.delivery.member("alice") is agent
    for connection in (one, agent, agent, two):
        assert "alice" in host.owner
        host.leave(connection)
    assert "alice" not in host.owner
    said = [payload for kind, payload in watcher.heard() if kind == "system.presence"]
    events = [(each["event"], each["participant"].get("dev.meup/aside")) for each in said]
    assert events[-4:] == [("join", True), ("join", None), ("update", True), ("leave", None)]


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
