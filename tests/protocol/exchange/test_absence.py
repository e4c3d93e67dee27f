"""Absence: what ends when no participant is left that could answer (PROTOCOL 4.6)."""

from __future__ import annotations

from typing import Any

import pytest

from meup_agent import Expiry, Gone, Rejection, Wait
from meup_agent.errors import ProposalExpired
from tests.protocol.exchange.peer import (
    MAY_CALL,
    MAY_PROPOSE,
    Peer,
    said,
)
from tests.wire import kinds, raise_for


@pytest.mark.rule("4.6.gone")
def test_the_wait_ends_when_all_have_been_absent_for_half_a_minute(me: Peer) -> None:
    key = me.begins_request(to=("alice", "bob"), deadline=None)
    me.left("alice")
    me.passes(100)
    assert me.is_waiting(key)
    me.left("bob")
    me.passes(29)
    assert me.is_waiting(key)
    me.passes(1)
    assert me.ending(key) == Gone(key.id, ("alice", "bob"))


@pytest.mark.rule("4.6.gone")
def test_one_who_comes_back_in_time_is_not_gone(me: Peer) -> None:
    key = me.begins_request(to=("alice",), deadline=None)
    me.left("alice")
    me.passes(29)
    me.joined("alice")
    me.passes(100)
    assert me.is_waiting(key)


@pytest.mark.rule("4.6.from_our_welcome")
def test_absence_is_counted_anew_from_our_own_welcome(me: Peer) -> None:
    key = me.begins_request(to=("alice",), deadline=None)
    me.left("alice")
    me.passes(25)
    me.loses_connection()
    me.passes(100)
    assert me.is_waiting(key)
    me.welcomed("bob")
    me.passes(29)
    assert me.is_waiting(key)
    me.passes(1)
    assert me.ending(key) == Gone(key.id, ("alice",))


@pytest.mark.rule("4.6.from_our_welcome")
def test_a_second_welcome_is_an_update_and_no_new_beginning(me: Peer) -> None:
    key = me.begins_request(to=("alice",), deadline=None)
    me.left("alice")
    me.passes(20)
    me.welcomed("bob")
    me.passes(10)
    assert me.ending(key) == Gone(key.id, ("alice",))


@pytest.mark.rule("4.6.gone")
def test_one_who_was_never_there_is_gone_half_a_minute_after_our_welcome(me: Peer) -> None:
    me.passes(10)
    key = me.begins_request(to=("nobody",), deadline=None)
    me.passes(19)
    assert me.is_waiting(key)
    me.passes(1)
    assert me.ending(key) == Gone(key.id, ("nobody",))


@pytest.mark.rule("4.6.gone")
def test_what_was_sent_after_they_left_ends_too(me: Peer) -> None:
    me.left("alice")
    me.passes(25)
    key = me.begins_request(to=("alice",), deadline=None, sent=False)
    me.passes(100)
    assert me.is_waiting(key)
    me.did(me.table.sent(key.id, me.now))
    me.passes(0)
    assert me.ending(key) == Gone(key.id, ("alice",))


@pytest.mark.rule("4.6.gone")
def test_of_a_proposal_in_progress_the_fulfiller_must_stay(me: Peer) -> None:
    key = me.begins_proposal(to=("alice",), deadline=None)
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.left("alice")
    me.passes(100)
    assert me.is_waiting(key)
    me.left("bob")
    effects = me.passes(30)
    assert me.ending(key) == Gone(key.id, ("bob",))
    (withdraw,) = said(effects)
    assert withdraw.to == ("alice", "bob")


@pytest.mark.rule("4.6.unattended")
@pytest.mark.parametrize("was_here", [False, True])
@pytest.mark.parametrize("wait", [Wait.ADDRESSED, Wait.LATER])
def test_of_a_fulfiller_over_http_the_executor_must_stay(
    me: Peer, wait: Wait, was_here: bool
) -> None:
    fulfiller = "bob" if was_here else "carol"
    me.left("bob")
    me.passes(100)
    key = me.begins_proposal(to=(), deadline=None, wait=wait)
    me.request(fulfiller, "b1", to=("tool",), fulfills=key.id)
    me.passes(100)
    assert me.is_waiting(key)
    me.left("tool")
    me.passes(30)
    assert me.ending(key) == Gone(key.id, ("tool",))


@pytest.mark.rule("4.6.gone")
def test_absence_is_not_counted_while_we_are_not_connected(me: Peer) -> None:
    key = me.begins_request(to=("alice",), deadline=None)
    me.left("alice")
    me.loses_connection()
    me.passes(1000)
    assert me.is_waiting(key)


@pytest.mark.rule("4.6.nobody_may")
def test_a_broadcast_proposal_that_no_present_participant_may_fulfill_ends() -> None:
    me = Peer()
    me.welcomed("alice", capabilities=MAY_PROPOSE)
    key = me.begins_proposal(deadline=300)
    me.passes(29)
    assert me.is_waiting(key)
    effects = me.passes(1)
    ending = me.ending(key)
    assert isinstance(ending, Gone)
    assert ending == Gone(key.id, (), ending.missing)
    assert str(ending).startswith("nobody here may call write; a participant that decides could, ")
    assert len(said(effects, kinds.MCP_WITHDRAW)) == 1


@pytest.mark.rule("4.6.nobody_may")
def test_a_shorter_wait_tells_it_at_its_deadline() -> None:
    me = Peer()
    me.welcomed("alice", capabilities=MAY_PROPOSE)
    key = me.begins_proposal(deadline=5)
    me.passes(5)
    ending = me.ending(key)
    assert isinstance(ending, Expiry)
    with pytest.raises(ProposalExpired, match="expired: nobody here may call write; a participant"):
        raise_for(ending)


@pytest.mark.rule("4.6.nobody_may")
def test_an_expiry_blames_no_capability_where_one_could_decide() -> None:
    me = Peer()
    me.welcomed("bob", capabilities=MAY_CALL)
    key = me.begins_proposal(deadline=5)
    me.passes(5)
    assert me.ending(key) == Expiry(key.id)


@pytest.mark.rule("4.6.later")
def test_a_caller_may_wait_for_those_who_are_still_to_come() -> None:
    me = Peer()
    me.welcomed("alice", capabilities=MAY_PROPOSE)
    key = me.begins_proposal(deadline=300, wait=Wait.LATER)
    me.passes(60)
    assert me.is_waiting(key)
    me.joined("carol")
    me.reject("carol", key.id, "unsafe")
    ending = me.ending(key)
    assert isinstance(ending, Rejection)
    assert ending.by == "carol"


@pytest.mark.rule("4.6.nobody_may")
def test_it_is_counted_anew_with_each_who_joins_and_from_the_last_who_leaves() -> None:
    me = Peer()
    me.welcomed("alice", capabilities=MAY_PROPOSE)
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
    ending = me.ending(key)
    assert isinstance(ending, Gone)
    assert ending.missing is not None


@pytest.mark.rule("4.6.nobody_may")
@pytest.mark.parametrize(
    ("wait", "listed"),
    [(Wait.DEADLINE, list(MAY_PROPOSE)), (Wait.ADDRESSED, list[dict[str, Any]]())],
    ids=["the caller says so", "the gateway announces nothing"],
)
def test_it_waits_for_its_deadline(wait: Wait, listed: list[dict[str, Any]]) -> None:
    me = Peer()
    me.welcomed("alice", capabilities=listed)
    key = me.begins_proposal(deadline=300, wait=wait)
    me.passes(299)
    assert me.is_waiting(key)
    me.passes(1)
    assert isinstance(me.ending(key), Expiry)


@pytest.mark.rule("4.6.nobody_may")
def test_while_it_is_carried_out_its_fulfiller_is_waited_for() -> None:
    me = Peer()
    me.welcomed("bob", "tool")
    key = me.begins_proposal(deadline=300)
    me.request("bob", "b1", to=("tool",), fulfills=key.id)
    me.joined("bob", MAY_PROPOSE)
    me.joined("tool", MAY_PROPOSE)
    me.passes(100)
    assert me.is_waiting(key)
