"""Open proposals of before a participant came, as its exchange table reads them (PROTOCOL 4.6)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meup_agent import Envelope, ProposalState
from meup_agent.errors import AlreadyDecided, ParticipantGone
from meup_agent.protocol.resume import ReplayMark, replayed
from meup_agent.protocol.timestamps import microseconds
from tests.protocol.exchange.peer import cancelled, dropped, said, started
from tests.protocol.exchange.test_resume_cursor import EVERYTHING, Numbered
from tests.tables import Effect, ProposalKey, Role
from tests.wire import decode, draft, encode, kinds, payloads, read_seq

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Newcomer(Numbered):
    """A peer that has just been welcomed, and is told what is open."""

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
        envelope: Envelope,
        *,
        in_progress: bool = False,
        left: datetime | None = None,
        rejected: str = "",
    ) -> list[Effect]:
        moment = None if left is None else microseconds(left)
        mark = ReplayMark(in_progress, proposer_left=moment, rejected=rejected)
        frame = replayed(encode(envelope, self.dialect), self.seq, mark)
        assert read_seq(frame) == self.seq
        return self.did(self.table.receive(decode(frame), self.now, self.seq))


@pytest.fixture
def me() -> Newcomer:
    return Newcomer(roles=EVERYTHING, wall_clock=lambda: NOON)


@pytest.mark.rule("4.6.replays.handled")
def test_what_is_pending_starts_a_handler_once(me: Newcomer) -> None:
    proposal = me.proposes()
    assert len(started(me.is_told(proposal), Role.PROPOSAL)) == 1
    assert dropped(me.is_told(proposal)) == ["duplicate_proposal"]
    assert started(me.receives(proposal)) == []
    assert me.record("alice", "p").state is ProposalState.PENDING


@pytest.mark.rule("4.6.replays.handled")
def test_what_was_read_before_does_not_start_another(me: Newcomer) -> None:
    proposal = me.proposes()
    assert len(started(me.receives(proposal))) == 1
    assert started(me.is_told(proposal)) == []


@pytest.mark.rule("4.6.replays.record")
@pytest.mark.parametrize("executor", ["tool", "me"])
def test_what_is_in_progress_is_a_record(me: Newcomer, executor: str) -> None:
    assert started(me.is_told(me.proposes(), in_progress=True)) == []
    assert started(me.is_told(me.fulfills(executor), in_progress=True)) == []
    assert me.record("alice", "p").state is ProposalState.IN_PROGRESS
    assert me.record("alice", "p").in_progress_by == "bob"
    assert said(me.effects) == []
    me.response(executor, "r", to=("bob",))
    assert me.record("alice", "p").state is ProposalState.FULFILLED


@pytest.mark.rule("4.6.replays.record")
def test_in_progress_by_another_process_of_ours(me: Newcomer) -> None:
    me.is_told(me.proposes(), in_progress=True)
    me.is_told(me.fulfills(sender="me"), in_progress=True)
    assert me.record("alice", "p").in_progress_by == "me"


@pytest.mark.rule("4.6.replays.record")
def test_an_executor_that_started_anew_carries_nothing_out_twice(me: Newcomer) -> None:
    me.is_told(me.proposes(), in_progress=True)
    me.is_told(me.fulfills("me"), in_progress=True)
    assert started(me.request("carol", "s", fulfills="p", params={"name": "write"})) == []
    (answer,) = said(me.effects, kinds.MCP_RESPONSE)
    assert payloads.is_refusal(answer.payload)


@pytest.mark.rule("4.6.replays.record")
def test_what_has_expired_is_a_record(me: Newcomer) -> None:
    old = me.proposes(expires_at=NOON - timedelta(seconds=61))
    assert dropped(me.is_told(old)) == ["expired_before"]
    assert started(me.effects) == []
    assert me.record("alice", "p").key.id == "p"
    assert len(started(me.is_told(me.proposes("q", expires_at=NOON)))) == 1


@pytest.mark.rule("4.4.own_rejection_lasts")
def test_what_another_process_of_ours_rejected_is_a_record(me: Newcomer) -> None:
    assert dropped(me.is_told(me.proposes(), rejected="unsafe")) == ["rejected_before"]
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
    assert said(me.effects) == []


@pytest.mark.rule("4.6.replays.handled")
def test_what_is_for_others_starts_nothing(me: Newcomer) -> None:
    assert started(me.is_told(me.proposes(to=("bob",)))) == []
    assert said(me.effects) == []


@pytest.mark.rule("4.6.replays.record")
def test_a_withdraw_ends_what_was_told(me: Newcomer) -> None:
    (key,) = started(me.is_told(me.proposes()))
    me.withdraw("alice", "p")
    assert me.record("alice", "p").state is ProposalState.WITHDRAWN
    assert me.table.is_open(key)  # until the handler has seen its cancel


@pytest.mark.rule("4.6.replays.handled")
def test_the_mark_in_what_is_new_means_nothing(me: Newcomer) -> None:
    """A sender wrote it, to have no handler see its proposal, or begin with its request."""
    proposal = me.proposes()
    frame = replayed(encode(proposal, me.dialect), me.seq + 1, ReplayMark(True))
    me.seq += 1
    assert len(started(me.did(me.table.receive(decode(frame), me.now, me.seq)))) == 1


@pytest.mark.parametrize("mark", [b"1", b"[]", b"null", b'"x"', b"{}"])
def test_a_mark_that_says_little_starts_nothing_in_progress(me: Newcomer, mark: bytes) -> None:
    frame = encode(me.proposes(), me.dialect)[:-1] + b',"dev.meup/replayed":%b,"seq":%d}' % (
        mark,
        me.seq,
    )
    effects = me.did(me.table.receive(decode(frame), me.now, me.seq))
    assert started(effects) == []
    assert me.record("alice", "p").state is ProposalState.PENDING


@pytest.mark.rule("4.6.replays.handled")
def test_while_we_read_what_we_missed_nothing_starts() -> None:
    me = Newcomer(roles=EVERYTHING, wall_clock=lambda: NOON)
    me.loses_connection()
    me.enters(missed=1, gap=True)
    assert started(me.is_told(me.proposes())) == []
    effects = me.withdraw("alice", "p")  # the last that we missed
    assert started(effects, Role.PROPOSAL) == []


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
