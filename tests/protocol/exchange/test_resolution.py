"""Several proposals under one id: exactly one is meant, or nothing runs (PROTOCOL 4.4)."""

from typing import Any

import pytest

from meup_agent import Fulfillment
from meup_agent.errors import AlreadyDecided
from meup_agent.protocol.proposals import MAX_EARLIER, MAX_SAME_ID
from meup_agent.types import Conflict
from tests.protocol.exchange.peer import CALL, EXCHANGES, Peer, dropped, of, said, started
from tests.tables import Key, ProposalKey, Role, Start
from tests.wire import kinds, payloads

OTHER: dict[str, Any] = {"name": "write", "arguments": {"path": "b.txt"}}
EDITED: dict[str, Any] = {"name": "write", "arguments": {"number": 60}}


def meta_of(
    proposer: str, params: dict[str, Any] = CALL, *, edited: bool = False
) -> dict[str, Any]:
    """The references that our own fulfillments carry."""
    digest = payloads.digest("tools/call", params, None)
    said = {} if digest is None else {payloads.DIGEST: digest}
    more = {payloads.EDITED: True} if edited else {}
    return {payloads.PROPOSER: proposer, **said, **more}


def refusals(effects: list[Any]) -> list[str]:
    return [
        envelope.correlation[0]
        for envelope in said(effects, kinds.MCP_RESPONSE)
        if payloads.is_refusal(envelope.payload)
    ]


@pytest.fixture
def copied(me: Peer) -> Peer:
    me.proposal("alice", "p1")
    me.proposal("mallory", "p1")
    me.effects.clear()
    return me


@pytest.mark.rule("4.4.says_whose", "4.4.ambiguous")
def test_a_request_that_says_whose_proposal_it_means_runs(copied: Peer) -> None:
    assert dropped(copied.reject("bob", "p1")) == ["ambiguous_reject"]
    assert [copied.record(by, "p1").rejections for by in ("alice", "mallory")] == [{}, {}]
    effects = copied.request("bob", "b1", fulfills="p1", meta=meta_of("mallory"))
    assert started(effects) == [Key("in", "bob", "b1")]
    assert copied.record("mallory", "p1").in_progress_by == "bob"
    assert copied.record("alice", "p1").state == "pending"


@pytest.mark.rule("4.4.says_whose")
def test_whose_it_is_counts_only_with_a_fitting_digest_or_edited(copied: Peer) -> None:
    said_only = {payloads.PROPOSER: "alice", payloads.DIGEST: "0" * 64}
    assert refusals(copied.request("bob", "b1", fulfills="p1", meta=said_only)) == ["b1"]
    lying = meta_of("alice")  # it has the digest of another call than it makes
    assert refusals(copied.request("bob", "b2", fulfills="p1", params=OTHER, meta=lying)) == ["b2"]
    edited = meta_of("alice", OTHER, edited=True)
    effects = copied.request("bob", "b3", fulfills="p1", params=OTHER, meta=edited)
    assert started(effects) == [Key("in", "bob", "b3")]
    assert copied.record("alice", "p1").in_progress_by == "bob"


@pytest.mark.rule("4.4.says_whose")
def test_a_proposer_who_is_not_known_under_the_id_does_not_count(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.withdraw("alice", "p1")
    ghost = meta_of("ghost", edited=True)
    assert refusals(me.request("bob", "b1", fulfills="p1", meta=ghost)) == ["b1"]
    assert refusals(me.request("bob", "b2", fulfills="p1", params=OTHER, meta=ghost)) == ["b2"]


@pytest.mark.rule("4.4.says_whose")
def test_the_digest_that_a_copied_id_claims_proves_nothing(me: Peer) -> None:
    me.proposal("alice", "p1")
    claim = {**OTHER, "_meta": meta_of("alice")}
    me.proposal("mallory", "p1", params=claim)
    # A terminal copies what the proposal says of itself into its request.
    effects = me.request("bob", "b1", fulfills="p1", params=OTHER, meta=meta_of("alice"))
    assert refusals(effects) == ["b1"]
    assert me.record("alice", "p1").state == "pending"


@pytest.mark.rule("4.4.ambiguous")
def test_an_id_that_very_many_have_used_is_still_their_proposers(me: Peer) -> None:
    for number in range(MAX_SAME_ID + 5):
        me.proposal(f"m{number}", "p1")
    last = f"m{MAX_SAME_ID + 4}"
    assert refusals(me.request("bob", "b1", fulfills="p1")) == ["b1"]
    assert len(started(me.request("bob", "b2", fulfills="p1", meta=meta_of(last)))) == 1
    assert me.record(last, "p1").in_progress_by == "bob"


@pytest.mark.rule("4.4.reused_id")
def test_after_reuse_only_the_digest_tells_which_is_meant(me: Peer) -> None:
    me.proposal("alice", "p1", params=CALL)
    me.proposal("alice", "p1", params=OTHER)
    with pytest.raises(AlreadyDecided, match="withdrawn"):  # of who read the first
        me.begins_request(fulfills=ProposalKey("alice", "p1"))
    older = me.request("bob", "b1", fulfills="p1", params=CALL, meta=meta_of("alice", CALL))
    assert refusals(older) == ["b1"]
    edited = meta_of("alice", EDITED, edited=True)
    assert refusals(me.request("bob", "b2", fulfills="p1", params=EDITED, meta=edited)) == ["b2"]
    newer = me.request("bob", "b3", fulfills="p1", params=OTHER, meta=meta_of("alice", OTHER))
    assert started(newer) == [Key("in", "bob", "b3")]


@pytest.mark.rule("4.4.reused_id")
@pytest.mark.parametrize("edited", [False, True])
def test_the_same_call_under_the_same_id_again_is_the_later_one(me: Peer, edited: bool) -> None:
    """Clients that count their ids propose the same again when they start anew."""
    me.proposal("alice", "p1", ts="2026-01-01T00:00:00.000Z")
    if not edited:
        me.withdraw("alice", "p1")
    me.proposal("alice", "p1", ts="2026-01-01T00:01:00.000Z")
    call = OTHER if edited else CALL
    meta = meta_of("alice", call, edited=edited)
    assert len(started(me.request("bob", "b1", fulfills="p1", params=call, meta=meta))) == 1
    assert me.record("alice", "p1").in_progress_by == "bob"


@pytest.mark.rule("4.4.reused_id")
def test_a_first_proposer_keeps_its_id_when_it_uses_it_again(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.proposal("mallory", "p1")
    me.proposal("alice", "p1", params=OTHER)
    assert Key("in", "alice", "p1", 1) in started(me.effects)
    assert Key("in", "mallory", "p1") not in started(me.effects)


@pytest.mark.rule("5.memory.bounded")
def test_of_an_id_that_is_used_again_and_again_the_latest_are_kept(me: Peer) -> None:
    for number in range(MAX_EARLIER + 5):
        me.proposal("alice", "p1", params={"name": "write", "arguments": {"n": number}})
        me.request("bob", f"b{number}", to=("tool",), fulfills="p1", meta=meta_of("alice"))
    earlier = me.record("alice", "p1").earlier
    assert len(earlier) == MAX_EARLIER
    assert [each.fulfillments for each in earlier] == [[]] * MAX_EARLIER


@pytest.mark.rule("4.4.copy_no_handler", "4.4.copy_told")
def test_no_handler_sees_a_copied_id_but_those_for_conflicts() -> None:
    me = Peer.among("alice", "mallory", roles=(*EXCHANGES, Role.CONFLICT))
    assert len(started(me.proposal("alice", "p1", to=("me",)))) == 1
    effects = me.proposal("mallory", "p1", to=("me",))
    assert (dropped(effects), said(effects)) == (["id_in_use"], [])
    (start,) = of(effects, Start)
    conflict = Conflict("p1", None, None, proposer="alice", copied_by="mallory")
    assert (start.work.role, start.work.subject) == (Role.CONFLICT, conflict)


@pytest.mark.rule("4.4.by_proposer")
def test_who_fulfills_a_copied_id_fulfills_nothing_of_ours(me: Peer) -> None:
    key = me.begins_proposal()
    me.proposal("mallory", key.id, params=OTHER)
    meta = meta_of("mallory", OTHER)
    me.request("bob", "b1", to=("tool",), fulfills=key.id, params=OTHER, meta=meta)
    me.response("tool", "b1", to=("bob",))
    assert me.is_waiting(key)
    assert me.own(key).state == "pending"
    assert me.record("mallory", key.id).state == "fulfilled"
    me.request("bob", "b2", to=("tool",), fulfills=key.id, meta=meta_of("me"))
    me.response("tool", "b2", to=("bob",))
    ending = me.ended(key, Fulfillment)
    assert ending.changes == ()


@pytest.mark.rule("4.4.by_proposer")
def test_a_response_that_may_answer_two_requests_answers_neither(copied: Peer) -> None:
    copied.request("bob", "1", to=("tool",), fulfills="p1", meta=meta_of("alice"))
    copied.request("carol", "1", to=("tool",), fulfills="p1", meta=meta_of("mallory"))
    copied.response("tool", "1", to=())
    assert copied.record("alice", "p1").in_progress_by == "bob"
    assert copied.record("mallory", "p1").in_progress_by == "carol"
    copied.response("tool", "1", to=("carol",))
    assert copied.record("alice", "p1").in_progress_by == "bob"
    assert copied.record("mallory", "p1").state == "fulfilled"


@pytest.mark.rule("4.4.by_proposer", "race.restarted_peer")
def test_a_response_to_an_id_that_its_requester_used_again_is_to_what_is_out(me: Peer) -> None:
    for number in (1, 2):
        me.proposal("alice", f"p{number}")
        me.request("bob", "1", to=("tool",), fulfills=f"p{number}")
        me.response("tool", "1", to=("bob",), result={"content": [number]})
        assert me.record("alice", f"p{number}").state == "fulfilled"
