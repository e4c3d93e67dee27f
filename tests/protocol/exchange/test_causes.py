"""Causes of what ends, and their chain over several hops (PROTOCOL 4.12, 6)."""

from __future__ import annotations

import pytest

from meup_agent.types import Cause, CauseStep
from tests.protocol.exchange.peer import (
    Peer,
    cancelled,
    cancels_said,
    said,
)
from tests.tables import Key, ProposalKey
from tests.wire import MAX_CHAIN, payloads


@pytest.mark.rule("4.12.unchosen")
def test_reasons_that_no_caller_chose(me: Peer) -> None:
    expiring = me.begins_proposal(deadline=1.0)
    (withdraw,) = said(me.passes(1))
    assert (withdraw.correlation, withdraw.payload["reason"]) == ((expiring.id,), "timeout")
    left = me.begins_proposal(to=("bob",))
    me.left("bob")
    (withdraw,) = said(me.passes(30))
    assert (withdraw.correlation, withdraw.payload["reason"]) == ((left.id,), "no_longer_needed")


@pytest.mark.rule("4.12.cascade", "6.cause")
def test_a_cascade_keeps_its_code_and_tells_its_chain_over_three_hops() -> None:
    proposer, fulfiller, tool, fourth = Peer("p"), Peer("f"), Peer("t"), Peer("x")
    for peer in (proposer, fulfiller, tool, fourth):
        peer.welcomed("p", "f", "t", "x")
    proposal = proposer.begins_proposal(to=("f",))
    fulfiller.proposal("p", proposal.id, to=("f",))
    deciding = Key("in", "p", proposal.id)
    request = fulfiller.begins_request(
        ("t",), parent=deciding, fulfills=ProposalKey("p", proposal.id)
    )
    tool.request("f", request.id, to=("t",))
    working = Key("in", "f", request.id)
    further = tool.begins_request(("x",), parent=working)
    fourth.request("t", further.id, to=("x",))

    (withdraw,) = said(proposer.gives_up(proposal, "policy"))
    at_fulfiller = fulfiller.receives(withdraw)
    at_tool = tool.receives(cancels_said(at_fulfiller)[0])
    at_fourth = fourth.receives(cancels_said(at_tool)[0])

    first = CauseStep("p", proposal.id, "policy")
    second = CauseStep("f", request.id, "policy")
    third = CauseStep("t", further.id, "policy")
    assert cancelled(at_fulfiller)[deciding].chain == (first,)
    assert cancelled(at_tool)[working].chain == (second, first)
    cause = cancelled(at_fourth)[Key("in", "t", further.id)]
    assert cause.chain == (third, second, first)
    assert (cause.code, cause.by, cause.id) == ("policy", "t", further.id)


@pytest.mark.rule("6.cause")
def test_a_chain_has_at_most_eight_links_and_the_cancel_goes_on_without_it(me: Peer) -> None:
    chain = tuple(CauseStep(f"n{number}", f"r{number}", "policy") for number in range(MAX_CHAIN))
    for length, carried in [(MAX_CHAIN - 1, True), (MAX_CHAIN, False)]:
        key = me.begins_request()
        cause = Cause("policy", "n0", "", "r0", 0.0, chain[:length])
        (cancel,) = said(me.did(me.table.give_up(key, cause, me.now)))
        params = cancel.payload["params"]
        assert params["reason"] == "policy"
        if carried:
            links = params["_meta"][payloads.CAUSE]
            assert len(links) == MAX_CHAIN
            assert links[0] == {"by": "me", "id": key.id, "reason": "policy", "text": ""}
        else:
            assert "_meta" not in params


@pytest.mark.rule("6.cause")
def test_a_withdraw_carries_no_chain(me: Peer) -> None:
    key = me.begins_proposal()
    cause = Cause("policy", "x", "", "y", 0.0, (CauseStep("x", "y", "policy"),))
    (withdraw,) = said(me.did(me.table.give_up(key, cause, me.now)))
    assert withdraw.payload == {"reason": "policy"}
