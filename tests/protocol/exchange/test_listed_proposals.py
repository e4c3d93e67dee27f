"""Open proposals of before a participant came, as its exchange table reads them (PROTOCOL 4.6)."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meup_agent import Envelope, ProposalState
from meup_agent.errors import AlreadyDecided, ParticipantGone
from tests.protocol.exchange.peer import cancelled, dropped, said, started
from tests.protocol.exchange.test_resume_cursor import EVERYTHING, Numbered
from tests.tables import Effect, ProposalKey, Role
from tests.wire import draft, encode, kinds, payloads

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Newcomer(Numbered):
    """A peer that has just been welcomed, and is told what is open."""

    question = ""

    def proposes(
        self, id: str = "p", *, expires_at: datetime | None = None, to: tuple[str, ...] = ()
    ) -> Envelope:
        params: dict[str, Any] = {"name": "write", "arguments": {}}
        if expires_at is not None:
            params["_meta"] = {payloads.EXPIRES_AT: expires_at.isoformat()}
        body = payloads.proposal("tools/call", params)
        return draft(kinds.MCP_PROPOSAL, body, id=id, sender="alice", to=to)

    def fulfills(self, to: str = "tool", sender: str = "bob") -> Envelope:
        body = payloads.request("tools/call", {"name": "write", "arguments": {}}, "r")
        return draft(kinds.MCP_REQUEST, body, id="r", sender=sender, to=(to,), correlation=("p",))

    def is_told(
        self,
        proposal: Envelope,
        *requests: Envelope,
        left: datetime | None = None,
        rejected: str = "",
        asked: bool = True,
    ) -> list[Effect]:
        """The answer to our question, or to another of ours that a caller waits for."""
        listed: dict[str, Any] = {"envelope": as_json(proposal), "seq": self.seq}
        if left is not None:
            listed["proposer_left"] = left.isoformat()
        if rejected:
            listed["rejections"] = [{"by": self.name, "id": "x", "reason": rejected}]
        listed["requests"] = [{"envelope": as_json(each)} for each in requests]
        about = self.question if asked else "another"
        page = {"proposals": [listed], "seq": self.seq}
        return self.system(kinds.PROPOSALS, page, to=(self.name,), correlation=(about,))

    def enters(self, **options: Any) -> list[Effect]:
        effects = super().enters(**options)
        for each in said(effects, kinds.LIST_PROPOSALS):
            self.question = each.id
        return effects


def as_json(envelope: Envelope) -> Any:
    return json.loads(encode(envelope, "meup/v0.1"))


@pytest.fixture
def me() -> Newcomer:
    return Newcomer(roles=EVERYTHING, wall_clock=lambda: NOON)


@pytest.mark.rule("4.6.newcomers.handled")
@pytest.mark.parametrize("told", [True, False])
def test_what_is_pending_starts_a_handler_once(me: Newcomer, told: bool) -> None:
    proposal = me.proposes()
    first = me.is_told(proposal) if told else me.receives(proposal)
    assert len(started(first, Role.PROPOSAL)) == 1
    assert started(me.is_told(proposal)) == []
    if told:
        assert started(me.receives(proposal)) == []
    assert me.record("alice", "p").state is ProposalState.PENDING


@pytest.mark.rule("4.6.newcomers.record")
@pytest.mark.parametrize(("executor", "sender"), [("tool", "bob"), ("me", "bob"), ("tool", "me")])
def test_what_is_in_progress_is_a_record(me: Newcomer, executor: str, sender: str) -> None:
    assert started(me.is_told(me.proposes(), me.fulfills(executor, sender))) == []
    assert me.record("alice", "p").state is ProposalState.IN_PROGRESS
    assert me.record("alice", "p").in_progress_by == sender
    assert said(me.effects, kinds.MCP_RESPONSE) == []
    if executor == "me":  # it started anew, and carries nothing out twice
        assert started(me.request("carol", "s", fulfills="p", params={"name": "write"})) == []
        (answer,) = said(me.effects, kinds.MCP_RESPONSE)
        assert payloads.is_refusal(answer.payload)
    me.response(executor, "r", to=(sender,))
    assert me.record("alice", "p").state is ProposalState.FULFILLED


@pytest.mark.rule("4.6.newcomers.record")
def test_what_has_expired_is_a_record(me: Newcomer) -> None:
    old = me.proposes(expires_at=NOON - timedelta(seconds=61))
    assert dropped(me.is_told(old)) == ["expired_before"]
    assert started(me.effects) == []
    assert me.record("alice", "p").key.id == "p"
    assert len(started(me.is_told(me.proposes("q", expires_at=NOON)))) == 1


@pytest.mark.rule("4.4.own_rejection_lasts")
def test_what_another_process_of_ours_rejected_is_a_record(me: Newcomer) -> None:
    assert started(me.is_told(me.proposes(), rejected="unsafe")) == []
    record = me.record("alice", "p")
    assert record.state is ProposalState.PENDING
    assert [(each.by, each.reason) for each in record.rejections.values()] == [("me", "unsafe")]
    with pytest.raises(AlreadyDecided, match="rejected"):
        me.begins_request(fulfills=ProposalKey("alice", "p"))
    assert started(me.receives(me.fulfills("me"))) == []
    (answer,) = said(me.effects, kinds.MCP_RESPONSE)
    assert payloads.is_refusal(answer.payload)


@pytest.mark.rule("4.4.own_rejection_lasts")
def test_a_rejection_that_a_gap_hid_ends_the_handler(me: Newcomer) -> None:
    (key,) = started(me.is_told(me.proposes()))
    effects = me.is_told(me.proposes(), rejected="unsafe")
    assert {each: cause.code for each, cause in cancelled(effects).items()} == {key: "unsafe"}
    assert said(me.effects, kinds.MCP_REJECT) == []


@pytest.mark.rule("4.6.newcomers.handled")
def test_what_is_for_others_starts_nothing(me: Newcomer) -> None:
    assert started(me.is_told(me.proposes(to=("bob",)))) == []
    assert said(me.effects, kinds.MCP_REJECT) == []


@pytest.mark.rule("4.6.newcomers.record")
def test_a_withdraw_ends_what_was_told(me: Newcomer) -> None:
    (key,) = started(me.is_told(me.proposes()))
    me.withdraw("alice", "p")
    assert me.record("alice", "p").state is ProposalState.WITHDRAWN
    assert me.table.is_open(key)  # until the handler has seen its cancel


@pytest.mark.rule("4.6.newcomers.handled")
@pytest.mark.parametrize("sender", ["bob", kinds.GATEWAY])
def test_what_others_say_or_nobody_asked_for_starts_nothing(me: Newcomer, sender: str) -> None:
    """Only the gateway lists, and only of our own question handlers are told."""
    if sender == kinds.GATEWAY:
        assert started(me.is_told(me.proposes(), asked=False)) == []
        assert me.record("alice", "p").state is ProposalState.PENDING
        return
    page = {"proposals": [{"envelope": as_json(me.proposes()), "seq": me.seq}]}
    about = (me.question,)
    me.hears(kinds.PROPOSALS, page, sender=sender, id="forged", to=("me",), correlation=about)
    assert dropped(me.effects) == ["forged_list"]
    assert me.table.proposal_store.under("p", me.now) == []


@pytest.mark.parametrize(
    "page", [[], {"proposals": 1}, {"proposals": [{"envelope": {}, "seq": 1}]}], ids=str
)
def test_a_page_that_cannot_be_read_is_left_out(me: Newcomer, page: Any) -> None:
    me.system(kinds.PROPOSALS, page, to=(me.name,), correlation=(me.question,))
    assert dropped(me.effects) == ["malformed_list"]


@pytest.mark.parametrize(
    ("id", "params"), [("x" * 300, {"name": "write"}), ("p", {"name": 5})], ids=["long", "no name"]
)
def test_what_no_reader_takes_where_it_is_heard_is_not_entered(
    me: Newcomer, id: str, params: dict[str, Any]
) -> None:
    body = payloads.proposal("tools/call", params)
    assert started(me.is_told(draft(kinds.MCP_PROPOSAL, body, id=id, sender="alice"))) == []
    assert me.table.proposal_store.under(id, me.now) == []


@pytest.mark.rule("4.6.newcomers.handled")
def test_another_call_under_a_known_id_takes_its_place(me: Newcomer) -> None:
    """It was made in a gap: who decides must not be shown the call of before."""
    (before,) = started(me.is_told(me.proposes()))
    other = payloads.proposal("tools/call", {"name": "delete", "arguments": {}})
    effects = me.is_told(draft(kinds.MCP_PROPOSAL, other, id="p", sender="alice"))
    assert list(cancelled(effects)) == [before]
    assert len(started(effects, Role.PROPOSAL)) == 1
    assert me.record("alice", "p").call.name == "delete"


@pytest.mark.rule("4.6.newcomers.again", "4.6.newcomers.handled")
@pytest.mark.parametrize(("missed", "gap"), [(0, False), (0, True), (1, True)])
def test_who_missed_nothing_does_not_ask_again_and_who_did_asks_when_it_is_read(
    me: Newcomer, missed: int, gap: bool
) -> None:
    me.loses_connection()
    asked = said(me.enters(missed=missed, gap=gap), kinds.LIST_PROPOSALS)
    assert len(asked) == (gap and not missed)
    if missed:
        effects = me.withdraw("alice", "p")  # the last that we missed
        assert len(said(effects, kinds.LIST_PROPOSALS)) == 1


@pytest.mark.rule("4.4.gone_before_us")
@pytest.mark.parametrize(
    ("ago", "others", "gone"),
    [(31, ("bob", "tool"), True), (29, ("bob", "tool"), False), (31, ("alice", "tool"), False)],
    ids=["gone", "not yet", "came back"],
)
def test_a_proposer_that_left_before_us_waits_for_nothing(
    ago: int, others: tuple[str, ...], gone: bool
) -> None:
    class Late(Newcomer):
        def enters(self, **options: Any) -> list[Effect]:
            return super().enters(others=others)

    me = Late(roles=EVERYTHING, wall_clock=lambda: NOON)
    me.is_told(me.proposes(), left=NOON - timedelta(seconds=ago))
    key = ProposalKey("alice", "p")
    if gone:
        with pytest.raises(ParticipantGone, match="has left the space"):
            me.begins_request(fulfills=key)
        # It may come back.
        me.joined("alice")
    me.begins_request(fulfills=key)
