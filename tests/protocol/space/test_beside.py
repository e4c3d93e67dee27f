"""A space with connections beside, without a loop."""

import gc
import weakref

import pytest

from tests.protocol.frames import frame_by
from tests.protocol.space.scene import TOOL_CALL, Scene
from tests.protocol.space.test_server import chat, host_with, joins
from tests.spaces import Allowance, Place

MOST = Allowance().max_beside


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


@pytest.mark.rule("3.beside.limit")
def test_one_too_many_is_closed_and_counts_for_nothing() -> None:
    """At the door it is refused with 429; this is for those who pass the door at one time."""
    host, (alice,) = host_with("alice")
    let_in = [joins(host, "alice", Place.BESIDE) for _ in range(MOST + 10)]
    assert [each.closed for each in let_in[:MOST]] == [None] * MOST
    assert {each.closed and each.closed[0] for each in let_in[MOST:]} == {1013}
    assert host.receive(let_in[MOST], chat("alice")) == 0.0
    assert host.counters.accepted == 0
    host.leave(let_in[MOST])
    host.leave(let_in[0])
    assert joins(host, "alice", Place.BESIDE).closed is None
    assert (len(host.owner), alice.closed) == (1, None)


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
    agent = joins(host, "alice")
    for connection in (one, agent, agent, two):
        assert "alice" in host.owner
        host.leave(connection)
    assert "alice" not in host.owner
    said = [payload for kind, payload in watcher.heard() if kind == "system.presence"]
    events = [(each["event"], each["participant"].get("dev.meup/aside")) for each in said]
    assert events[-4:] == [("join", True), ("join", None), ("update", True), ("leave", None)]
