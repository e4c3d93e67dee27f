"""Handlers at once, and the overflow beyond them (PROTOCOL 5)."""

import pytest

from meup_agent import Limits
from tests.protocol.exchange.peer import (
    EXCHANGES,
    Peer,
    cancelled,
    dropped,
    of,
    said,
    started,
    woken,
)
from tests.tables import Key, Role, Start


def full_peer(*roles: Role, queued: int = 2) -> Peer:
    """One place, taken by ``a0``, and two more that wait, ``a1`` and ``a2``."""
    peer = Peer.among(
        "alice", "bob", limits=Limits(handlers=1, queued=queued), roles=EXCHANGES | set(roles)
    )
    for number in range(queued + 1):
        peer.request("alice", f"a{number}")
    assert (peer.table.running, peer.table.queued) == (1, queued)
    peer.effects.clear()
    return peer


def chats(me: Peer, id: str) -> list[str]:
    return dropped(me.hears("chat", {"message": "hi"}, sender="alice", id=id))


A0 = Key("in", "alice", "a0")


@pytest.mark.rule("5.overflow.limits")
def test_an_agent_runs_64_handlers_and_keeps_256_more() -> None:
    me = Peer.among("alice")
    for number in range(64 + 256):
        assert said(me.request("alice", f"a{number}")) == []
    assert (me.table.running, me.table.queued) == (64, 256)
    (response,) = said(me.request("alice", "one-more"))
    assert response.payload["error"]["data"] == {"reason": "busy"}


@pytest.mark.rule("5.overflow.limits", "5.overflow.waiting_does_not_count")
def test_handlers_that_await_exchanges_are_bounded_as_well() -> None:
    me = Peer.among("alice", limits=Limits(handlers=1, queued=1, awaiting=2))
    for number in range(3):
        assert started(me.request("alice", f"a{number}")) == [Key("in", "alice", f"a{number}")]
        me.did(me.table.count_waits(Key("in", "alice", f"a{number}"), 1, me.now))
    assert started(me.request("alice", "a3")) == []
    (response,) = said(me.request("alice", "a4"))
    assert response.payload["error"]["data"] == {"reason": "busy"}
    assert started(me.returns(Key("in", "alice", "a0"))) == [Key("in", "alice", "a3")]


@pytest.mark.rule("5.proposal.overflow")
def test_a_proposal_beyond_is_rejected_as_busy_only_if_addressed_to_us() -> None:
    me = full_peer()
    (reject,) = said(me.proposal("bob", "p1", to=("me",)))
    assert (reject.kind, reject.payload) == ("mcp/reject", {"reason": "busy"})
    effects = me.proposal("bob", "p2")
    assert said(effects) == []
    assert dropped(effects) == ["overflow"]


@pytest.mark.rule("5.overflow.waiting_does_not_count")
def test_a_handler_that_awaits_two_exchanges_releases_one_slot() -> None:
    me = full_peer()
    assert len(started(me.did(me.table.count_waits(A0, +1, me.now)))) == 1
    assert started(me.did(me.table.count_waits(A0, +1, me.now))) == []
    assert started(me.did(me.table.count_waits(A0, -1, me.now))) == []
    assert started(me.returns(A0)) == []


@pytest.mark.rule("5.overflow.talk_is_dropped")
def test_chat_beyond_is_dropped_oldest_first_and_for_a_request() -> None:
    me = full_peer(Role.CHAT, queued=2)
    me.cancel("alice", "a1")
    assert chats(me, "c1") == []
    assert chats(me, "c2") == ["overflow"]
    assert started(me.returns(A0)) == [Key("in", "alice", "a2")]
    (start,) = of(me.returns(Key("in", "alice", "a2")), Start)
    assert (start.key.side, start.work.envelope.id) == ("job", "c2")
    me = full_peer(Role.CHAT)
    me.cancel("alice", "a1")
    chats(me, "c1")
    effects = me.request("bob", "b1")
    assert (said(effects), dropped(effects), me.table.queued) == ([], ["overflow"], 2)


@pytest.mark.rule("5.overflow.talk_is_dropped")
def test_presence_beyond_is_dropped() -> None:
    me = full_peer(Role.JOIN, Role.LEAVE)
    assert dropped(me.joined("carol")) == ["overflow"]
    assert dropped(me.left("carol")) == ["overflow"]


@pytest.mark.rule("5.overflow.ends_are_not_dropped")
def test_ends_and_answers_are_never_dropped() -> None:
    me = full_peer(Role.REJECT, Role.WITHDRAW)
    mine, asked = me.begins_proposal(to=("bob",)), me.begins_request(to=("bob",))
    assert cancelled(me.cancel("alice", "a0")) != {}
    assert me.table.queued == 2
    effects = me.reject("bob", mine.id)
    assert list(woken(effects)) == [mine]
    assert me.table.queued == 3
    assert list(woken(me.response("bob", asked.id))) == [asked]


@pytest.mark.rule("5.shutdown.nothing_new")
def test_nothing_new_is_taken_while_we_shut_down() -> None:
    me = Peer.among("alice", "bob", roles=EXCHANGES | {Role.CHAT})
    me.shuts_down()
    (response,) = said(me.request("alice", "a1"))
    assert response.payload["error"]["data"] == {"reason": "busy"}
    (reject,) = said(me.proposal("alice", "p1", to=("me",)))
    assert reject.payload == {"reason": "busy"}
    assert said(me.proposal("alice", "p2")) == []
    chats(me, "c1")
    assert started(me.effects) == []


@pytest.mark.rule("5.shutdown.nothing_new")
def test_after_the_grace_nothing_begins_any_more() -> None:
    roles = EXCHANGES | {Role.WITHDRAW, Role.REJECT}
    me = Peer.among("alice", "bob", limits=Limits(handlers=1, queued=9), roles=roles)
    me.proposal("alice", "p1", to=("me",))
    mine = me.begins_proposal(to=("alice", "bob"))
    me.shuts_down()
    me.reject("bob", mine.id)
    me.withdraw("alice", "p1")
    assert me.table.queued == 1
    me.ends_grace()
    assert started(me.returns(Key("in", "alice", "p1"))) == []
    assert (me.table.running, me.table.queued) == (0, 0)


@pytest.mark.rule("5.shutdown.nothing_new")
def test_the_grace_can_end_before_it_began() -> None:
    me = full_peer()
    effects = me.ends_grace()
    reasons = [envelope.payload["error"]["data"]["reason"] for envelope in said(effects)]
    assert reasons == ["busy", "busy", "cancelled"]
