"""The resume cursor: reading a gateway that numbers what it says (PROTOCOL 6, resume)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meup_agent import Envelope, Expiry, Gap, Limits, ProposalState
from tests.protocol.exchange.peer import (
    MAY_CALL,
    Peer,
    cancelled,
    dropped,
    of,
    over_the_wire,
    said,
    started,
    woken,
)
from tests.tables import CaughtUp, Effect, Key, Role, Start
from tests.wire import (
    ARRIVED,
    OURS,
    GatewayRefused,
    Responded,
    Unknown,
    draft,
    kinds,
    payloads,
    read_seq,
    said_by,
)

EVERYTHING = frozenset(Role) - {Role.KIND}


class Numbered(Peer):
    """A peer of a gateway that numbers what it says; what is for us alone has the last number."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seq = 100
        self.enters()

    def receives(self, envelope: Envelope) -> list[Effect]:
        if envelope.kind not in (kinds.SYSTEM_WELCOME, kinds.SYSTEM_ERROR):
            self.seq += 1
        return self.at(self.seq, envelope)

    def at(self, seq: int, envelope: Envelope) -> list[Effect]:
        return self.did(self.table.receive(over_the_wire(envelope), self.now, seq))

    def enters(
        self,
        *,
        others: tuple[str, ...] = ("alice", "bob", "tool"),
        missed: int | None = None,
        gap: bool = False,
    ) -> list[Effect]:
        """A welcome; ``missed`` envelopes come now, ``None``: we were not here before."""
        payload = {
            "you": {"id": self.name, "capabilities": [{"kind": "*"}]},
            "participants": [{"id": name, "capabilities": list(MAY_CALL)} for name in others],
            "resumed": missed is not None,
            "until": self.seq + (missed or 0),
            "gap": gap,
            **said_by(OURS),
        }
        return self.system(kinds.SYSTEM_WELCOME, payload, to=(self.name,))

    def returns_to_space(self, missed: int, **options: Any) -> list[Effect]:
        self.loses_connection()
        return self.enters(missed=missed, **options)

    def arrives(self, who: str, arrived: str | None) -> list[Effect]:
        presence = {"event": "join", "participant": {"id": who, "capabilities": list(MAY_CALL)}}
        if arrived is not None:
            presence[ARRIVED] = arrived
        return self.system(kinds.SYSTEM_PRESENCE, presence)


@pytest.fixture
def me() -> Numbered:
    return Numbered(roles=EVERYTHING)


@pytest.mark.parametrize(
    ("frame", "seq"),
    [
        (b'{"kind":"chat","seq":17}', 17),
        (b'{"kind":"chat","payload":{"a":",\\"seq\\":5"},"seq":17}', 17),
        (b'{"kind":"chat","seq":17,"payload":{}}', 17),
        (b'{"kind":"chat","payload":{"seq":17}}', None),
        (b'{"kind":"chat","payload":{"a":1,"seq":17}}', None),
        (b'{"kind":"chat","payload":",\\"seq\\":17"}', None),
        (b'{"kind":"chat","seq":"17"}', None),
        (b'{"kind":"chat","seq":true}', None),
        (b'{"kind":"chat","seq":-1}', None),
        (b'{"kind":"chat","seq":1.5}', None),
        (b'{"kind":"chat","seq":1e400}', None),
        (b'{"kind":"chat","seq":%b}' % (b"9" * 5000), None),
        (b'{ "kind": "chat", "seq": 17 }', 17),
        (b'{"kind":"chat","seq":3,"seq":17}', 17),
        (b'{"kind":"chat"}', None),
        (b'{"seq":17}', 17),
    ],
)
@pytest.mark.rule("6.resume.order")
def test_the_number_of_an_envelope_is_its_own(frame: bytes, seq: int | None) -> None:
    assert read_seq(frame) == seq


@pytest.mark.rule("6.resume.asks", "6.resume.gap")
def test_a_gateway_whose_numbers_begin_anew_is_read_and_one_that_does_not_resume_has_none(
    me: Numbered,
) -> None:
    assert me.table.seq == me.seq
    me.seq = 10
    me.returns_to_space(1, gap=True)
    assert [key.id for key in started(me.request("alice", "r1"), Role.REQUEST)] == ["r1"]
    assert me.table.seq == 11
    me.loses_connection()
    me.welcomed("alice")  # without a word of what it gives
    me.hears(kinds.CHAT, {}, sender="alice", id="c1")
    assert me.table.seq is None


@pytest.mark.rule("6.resume.order", "6.resume.once")
def test_we_read_on_from_the_last_number_and_read_nothing_twice(me: Numbered) -> None:
    me.hears(kinds.CHAT, {"message": "1"}, sender="alice", id="c1")
    assert me.table.seq == me.seq == 101
    again = me.effects[-1].work.envelope  # type: ignore[union-attr]  # a start
    assert dropped(me.at(101, again)) == ["duplicate"]
    me.system(kinds.SYSTEM_ERROR, {"error": "x"}, to=("me",))  # has the same number
    assert dropped(me.effects)[-1] == "refused_by_gateway"
    assert me.table.seq == 101


@pytest.mark.rule("6.resume.order", "6.resume.no_handler_yet")
def test_what_was_missed_starts_in_order_when_all_of_it_is_read(me: Numbered) -> None:
    me.now += 7.5
    assert of(me.returns_to_space(0), CaughtUp) == [CaughtUp(0, 7.5, None)]
    assert started(me.request("alice", "r0")) == [Key("in", "alice", "r0")]
    assert started(me.returns_to_space(3)) == []
    assert started(me.request("alice", "r1")) == []
    effects = me.request("bob", "r2")
    assert (started(effects), of(effects, CaughtUp)) == ([], [])
    effects = me.request("alice", "r3")
    keys = [(key.sender, key.id) for key in started(effects)]
    assert keys == [("alice", "r1"), ("bob", "r2"), ("alice", "r3")]
    assert of(effects, CaughtUp) == [CaughtUp(3, 0.0, None)]
    assert me.table.caught_up
    assert started(me.request("alice", "r4")) == [Key("in", "alice", "r4")]


@pytest.mark.rule("6.resume.order")
def test_what_is_new_shows_that_the_rest_was_not_for_us(me: Numbered) -> None:
    """An envelope that a dialect cannot say is left out, and leaves a hole in the numbers."""
    me.returns_to_space(2)
    me.request("alice", "r1")
    me.seq += 5
    assert started(me.arrives("carol", "new"), Role.REQUEST) == [Key("in", "alice", "r1")]


@pytest.mark.rule("6.resume.no_handler_yet")
def test_ends_and_answers_count_at_once(me: Numbered) -> None:
    me.request("alice", "r1")
    mine = me.begins_request()
    me.returns_to_space(3)
    assert Key("in", "alice", "r1") in cancelled(me.cancel("alice", "r1"))
    assert isinstance(woken(me.response("tool", mine.id))[mine], Responded)
    assert not me.table.caught_up


@pytest.mark.rule("6.resume.no_handler_yet", "5.overflow.busy")
def test_while_we_read_there_is_as_much_room_as_otherwise() -> None:
    me = Numbered(limits=Limits(handlers=2, queued=3))
    me.returns_to_space(6)
    for number in range(6):
        me.request("alice", f"r{number}")
    (busy,) = said(me.effects, kinds.MCP_RESPONSE)
    assert busy.correlation == ("r5",)
    assert [key.id for key in started(me.effects)] == ["r0", "r1"]


def told(effects: list[Effect]) -> list[tuple[str, str]]:
    """Of whom handlers are told that they came or went."""
    return [
        (str(start.work.role), start.work.envelope.payload["participant"]["id"])
        for start in of(effects, Start)
        if start.work.role in (Role.JOIN, Role.LEAVE)
    ]


@pytest.mark.rule("6.resume.order")
def test_who_is_not_there_any_more_has_left_although_nobody_says_so(me: Numbered) -> None:
    """A gateway that was killed reports no leave."""
    me.request("bob", "b1")
    me.effects.clear()
    me.returns_to_space(2, others=("alice",))
    me.arrives("tool", "new")
    assert told(me.effects) == []
    me.arrives("me", "resumed")
    assert told(me.effects) == [("join", "tool"), ("leave", "bob"), ("leave", "tool")]
    assert Key("in", "bob", "b1") in cancelled(me.passes(31))


@pytest.mark.rule("6.resume.known", "5.own.waiting.deadline")
@pytest.mark.parametrize("gaps", [[False], [True], [True, False]])
def test_a_deadline_after_a_resume_is_an_expiry_unless_something_is_lost(
    me: Numbered, gaps: list[bool]
) -> None:
    mine = me.begins_request(deadline=60.0)
    for gap in gaps:
        me.returns_to_space(1, gap=gap)
        me.arrives("me", "resumed")
    me.passes(61)
    assert isinstance(me.ending(mine), Unknown if any(gaps) else Expiry)


@pytest.mark.rule("6.resume.known")
def test_what_the_gateway_did_not_take_is_known_when_it_is_sent_again(me: Numbered) -> None:
    mine, never = me.begins_request(sent=False), me.begins_request(sent=False)
    for key in (mine, never):
        me.did(me.table.sent(key.id, me.now)[1])
    me.returns_to_space(0)
    me.did(me.table.sent(mine.id, me.now)[1])
    me.passes(61)
    assert isinstance(me.ending(mine), Expiry)
    assert isinstance(me.ending(never), Unknown)


@pytest.mark.rule("6.resume.gap", "6.resume.not_said_again")
@pytest.mark.parametrize("gap", [False, True])
def test_idempotent_requests_and_ends_are_sent_again_after_a_gap_only(
    me: Numbered, gap: bool
) -> None:
    again = me.begins_request(idempotent=True)
    (withdraw,) = said(me.gives_up(me.begins_proposal(to=("bob",))))
    assert said(me.returns_to_space(2, gap=gap)) == []
    me.hears(kinds.CHAT, {}, sender="alice", id="c1")
    effects = me.arrives("me", "gap" if gap else "resumed")
    if not gap:
        assert said(effects) == []
        return
    request, repeated = (each for each in said(effects) if each.kind != kinds.LIST_PROPOSALS)
    assert request.id == again.id
    # The gateway delivers no envelope a second time.
    assert repeated.id != withdraw.id
    assert (repeated.kind, repeated.correlation) == (withdraw.kind, withdraw.correlation)


@pytest.mark.rule("6.resume.not_said_again")
@pytest.mark.parametrize(
    ("arrived", "repeated"), [("new", 0), ("resumed", 0), ("gap", 1), (None, 1), ("other", 1)]
)
def test_who_reads_what_it_missed_is_told_nothing_again(
    me: Numbered, arrived: str | None, repeated: int
) -> None:
    me.gives_up(me.begins_proposal(to=("bob",)))
    assert len(said(me.arrives("bob", arrived))) == repeated


@pytest.mark.rule("6.resume.not_said_again")
def test_a_further_welcome_amid_what_was_missed_says_nothing_again(me: Numbered) -> None:
    me.gives_up(me.begins_proposal(to=("dave",)))
    me.returns_to_space(2)
    assert said(me.welcomed("dave", "carol")) == []


@pytest.mark.rule("6.resume.gap")
def test_a_gap_is_told_first_with_what_is_known_of_it() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    me = Numbered(roles=EVERYTHING, wall_clock=lambda: now)
    before = me.seq
    me.now += 90
    me.loses_connection()
    me.now += 30
    me.seq += 50
    me.enters(missed=2, gap=True)
    me.request("alice", "r1")
    assert started(me.effects) == []
    effects = me.arrives("me", "gap")
    told, request = of(effects, Start)
    assert (told.work.role, request.work.role) == (Role.GAP, Role.REQUEST)
    gap = Gap(now - timedelta(seconds=120), 120.0, before)
    assert told.work.subject == gap
    assert of(effects, CaughtUp) == [CaughtUp(2, 120.0, gap)]


def gateway_cancels(me: Peer, request: str, by: str, *, to: tuple[str, ...]) -> list[Effect]:
    cancel = payloads.cancelled_by_gateway(request, "revoked", by)
    return me.system(kinds.MCP_REQUEST, cancel, to=to, correlation=(request,))


def gateway_withdraws(me: Peer, proposal: str, by: str) -> list[Effect]:
    payload = {"reason": "revoked", payloads.META: {payloads.BEGUN_BY: by}}
    return me.system(kinds.MCP_WITHDRAW, payload, correlation=(proposal,))


@pytest.mark.rule("6.resume.revoked", "4.1.only_the_proposer")
@pytest.mark.parametrize("checked", [True, False])
def test_the_gateway_alone_ends_what_its_sender_may_not_do(me: Peer, checked: bool) -> None:
    if not checked:  # nobody speaks for another where names are not checked
        me = Peer.among("alice", roles=EVERYTHING)
    for sender in ("alice", "bob"):
        me.request(sender, "1")
        me.proposal(sender, "p1", to=("me",))
    payload = {"reason": "revoked", payloads.META: {payloads.BEGUN_BY: "alice"}}
    me.hears(kinds.MCP_WITHDRAW, payload, sender="tool", id="w1", correlation=("p1",))
    assert cancelled(me.effects) == {}
    effects = gateway_cancels(me, "1", "bob", to=("me",)) + gateway_withdraws(me, "p1", "alice")
    ends = [(key.sender, key.id, by.by, by.code) for key, by in cancelled(effects).items()]
    gateway = (kinds.GATEWAY, "revoked")
    assert ends == ([("bob", "1", *gateway), ("alice", "p1", *gateway)] if checked else [])
    state = ProposalState.WITHDRAWN if checked else ProposalState.PENDING
    assert me.record("alice", "p1").state is state
    assert me.record("bob", "p1").state is ProposalState.PENDING


@pytest.mark.rule("6.resume.revoked")
@pytest.mark.parametrize("error_first", [True, False])
def test_our_own_that_the_gateway_ends_is_refused(me: Numbered, error_first: bool) -> None:
    """The error is for us alone, so it may be lost with a connection; its end is not."""
    request, proposal = me.begins_request(), me.begins_proposal(to=("bob",))
    if error_first:
        me.refused(request.id, "revoked")
        me.refused(proposal.id, "revoked")
    gateway_cancels(me, request.id, "me", to=("tool",))
    gateway_withdraws(me, proposal.id, "me")
    if not error_first:
        assert dropped(me.refused(request.id, "revoked")) == []
    for key in (request, proposal):
        ending = me.ended(key, GatewayRefused)
        assert ending.error == "revoked"
    assert me.own(proposal).state is ProposalState.WITHDRAWN


@pytest.mark.rule("6.resume.order", "5.who.me.beside")
def test_the_echo_of_what_we_wait_for_is_ours_however_long_we_were_away(me: Numbered) -> None:
    key = me.begins_request(deadline=2 * 24 * 3600.0, sent=False)
    (request,) = said(me.effects, kinds.MCP_REQUEST)
    me.did(me.table.sent(key.id, me.now)[1])
    me.loses_connection()
    me.passes(24 * 3600)
    me.enters(missed=1)
    assert dropped(me.echo(request)) == []
    me.passes(24 * 3600)
    assert isinstance(me.ending(key), Expiry)


@pytest.mark.rule("6.resume.order", "5.who.me.beside")
def test_what_was_decided_of_a_sibling_while_we_were_away_is_decided(me: Numbered) -> None:
    me.proposal("alice", "p1", to=("me",))
    me.proposal("alice", "p2", to=("me",))
    own = me.begins_proposal()
    me.returns_to_space(5)
    me.withdraw("me", own.id, "policy")
    assert me.own(own).state is ProposalState.WITHDRAWN
    effects = me.reject("me", "p1")
    assert list(cancelled(effects)) == [Key("in", "alice", "p1")]
    me.request("me", "x1", to=("tool",), fulfills="p2")
    assert me.record("alice", "p2").in_progress_by == "me"
    assert not me.is_waiting(own)
    me.proposal("alice", "p3", to=("me",))
    assert started(me.reject("me", "p3")) == []


@pytest.mark.rule("6.resume.order", "5.who.me.beside")
def test_what_was_said_of_a_sibling_counts_once(me: Numbered) -> None:
    body = payloads.request("tools/call", {"name": "write"}, "x1")
    request = draft(kinds.MCP_REQUEST, body, id="x1", sender="me", to=("me",))
    me.receives(request)
    me.returns(Key("in", "me", "x1"))
    effects = me.at(me.seq, request)
    assert dropped(effects) == ["duplicate"]
    assert said(effects) == []
