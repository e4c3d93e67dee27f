"""Proposals of ours that depend on others of ours (PROTOCOL 4.15)."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meup_agent import Expiry, Fulfillment, Gone, ProposalState, Rejection, Withdrawal
from meup_agent.errors import UsageError
from meup_agent.protocol.exchange.outbound import MAX_BLOCKED, MAX_DEPENDENCIES
from meup_agent.types import Cause
from tests.protocol.exchange.peer import Peer, of, said, woken
from tests.tables import Key, Send
from tests.wire import GatewayRefused, Unsent, kinds, payloads

OK = {"content": [{"type": "text", "text": "done"}]}


def needs(me: Peer, *keys: Key, ttl: float | None = None, to: tuple[str, ...] = ()) -> Key:
    return me.begins_proposal(
        to, deadline=None, sent=False, depends_on=dict.fromkeys(key.id for key in keys), ttl=ttl
    )


def fulfills(me: Peer, key: Key, *, result: object = OK) -> list[object]:
    me.request("bob", f"r-{key.id}", to=("tool",), fulfills=key.id)
    return list(me.response("tool", f"r-{key.id}", to=("bob",), result=result))


def offered(me: Peer, key: Key) -> bool:
    return any(each.draft.id == key.id for each in of(me.effects, Send))


def leaves(me: Peer, key: Key) -> None:
    (draft,) = [each.draft for each in of(me.effects, Send) if each.draft.id == key.id]
    me.did(me.table.sent(key.id, me.now)[1])
    me.echo(draft)


@pytest.mark.rule("4.15.offered", "4.15.reconnect")
def test_dependent_is_sent_once_all_that_it_depends_on_is_fulfilled(me: Peer) -> None:
    first, second = me.begins_proposal(), me.begins_proposal()
    key = needs(me, first, second)
    assert me.table.is_blocked(key)
    assert key.id not in [entry.key.id for entry in me.table.proposal_store.records(me.now)]
    fulfills(me, first)
    assert offered(me, needs(me, first)), "what is fulfilled already blocks nothing"
    me.loses_connection()
    assert me.table.is_blocked(key)
    me.welcomed("alice", "bob", "tool")
    assert not offered(me, key)
    fulfills(me, second)
    assert offered(me, key)
    assert not me.table.is_blocked(key)
    leaves(me, key)
    fulfills(me, key)
    assert isinstance(me.ending(key), Fulfillment)


@pytest.mark.rule("4.15.offered")
def test_its_time_begins_as_it_is_offered() -> None:
    begun = datetime(2030, 1, 1, tzinfo=UTC)
    peers: list[Peer] = []
    me = Peer(wall_clock=lambda: begun + timedelta(seconds=peers[0].now if peers else 0))
    peers.append(me)
    me.welcomed("alice", "bob", "tool")
    first = me.begins_proposal(deadline=None)
    key = needs(me, first, ttl=60.0)
    me.passes(1_000)
    assert me.is_waiting(key)
    fulfills(me, first)
    leaves(me, key)
    call = payloads.read_proposal(me.own(key).envelope.payload)
    assert call.expires_at == begun + timedelta(seconds=me.now + 60)
    assert me.own(key).envelope.ts is not None
    me.passes(60)
    assert me.ending(key) == Expiry(key.id)


def reject(me: Peer, key: Key) -> None:
    me.reject("alice", key.id, "unsafe")


def fail(me: Peer, key: Key) -> None:
    fulfills(me, key, result={"isError": True, "content": []})


BAD_ENDS = {
    "rejected": (reject, "unsafe", Rejection),
    "failed": (fail, "no_longer_needed", Fulfillment),
    "expired": (lambda me, key: me.passes(60), "timeout", Expiry),
    "withdrawn": (lambda me, key: me.gives_up(key, "duplicate"), "duplicate", Withdrawal),
    "refused": (lambda me, key: me.refused(key.id), "no_longer_needed", GatewayRefused),
    "gone": (lambda me, key: (me.left("alice"), me.passes(30)), "no_longer_needed", Gone),
}


@pytest.mark.rule("4.15.withdrawn")
@pytest.mark.parametrize("end", BAD_ENDS)
def test_bad_end_withdraws_the_dependents_in_their_order(me: Peer, end: str) -> None:
    ends, code, kind = BAD_ENDS[end]
    first = me.begins_proposal(to=("alice",))
    second = needs(me, first)
    third = needs(me, second)
    other = needs(me, first)
    before = len(me.effects)
    ends(me, first)
    effects = me.effects[before:]
    assert isinstance(woken(effects)[first], kind)
    assert list(woken(effects)) == [first, second, other, third]
    for key in (second, other, third):
        ending = me.ended(key, Withdrawal)
        assert (ending.by, ending.reason) == (me.name, code)
        assert ending.cause.chain[0].id in (first.id, second.id)
    assert {step.id for step in me.ended(third, Withdrawal).cause.chain} >= {first.id, second.id}
    withdrawn = {name for each in said(effects, kinds.MCP_WITHDRAW) for name in each.correlation}
    assert withdrawn <= {first.id}, "no participant has heard of the others"
    assert me.table.waiting == 0


@pytest.mark.rule("4.15.withdrawn")
def test_an_ending_that_is_known_already_is_taken(me: Peer) -> None:
    first = me.begins_proposal(to=("alice",))
    me.reject("alice", first.id, "unsafe")
    key = needs(me, first)
    assert me.ended(key, Withdrawal).reason == "unsafe"
    assert not offered(me, key)
    ended = Fulfillment("long ago", "bob", "tool", OK)  # the caller knows it
    key = me.begins_proposal(sent=False, deadline=None, depends_on={"long ago": ended})
    assert offered(me, key)
    late = me.begins_proposal(sent=False, deadline=None, depends_on={"long ago": Unsent("over")})
    assert isinstance(me.ending(late), Withdrawal)


@pytest.mark.rule("4.15.cycles")
def test_cycles_and_what_is_no_proposal_of_ours_are_refused(me: Peer) -> None:
    me.proposal("alice", "a1")
    request = me.begins_request(to=("tool",))
    first = me.begins_proposal()
    for name in ("a1", request.id, "unknown", ""):
        with pytest.raises(UsageError, match="no proposal"):
            me.begins_proposal(sent=False, depends_on={name: None})
    second = needs(me, first)
    third = needs(me, second)
    draft = me.own(first).envelope
    for name in (first.id, second.id, third.id):
        # The first one's id is used again.
        with pytest.raises(UsageError, match="depend on itself"):
            me.table.open(draft, now=me.now, deadline=None, depends_on={name: None})
    assert me.table.waiting == 4
    assert me.is_waiting(second)


@pytest.mark.rule("4.15.bounded")
def test_dependencies_are_bounded(me: Peer) -> None:
    first = me.begins_proposal(to=("alice",))
    many = {f"p{number}": None for number in range(MAX_DEPENDENCIES + 1)}
    with pytest.raises(UsageError, match="at most 64"):
        me.begins_proposal(sent=False, depends_on=many)
    key = first
    for _ in range(MAX_BLOCKED):
        key = needs(me, key)
    with pytest.raises(UsageError, match="wait already"):
        needs(me, first)
    # A chain as long as that ends in one step, without a stack of its own length.
    me.reject("alice", first.id, "unsafe")
    assert me.table.waiting == 0
    assert me.ended(key, Withdrawal).reason == "unsafe"
    assert needs(me, me.begins_proposal()) is not None


@pytest.mark.rule("4.15.reconnect")
def test_end_of_the_session_ends_each_once(me: Peer) -> None:
    first = me.begins_proposal()
    second = needs(me, first)
    third = needs(me, second)
    me.did(me.table.stopped("the gateway has closed", me.now))
    assert me.table.waiting == 0
    assert isinstance(me.ending(third), Withdrawal)
    unsent = me.begins_proposal(sent=False)
    needs(me, unsent)
    me.did(me.table.close(Cause("no_longer_needed", me.name), me.now))
    assert me.table.waiting == 0


@pytest.mark.rule("4.15.cycles")
def test_envelopes_about_what_was_not_offered_change_nothing(me: Peer) -> None:
    first = me.begins_proposal()
    key = needs(me, first)
    me.sees_fulfilled(key.id, "r1")
    me.reject("alice", key.id)
    me.refused(key.id)
    me.withdraw(me.name, key.id)
    me.response("bob", key.id, to=(me.name,))
    assert me.table.is_blocked(key)
    assert not offered(me, key)


@pytest.mark.rule("4.15.withdrawn")
@pytest.mark.parametrize("joint", [True, False])
def test_withdrawing_all_takes_as_many_envelopes_as_it_must(me: Peer, joint: bool) -> None:
    sent = [me.begins_proposal() for _ in range(70)]
    unsent = me.begins_proposal(sent=False)
    blocked = needs(me, sent[0])
    kept = me.begins_proposal()
    before = len(me.effects)
    keys = [key for key, _ in me.table.open_proposals() if key != kept]
    assert keys == [*sent, unsent, blocked]
    cause = Cause("policy", me.name, at=me.now)
    me.did(me.table.withdraw_all(keys, cause, me.now, joint=joint))
    withdraws = said(me.effects[before:], kinds.MCP_WITHDRAW)
    assert [len(each.correlation) for each in withdraws] == ([64, 6] if joint else [1] * 70)
    assert [name for each in withdraws for name in each.correlation] == [key.id for key in sent]
    assert all(each.payload == {"reason": "policy"} for each in withdraws)
    for key in keys:
        assert me.ended(key, Withdrawal).reason == "policy"
    assert me.is_waiting(kept)
    onlooker = Peer.among(me.name, name="onlooker")
    for key in sent:
        onlooker.receives(me.own(key).envelope)
    for each in withdraws:
        onlooker.receives(each)
    states = {onlooker.record(me.name, key.id).state for key in sent}
    assert states == {ProposalState.WITHDRAWN}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_ends_nothing_is_sent_before_what_it_depends_on(data: st.DataObject) -> None:
    """Random graphs and ends: each is offered after all of its needs, or withdrawn, never both."""
    me = Peer.among("alice", "bob", "tool")
    keys: list[Key] = []
    edges: dict[Key, list[Key]] = {}
    for number in range(data.draw(st.integers(1, 12))):
        chosen = data.draw(st.lists(st.sampled_from(keys), max_size=3)) if keys else []
        if number and chosen:
            key = needs(me, *dict.fromkeys(chosen))
        else:
            chosen, key = [], me.begins_proposal(to=("alice",))
        keys.append(key)
        edges[key] = list(dict.fromkeys(chosen))
        _advance(me, data, keys, edges)
    for _ in range(20):
        _advance(me, data, keys, edges)
    for key in keys:
        if me.table.is_blocked(key):
            assert any(not _done(me, each) for each in edges[key])


def _done(me: Peer, key: Key) -> bool:
    ending = woken(me.effects).get(key)
    return isinstance(ending, Fulfillment) and not ending.is_error


def _advance(me: Peer, data: st.DataObject, keys: list[Key], edges: dict[Key, list[Key]]) -> None:
    for key in keys:
        if offered(me, key):
            assert all(_done(me, each) for each in edges[key])
            if me.table.is_open(key) and not me.table.is_sent(key):
                leaves(me, key)
        ended = woken(me.effects).get(key)
        if any(each in woken(me.effects) and not _done(me, each) for each in edges[key]):
            assert isinstance(ended, Withdrawal)
            assert not offered(me, key)
    alive = [key for key in keys if me.table.is_sent(key)]
    if alive:
        key = data.draw(st.sampled_from(alive))
        match data.draw(st.sampled_from(["fulfill", "fulfill", "reject", "give up", "fail"])):
            case "fulfill":
                fulfills(me, key)
            case "reject":
                me.reject("alice", key.id)
                me.reject("bob", key.id)
                me.reject("tool", key.id)
            case "give up":
                me.gives_up(key)
            case _:
                fail(me, key)
