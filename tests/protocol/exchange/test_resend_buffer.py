"""Withdraws, cancels, rejects and responses that are sent again (PROTOCOL 4.14)."""

from __future__ import annotations

import pytest

from meup_agent import Envelope
from tests.protocol.exchange.peer import (
    EXCHANGES,
    Peer,
    cancelled,
    said,
    started,
    woken,
)
from tests.protocol.exchange.test_resume_cursor import Numbered
from tests.tables import Key, Role
from tests.wire import kinds, payloads


def endings(me: Peer) -> dict[str, str]:
    """A withdraw, a cancel, a rejection and a response; which id concerns whom."""
    me.proposal("alice", "p1")
    withdrawn = me.begins_proposal(to=("bob",))
    cancelled_one = me.begins_request(to=("tool",))
    me.request("carol", "c1")
    (withdraw,) = said(me.gives_up(withdrawn))
    (cancel,) = said(me.gives_up(cancelled_one))
    reject = me.rejects("alice", "p1")
    (response,) = said(me.returns(Key("in", "carol", "c1")))
    return {"bob": withdraw.id, "tool": cancel.id, "alice": reject.id, "carol": response.id}


@pytest.mark.rule("4.14.on_join")
@pytest.mark.parametrize("who", ["alice", "bob", "carol", "tool"])
def test_endings_are_sent_again_to_those_they_concern_when_they_join(me: Peer, who: str) -> None:
    ids = endings(me)
    assert [again.id for again in said(me.joined(who))] == [ids[who]]
    assert [again.id for again in said(me.joined(who))] == [ids[who]]
    assert said(me.joined("stranger")) == []


@pytest.mark.rule("4.14.on_join")
def test_endings_are_sent_again_when_we_come_back(me: Peer) -> None:
    ids = endings(me)
    me.loses_connection()
    assert {again.id for again in said(me.welcomed("alice", "tool"))} == {ids["alice"], ids["tool"]}


@pytest.mark.rule("4.14.on_join")
def test_a_withdraw_of_a_broadcast_concerns_whoever_joins(me: Peer) -> None:
    key = me.begins_proposal()
    (withdraw,) = said(me.gives_up(key))
    assert said(me.joined("newcomer")) == [withdraw]


@pytest.mark.rule("4.14.on_join")
def test_a_withdraw_concerns_the_fulfiller_in_progress(me: Peer) -> None:
    key = me.begins_proposal(to=("bob",))
    me.request("alice", "a1", to=("tool",), fulfills=key.id)
    (withdraw,) = said(me.gives_up(key))
    assert withdraw.to == ("bob", "alice")
    assert said(me.joined("alice")) == [withdraw]


@pytest.mark.rule("4.14.on_join")
def test_what_we_said_to_ourselves_is_sent_again_when_we_come_back(me: Peer) -> None:
    cancelled_one, answered = me.begins_request(to=("me",)), me.begins_request(to=("me",))
    (cancel,) = said(me.gives_up(cancelled_one))
    (response,) = said(me.returns(Key("in", "me", answered.id)))
    me.loses_connection()
    assert said(me.welcomed()) == [cancel, response]


@pytest.mark.rule("4.14.on_join")
def test_nothing_is_sent_again_at_the_first_welcome_or_an_update(me: Peer) -> None:
    endings(me)
    assert said(me.welcomed("alice", "bob", "tool")) == []


@pytest.mark.rule("4.14.on_join")
def test_an_update_that_shows_a_newcomer_is_as_a_join(me: Peer) -> None:
    ids = endings(me)
    assert [again.id for again in said(me.welcomed("alice", "bob", "tool", "carol"))] == [
        ids["carol"]
    ]


@pytest.mark.rule("4.14.limits")
def test_endings_are_remembered_for_five_minutes(me: Peer) -> None:
    me.gives_up(me.begins_proposal(to=("bob",)))
    me.passes(299)
    assert len(said(me.joined("bob"))) == 1
    me.passes(1)
    assert said(me.joined("bob")) == []


@pytest.mark.rule("4.14.limits")
def test_at_most_a_thousand_endings_are_remembered(me: Peer) -> None:
    for number in range(1001):
        me.rejects("bob", f"p{number}")
    again = said(me.joined("bob"))
    assert len(again) == 1000
    assert again[0].correlation == ("p1",)


@pytest.mark.rule("4.14.limits")
def test_at_most_sixteen_mebibytes_of_endings_are_remembered(me: Peer) -> None:
    for number in range(5):
        me.request("alice", f"a{number}")
        me.returns(Key("in", "alice", f"a{number}"), {"text": "x" * (4 * 1024 * 1024)})
    assert len(said(me.joined("alice"))) == 3


@pytest.mark.rule("4.14.no_harm_twice")
def test_endings_that_come_twice_do_no_harm() -> None:
    me = Peer(roles=EXCHANGES | {Role.WITHDRAW, Role.REJECT})
    me.welcomed("alice", "bob", "tool")
    me.proposal("alice", "p1")
    me.request("alice", "a1")
    mine, asked = me.begins_proposal(to=("bob", "tool")), me.begins_request()
    seen = []
    for ts in ("2026-01-01T00:00:00.000Z", "2026-01-01T00:00:09.000Z"):
        for kind, payload, sender, names in [
            ("mcp/withdraw", {"reason": "busy"}, "alice", "p1"),
            ("mcp/reject", {"reason": "busy"}, "bob", mine.id),
            ("mcp/response", {"result": {}}, "tool", asked.id),
            ("mcp/request", payloads.notification("notifications/cancelled", {"requestId": "a1"}),
             "alice", "a1"),
        ]:  # fmt: skip
            effects = me.hears(
                kind, payload, sender=sender, id=f"{kind}-1", correlation=(names,), ts=ts
            )
            seen.append((len(cancelled(effects)), len(woken(effects)), len(started(effects))))
    first, second = seen[:4], seen[4:]
    assert first == [(1, 0, 0), (0, 1, 1), (0, 1, 0), (1, 0, 0)]
    assert second == [(0, 0, 0)] * 4


def explains(me: Peer, decision: str, text: str = "no") -> Envelope:
    payload = {"message": text}
    chat, effects = me.table.send(kinds.CHAT, payload, now=me.now, correlation=(decision,))
    me.did(effects)
    return chat


@pytest.mark.rule("4.14.words")
def test_words_are_sent_again_behind_what_they_explain(me: Peer) -> None:
    me.proposal("alice", "p1")
    reject = me.rejects("alice", "p1")
    chat = explains(me, reject.id)
    assert said(me.joined("alice")) == [reject, chat]


@pytest.mark.rule("4.14.words")
def test_words_name_the_copies_of_what_they_explain() -> None:
    me = Numbered()
    me.proposal("alice", "p1")
    reject = me.rejects("alice", "p1")
    (first,) = said(me.joined("alice"))
    assert (first.id != reject.id, first.kind) == (True, kinds.MCP_REJECT)
    assert explains(me, reject.id).correlation == (reject.id, first.id)
    copy, words = said(me.joined("alice"))
    assert words.correlation == (copy.id, reject.id)
    assert words.payload_object == {"message": "no"}
    # Readers keep the first words.
    explains(me, reject.id, "more")
    assert said(me.joined("alice"))[1].payload_object == {"message": "no"}
