"""Absence: what ends when no participant is left that could answer (PROTOCOL 4.6)."""

import pytest

from meup_agent import Expiry, Gone, Rejection, Wait
from meup_agent.errors import ProposalExpired
from tests.protocol.exchange.peer import MAY_CALL, MAY_PROPOSE, Peer, said
from tests.wire import ASIDE, kinds, payloads, raise_for


@pytest.mark.rule("4.6.nobody_may", "4.6.later")
def test_a_broadcast_that_nobody_may_fulfill_ends_unless_its_caller_waits_on() -> None:
    me = Peer.among("alice", capabilities=MAY_PROPOSE)
    short, key = me.begins_proposal(deadline=5), me.begins_proposal(deadline=300)
    on, later = (me.begins_proposal(deadline=300, wait=w) for w in (Wait.DEADLINE, Wait.LATER))
    me.passes(5)
    with pytest.raises(ProposalExpired, match="expired: nobody here may call write; a participant"):
        raise_for(me.ended(short, Expiry))
    me.passes(24)
    assert me.is_waiting(key)
    effects = me.passes(1)
    ending = me.ended(key, Gone)
    assert ending == Gone(key.id, (), ending.missing)
    assert str(ending).startswith("nobody here may call write; a participant that decides could, ")
    assert len(said(effects, kinds.MCP_WITHDRAW)) == 1
    me.passes(269)
    assert me.is_waiting(on)
    assert me.is_waiting(later)
    me.joined("carol")
    me.reject("carol", later.id, "unsafe")
    assert me.ended(later, Rejection).by == "carol"
    me.passes(1)
    assert isinstance(me.ending(on), Expiry)


@pytest.mark.rule("4.6.nobody_may")
def test_it_is_counted_anew_with_each_who_joins_and_from_the_last_who_leaves() -> None:
    me = Peer.among("alice", capabilities=MAY_PROPOSE)
    key = me.begins_proposal(deadline=300)
    me.passes(20)
    me.joined("carol", MAY_PROPOSE)
    me.passes(20)
    me.joined("bob", MAY_CALL)
    me.passes(100)
    me.left("bob")
    me.passes(20)
    me.left("carol")
    me.passes(9)
    assert me.is_waiting(key)
    me.passes(1)
    assert me.ended(key, Gone).missing is not None


@pytest.mark.rule("4.6.nobody_may")
def test_where_the_gateway_announces_nothing_it_waits_for_its_deadline() -> None:
    me = Peer.among("alice", capabilities=())
    key = me.begins_proposal(deadline=300)
    me.passes(299)
    assert me.is_waiting(key)
    me.passes(1)
    assert isinstance(me.ending(key), Expiry)


@pytest.mark.rule("4.6.nobody_may")
def test_while_it_is_carried_out_its_fulfiller_is_waited_for() -> None:
    me = Peer.among("bob", "tool")
    key = me.begins_proposal(deadline=300)
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.joined("bob", MAY_PROPOSE)
    me.joined("tool", MAY_PROPOSE)
    me.passes(100)
    assert me.is_waiting(key)


@pytest.mark.rule("3.beside.own")
def test_a_participant_beside_is_waited_for_by_a_question_about_its_own_call() -> None:
    me = Peer.among("tool")
    beside = {"id": "client", "capabilities": [], ASIDE: True}
    me.system(kinds.SYSTEM_PRESENCE, {"event": "join", "participant": beside})
    question = me.begins_request(("client",), meta={payloads.ASKED_IN_REQUEST: "c1"}, deadline=300)
    call = me.begins_request(("client",), deadline=300)
    me.passes(100)
    assert isinstance(me.ending(call), Gone)
    assert me.is_waiting(question)
    me.left("client")
    me.passes(30)
    assert isinstance(me.ending(question), Gone)
