"""Requests that an executor starts or refuses, however they were addressed (PROTOCOL 4.4)."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from meup_agent import Limits
from tests.protocol.exchange.peer import CALL, Peer, dropped, said, started
from tests.protocol.exchange.test_resolution import meta_of, refusals
from tests.tables import MAX_FULFILLMENTS, MAX_PROPOSALS, Key, Role
from tests.wire import OURS, exchange, kinds, payloads

TO: list[tuple[str, ...]] = [("me",), (), ("me", "tool")]
ADDRESSED = pytest.mark.parametrize("to", TO, ids=["addressed", "without to", "two"])
REFUSAL = {"code": -32000, "message": "refused", "data": {"reason": "refused"}}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def starts(effects: list[Any]) -> list[Key]:
    return started(effects, Role.REQUEST)


@pytest.mark.rule("4.4.every_path")
def test_every_role_is_in_the_list_and_one_line_starts_handlers() -> None:
    assert all(f"``{role}``" in str(exchange.__doc__) for role in Role)
    sources = [each.read_text() for each in Path(str(exchange.__file__)).parent.glob("*.py")]
    assert sum(source.count("Start(") - source.count("class Start(") for source in sources) == 1
    assert sum(source.count("InboundEvent.START") for source in sources) == 1


@ADDRESSED
@pytest.mark.rule("4.4.executor_refuses", "4.4.flood")
def test_a_repeat_is_not_run_however_late(me: Peer, to: tuple[str, ...]) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "b1", fulfills="p1", to=to)
    me.returns(Key("in", "bob", "b1"))
    for number in range(1100):
        me.request("bob", f"x{number}", method="ping")
        me.returns(Key("in", "bob", f"x{number}"))
    me.passes(600)
    effects = me.request("bob", "b1", fulfills="p1", to=to)
    assert (starts(effects), dropped(effects)) == ([], ["duplicate_request"])
    again = me.request("bob", "b1", fulfills="p1", to=to, ts="2026-01-01T00:01:00.000Z")
    assert (starts(again), refusals(again)) == ([], ["b1"])


@ADDRESSED
@pytest.mark.rule("4.4.executor_refuses", "4.4.at_its_start", "4.2.expiry")
@pytest.mark.parametrize(("seconds", "runs"), [(61, False), (59, True)])
def test_what_is_certainly_expired_is_refused(
    to: tuple[str, ...], seconds: int, runs: bool
) -> None:
    """Where no gateway does that."""
    moments = [NOW]
    me = Peer.among("alice", "bob", "carol", wall_clock=lambda: moments[0])
    me.proposal("alice", "p1", params={**CALL, "_meta": {payloads.EXPIRES_AT: NOW.isoformat()}})
    moments[0] += timedelta(seconds=seconds)
    effects = me.request("bob", "b1", fulfills="p1", to=to)
    assert bool(starts(effects)) is runs
    assert refusals(effects) == ([] if runs else ["b1"])


@ADDRESSED
@pytest.mark.rule("4.4.executor_refuses", "4.4.others_rejects")
def test_only_our_own_rejection_stops_us(to: tuple[str, ...]) -> None:
    me = Peer.among("alice", "bob", gives=OURS)
    for number in (1, 2, 3):
        me.proposal("alice", f"p{number}")
    me.reject("carol", "p1")
    me.rejects("alice", "p2")
    me.reject("me", "p3")  # as a sibling of ours does
    assert len(starts(me.request("bob", "b1", fulfills="p1", to=to))) == 1
    for number in (2, 3):
        effects = me.request("bob", f"b{number}", fulfills=f"p{number}", to=to)
        assert (starts(effects), refusals(effects)) == ([], [f"b{number}"])


@ADDRESSED
@pytest.mark.rule("4.4.executor_refuses")
@pytest.mark.parametrize(
    ("reasons", "runs"), [(["unsafe"], 0), (["incapable"], 1), (["incapable", "unsafe"], 0)]
)
def test_one_that_rejected_carries_nothing_out(
    me: Peer, to: tuple[str, ...], reasons: list[str], runs: int
) -> None:
    """From another tab, say; one whose agent has no handler may have a person."""
    me.proposal("alice", "p1")
    for reason in reasons:
        me.reject("bob", "p1", reason)
    effects = me.request("bob", "b1", fulfills="p1", to=to)
    assert (len(starts(effects)), len(refusals(effects))) == (runs, 1 - runs)


@pytest.mark.rule("4.4.executor_refuses", "4.4.incapable")
def test_who_has_no_handler_to_decide_with_may_have_the_tool() -> None:
    me = Peer.among("alice", "bob", roles=(Role.REQUEST,))
    (reject,) = said(me.proposal("alice", "p1", to=("me",)), kinds.MCP_REJECT)
    assert reject.payload["reason"] == "incapable"
    assert len(starts(me.request("bob", "b1", fulfills="p1"))) == 1


@pytest.mark.rule("4.4.executor_refuses", "4.4.without_to", "4.2.refusal_completes_nothing")
@pytest.mark.parametrize(("to", "refuser"), [((), "mallory"), (("tool",), "bob")])
def test_a_refusal_by_who_does_not_carry_it_out_frees_nothing(
    me: Peer, to: tuple[str, ...], refuser: str
) -> None:
    me.proposal("alice", "p1")
    assert len(starts(me.request("bob", "b1", fulfills="p1", to=to))) == (0 if to else 1)
    me.response(refuser, "b1", to=("bob",), error=REFUSAL)
    assert refusals(me.request("carol", "c1", fulfills="p1", to=())) == ["c1"]


@pytest.mark.rule("4.4.executor_refuses", "4.2.refusal_completes_nothing")
def test_one_refusal_of_several_frees_nothing(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("carol", "c1", fulfills="p1", to=("tool", "other"))
    me.response("tool", "c1", to=("carol",), error=REFUSAL)
    me.response("tool", "c1", to=("carol",), error=REFUSAL)
    assert refusals(me.request("bob", "b1", fulfills="p1")) == ["b1"]
    me.response("other", "c1", to=("carol",), error=REFUSAL)
    assert len(starts(me.request("bob", "b2", fulfills="p1"))) == 1


@pytest.mark.rule("4.4.executor_refuses")
def test_a_proposer_does_not_fulfill_its_own_proposal(me: Peer) -> None:
    me.proposal("alice", "p1")
    assert refusals(me.request("alice", "a1", fulfills="p1")) == ["a1"]


@pytest.mark.rule("4.4.executor_refuses")
def test_requests_without_end_do_not_hide_one_that_ran(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "b1", fulfills="p1")
    me.returns(Key("in", "bob", "b1"))
    for number in range(MAX_FULFILLMENTS + 5):
        me.request("mallory", f"m{number}", fulfills="p1", to=("tool",))
        me.cancel("mallory", f"m{number}", to=("tool",))
    assert refusals(me.request("carol", "c1", fulfills="p1")) == ["c1"]
    assert len(me.record("alice", "p1").fulfillments) <= MAX_FULFILLMENTS


@pytest.mark.rule("4.4.one_proposal")
@ADDRESSED
def test_a_request_that_names_two_proposals_fulfills_none(me: Peer, to: tuple[str, ...]) -> None:
    me.proposal("alice", "p1")
    me.proposal("alice", "p2")
    body = payloads.request("tools/call", CALL, "b1")
    effects = me.hears(
        kinds.MCP_REQUEST, body, sender="bob", id="b1", to=to, correlation=("p1", "p2")
    )
    assert (starts(effects), refusals(effects)) == ([], ["b1"])
    assert {me.record("alice", each).state for each in ("p1", "p2")} == {"pending"}


@pytest.mark.rule("4.4.without_to")
@pytest.mark.parametrize(
    ("target", "asked", "begins"),
    [
        ("me", (), True),
        ("tool", (), False),
        ("me", ("tool",), True),
        (None, ("me",), True),
        (None, ("tool",), False),
        (None, ("tool", "bob"), False),
        (None, ("me", "bob"), True),
        (None, ("bob",), True),
        (None, (), True),
    ],
)
def test_without_to_it_begins_where_the_proposal_says(
    me: Peer, target: str | None, asked: tuple[str, ...], begins: bool
) -> None:
    meta = {} if target is None else {"_meta": {payloads.TARGET: target}}
    me.proposal("alice", "p1", to=asked, params={**CALL, **meta})
    effects = me.request("bob", "b1", fulfills="p1", to=())
    assert bool(starts(effects)) is begins
    assert refusals(effects) == []


@pytest.mark.rule("4.4.without_to", "5.who.response")
def test_without_to_only_who_carries_it_out_answers(me: Peer) -> None:
    key = me.begins_proposal(params={**CALL, "_meta": {payloads.TARGET: "tool"}})
    me.request("bob", "b1", fulfills=key.id, to=())
    me.response("mallory", "b1", to=("bob",))
    assert me.is_waiting(key)
    me.response("tool", "b1", to=("bob",))
    assert me.own(key).state == "fulfilled"


@pytest.mark.rule("4.4.without_to")
def test_without_to_who_does_not_have_the_tool_is_silent() -> None:
    me = Peer.among("alice", "bob", roles=(Role.PROPOSAL,))
    me.proposal("alice", "p1")
    me.withdraw("alice", "p1")
    assert said(me.request("bob", "b1", fulfills="p1", to=())) == []


@pytest.mark.rule("4.4.at_its_start", "4.4.early")
@pytest.mark.parametrize("early", [False, True])
@ADDRESSED
def test_what_is_withdrawn_while_it_waits_does_not_begin(to: tuple[str, ...], early: bool) -> None:
    me = Peer.among("alice", "bob", limits=Limits(handlers=1))
    me.request("alice", "a1")
    if not early:
        me.proposal("alice", "p1")
    assert starts(me.request("bob", "b1", fulfills="p1", to=to)) == []
    if early:
        me.proposal("alice", "p1")
    me.withdraw("alice", "p1")
    effects = me.returns(Key("in", "alice", "a1"))
    assert (starts(effects), refusals(effects)) == ([], ["b1"])


@pytest.mark.rule("4.4.at_its_start", "4.2.expiry.accepted_before")
def test_what_was_asked_for_in_time_begins_although_it_waits_beyond_that() -> None:
    moments = [NOW]
    me = Peer.among("alice", "bob", limits=Limits(handlers=1), wall_clock=lambda: moments[0])
    me.request("alice", "a1")
    expires = (NOW + timedelta(seconds=1)).isoformat()
    me.proposal("alice", "p1", params={**CALL, "_meta": {payloads.EXPIRES_AT: expires}})
    me.request("bob", "b1", fulfills="p1")
    moments[0] = NOW + timedelta(seconds=70)
    me.passes(70)
    me.returns(Key("in", "alice", "a1"))
    effects = me.returns(Key("in", "alice", "p1"))
    assert (starts(effects), refusals(effects)) == ([Key("in", "bob", "b1")], [])


@pytest.mark.rule("4.4.at_its_start")
def test_a_proposal_that_is_decided_while_it_waits_starts_no_handler() -> None:
    me = Peer.among("alice", "bob", "tool", limits=Limits(handlers=1))
    me.request("alice", "a1")
    me.proposal("alice", "p1")
    me.sees_fulfilled("p1")
    effects = me.returns(Key("in", "alice", "a1"))
    assert (started(effects), dropped(effects)) == ([], ["decided_before"])


@pytest.mark.rule("4.4.early", "5.tombstone")
@pytest.mark.parametrize("meta", [None, meta_of("alice")], ids=["says nothing", "says whose"])
@ADDRESSED
def test_a_withdrawal_that_came_before_everything_counts(
    me: Peer, to: tuple[str, ...], meta: dict[str, Any] | None
) -> None:
    me.withdraw("alice", "p1")
    effects = me.request("bob", "b1", fulfills="p1", to=to, meta=meta)
    assert (starts(effects), refusals(effects)) == ([], ["b1"])


@pytest.mark.rule("4.4.early")
def test_a_strangers_withdrawal_stops_nothing(me: Peer) -> None:
    me.withdraw("mallory", "p1")
    assert len(starts(me.request("bob", "b1", fulfills="p1", meta=meta_of("alice")))) == 1
    me.proposal("alice", "p2")
    me.withdraw("mallory", "p2")
    assert len(starts(me.request("bob", "b2", fulfills="p2"))) == 1


@pytest.mark.rule("4.4.early")
@ADDRESSED
def test_a_request_before_its_proposal_is_its_fulfillment(me: Peer, to: tuple[str, ...]) -> None:
    assert len(starts(me.request("bob", "b1", fulfills="p1", to=to))) == 1
    me.proposal("alice", "p1")
    assert me.record("alice", "p1").in_progress_by == "bob"
    assert refusals(me.request("carol", "c1", fulfills="p1", to=to)) == ["c1"]
    me.returns(Key("in", "bob", "b1"))
    assert refusals(me.request("carol", "c2", fulfills="p1", to=to)) == ["c2"]


@pytest.mark.rule("4.4.early", "4.4.at_its_start")
def test_of_two_early_requests_of_one_sender_the_first_is_remembered() -> None:
    me = Peer.among("alice", "bob", limits=Limits(handlers=1))
    assert len(starts(me.request("bob", "b1", fulfills="p1"))) == 1
    me.request("bob", "b2", fulfills="p1")  # queued: whose proposal it means is not known yet
    me.proposal("alice", "p1", to=("nobody",))
    effects = me.returns(Key("in", "bob", "b1"))
    assert (starts(effects), refusals(effects)) == ([], ["b2"])


@pytest.mark.rule("4.4.one_proposal", "6.said_again")
@pytest.mark.parametrize("ends", [False, True])
def test_an_approval_whose_id_was_used_again_is_used_once(me: Peer, ends: bool) -> None:
    me.proposal("alice", "p1")
    me.request("bob", "b1", fulfills="p1", ts="2026-01-01T00:00:01Z")
    if ends:
        me.returns(Key("in", "bob", "b1"))
    me.request("bob", "b1", method="tools/list", ts="2026-01-01T00:00:02Z")
    me.proposal("alice", "p1", ts="2026-01-01T00:00:03Z")  # the same call, made anew
    effects = me.request("bob", "b1", fulfills="p1", ts="2026-01-01T00:00:01Z")
    assert (starts(effects), dropped(effects)) == ([], ["duplicate_request"])
    assert len(starts(me.request("bob", "b1", fulfills="p1", ts="2026-01-01T00:00:04Z"))) == 1


@pytest.mark.rule("4.4.early")
def test_a_proposal_that_was_carried_out_before_it_came_starts_nothing(me: Peer) -> None:
    me.request("bob", "b1", fulfills="p1")
    me.returns(Key("in", "bob", "b1"))
    effects = me.proposal("alice", "p1")
    assert (started(effects), dropped(effects)) == ([], ["decided_before"])
    assert me.record("alice", "p1").state == "fulfilled"


@pytest.mark.rule("4.4.early")
def test_of_a_proposal_that_we_never_see_one_fulfillment_runs(me: Peer) -> None:
    assert len(starts(me.request("bob", "b1", fulfills="p1", meta=meta_of("alice")))) == 1
    assert refusals(me.request("carol", "c1", fulfills="p1", meta=meta_of("alice"))) == ["c1"]
    assert refusals(me.request("carol", "c2", fulfills="p1")) == ["c2"]
    assert len(starts(me.request("carol", "c3", fulfills="p1", meta=meta_of("dora")))) == 1


@pytest.mark.rule("4.4.early", "5.tombstone")
@pytest.mark.parametrize("first", ["withdrawn", "copied", "carried out"])
def test_a_copy_does_not_stand_in_for_what_was_decided_unseen(me: Peer, first: str) -> None:
    if first == "withdrawn":
        me.withdraw("alice", "p1")
    elif first == "carried out":
        me.request("bob", "b0", fulfills="p1", meta=meta_of("alice"))
        me.returns(Key("in", "bob", "b0"))
    me.proposal("mallory", "p1")
    if first == "copied":
        me.withdraw("alice", "p1")
    meant = me.request("bob", "b1", fulfills="p1", meta=meta_of("alice"))
    assert (starts(meant), refusals(meant)) == ([], ["b1"])
    assert len(starts(me.request("bob", "b2", fulfills="p1", meta=meta_of("mallory")))) == 1


@pytest.mark.rule("4.4.early")
def test_requests_that_refer_to_something_else_are_not_fulfillments(me: Peer) -> None:
    assert len(starts(me.request("bob", "b1", fulfills="a chat"))) == 1
    assert len(starts(me.request("carol", "c1", fulfills="a chat"))) == 1


@pytest.mark.thorough
@pytest.mark.rule("4.4.flood")
def test_a_flood_of_bytes_pushes_out_its_own(me: Peer) -> None:
    me.proposal("alice", "p1")
    me.withdraw("alice", "p1")
    large = {"name": "write", "arguments": {"text": "x" * 2_000_000}}
    for number in range(40):
        me.proposal("mallory", f"m{number}", to=("nobody",), params=large)
    assert refusals(me.request("bob", "b1", fulfills="p1")) == ["b1"]


@pytest.mark.rule("4.4.flood", "5.memory.open_is_kept")
def test_what_runs_is_not_forgotten_by_its_proposers_own_flood(me: Peer) -> None:
    me.proposal("alice", "p1", to=("nobody",))
    me.request("bob", "b1", fulfills="p1")
    for number in range(MAX_PROPOSALS + 10):
        me.proposal("alice", f"x{number}", to=("nobody",))
    assert refusals(me.request("carol", "c1", fulfills="p1")) == ["c1"]
