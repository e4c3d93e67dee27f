"""Absence: what ends when no participant is left that could answer (PROTOCOL 4.6)."""

from typing import Any

import pytest

from meup_agent import Expiry, Gone, Rejection, Wait
from meup_agent.errors import ProposalExpired
from tests.protocol.exchange.peer import MAY_CALL, MAY_PROPOSE, Peer, said
from tests.wire import kinds, raise_for


@pytest.mark.rule("4.6.nobody_may")
def test_a_broadcast_proposal_that_no_present_participant_may_fulfill_ends() -> None:
    me = Peer.among("alice", capabilities=MAY_PROPOSE)
    key = me.begins_proposal(deadline=300)
    me.passes(29)
    assert me.is_waiting(key)
    effects = me.passes(1)
    ending = me.ended(key, Gone)
    assert ending == Gone(key.id, (), ending.missing)
    assert str(ending).startswith("nobody here may call write; a participant that decides could, ")
    assert len(said(effects, kinds.MCP_WITHDRAW)) == 1


@pytest.mark.rule("4.6.nobody_may")
def test_a_shorter_wait_tells_it_at_its_deadline() -> None:
    me = Peer.among("alice", capabilities=MAY_PROPOSE)
    key = me.begins_proposal(deadline=5)
    me.passes(5)
    ending = me.ended(key, Expiry)
    with pytest.raises(ProposalExpired, match="expired: nobody here may call write; a participant"):
        raise_for(ending)


@pytest.mark.rule("4.6.later")
def test_a_caller_may_wait_for_those_who_are_still_to_come() -> None:
    me = Peer.among("alice", capabilities=MAY_PROPOSE)
    key = me.begins_proposal(deadline=300, wait=Wait.LATER)
    me.passes(60)
    assert me.is_waiting(key)
    me.joined("carol")
    me.reject("carol", key.id, "unsafe")
    ending = me.ended(key, Rejection)
    assert ending.by == "carol"


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
    ending = me.ended(key, Gone)
    assert ending.missing is not None


@pytest.mark.rule("4.6.nobody_may")
@pytest.mark.parametrize(
    ("wait", "listed"),
    [(Wait.DEADLINE, list(MAY_PROPOSE)), (Wait.ADDRESSED, list[dict[str, Any]]())],
    ids=["the caller says so", "the gateway announces nothing"],
)
def test_it_waits_for_its_deadline(wait: Wait, listed: list[dict[str, Any]]) -> None:
    me = Peer.among("alice", capabilities=listed)
    key = me.begins_proposal(deadline=300, wait=wait)
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
