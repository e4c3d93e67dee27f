"""Tables that answer nothing: one that only asks, and one that only looks on (PROTOCOL 3)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent import Mode
from meup_agent.errors import InvalidEnvelope, ObservingOnly
from meup_agent.types import Cause, Guarantees
from tests.protocol.exchange.peer import Peer, dropped, said, started
from tests.protocol.exchange.test_hostile_envelopes import envelopes
from tests.tables import CaughtUp, Drop, Key, ProposalKey, Role, Send, Start
from tests.wire import decode, kinds, said_by

OURS = Guarantees(identity_checked=True, echo=True, resume=True)
SILENT = [Mode.OBSERVING, Mode.OUTGOING_ONLY]


def looking_on(mode: Mode = Mode.OBSERVING, *, observing: bool = True) -> Peer:
    """A participant with handlers for everything, none of which may start."""
    me = Peer(roles=set(Role), wall_clock=lambda: datetime(2026, 1, 1, tzinfo=UTC), mode=mode)
    me.system(
        kinds.SYSTEM_WELCOME,
        {
            "you": {"id": "me", "capabilities": [{"kind": "*"}]},
            "participants": [
                {"id": name, "capabilities": [{"kind": "*"}]} for name in ("alice", "me")
            ],
            "observing": observing,
            **said_by(OURS),
        },
        to=("me",),
    )
    return me


@pytest.mark.rule("3.observe.takes_no_part")
@pytest.mark.parametrize("mode", SILENT)
def test_nothing_is_started_and_nothing_answered(mode: Mode) -> None:
    me = looking_on(mode)
    me.proposal("alice", "p1", to=("me",))
    me.proposal("alice", "p2")
    me.proposal("alice", "p3", to=("me",), params={}, method="")
    me.request("alice", "a1")
    me.request("alice", "a1")
    me.request("alice", "a2", method="")
    me.request("alice", "a3", rpc_id="x" * 10_000)
    me.request("alice", "a4", method="initialize")
    me.request("alice", "a5", fulfills="p1")
    me.cancel("alice", "a1")
    me.hears(kinds.CHAT, {"message": "hi"}, sender="alice", id="c1", to=("me",))
    me.hears("acme/news", {}, sender="alice", id="n1")
    grant = {"recipient": "me", "capabilities": [{"kind": "chat"}]}
    me.hears("capability/grant", grant, sender="alice", id="g1")
    revocation = {"recipient": "me", "grant_id": "g1"}
    me.hears("capability/revoke", revocation, sender="alice", id="v1")
    me.reject("alice", "p2")
    me.withdraw("alice", "p1")
    assert me.record("alice", "p1").state == "withdrawn"
    me.joined("bob")
    me.left("bob")
    me.passes(10_000)
    me.loses_connection()
    me.welcomed("alice", gives=OURS)
    me.shuts_down()
    me.ends_grace()
    assert (started(me.effects), said(me.effects)) == ([], [])
    assert (me.table.running, me.table.queued) == (0, 0)


@pytest.mark.rule("3.observe.takes_no_part")
@given(st.lists(envelopes, min_size=1, max_size=8), st.booleans())
def test_whatever_comes_an_observer_only_keeps_records(
    sent: list[dict[str, Any]], observing: bool
) -> None:
    me = looking_on(observing=observing)
    me.effects.clear()
    me.proposal("alice", "p1", to=("me",))
    me.request("alice", "a1")
    for fields in sent:
        try:
            envelope = decode(msgspec.json.encode(fields))
        except InvalidEnvelope:
            continue
        me.did(me.table.receive(envelope, me.now))
        me.passes(1)
    me.loses_connection()
    me.welcomed("alice", gives=OURS)
    me.did(me.table.close(Cause("other", "me"), me.now))
    me.shuts_down()
    me.ends_grace()
    me.passes(10_000)
    assert not [each for each in me.effects if not isinstance(each, Drop | CaughtUp)]


@pytest.mark.rule("3.observe.takes_no_part")
def test_every_verb_of_an_observer_raises_and_changes_nothing() -> None:
    me = looking_on()
    me.proposal("alice", "p1", to=("me",))
    me.effects.clear()
    for verb in (
        me.begins_request,
        me.begins_proposal,
        lambda: me.table.send(kinds.CHAT, {}, now=me.now),
        lambda: me.table.reject(ProposalKey("alice", "p1"), "unsafe", me.now),
        lambda: me.begins_request(fulfills=ProposalKey("alice", "p1")),
    ):
        with pytest.raises(ObservingOnly):
            verb()
    assert me.effects == []
    assert me.table.waiting == 0
    assert me.record("alice", "p1").state == "pending"


@pytest.mark.rule("3.observe.takes_no_part")
def test_who_only_asks_gets_its_answers() -> None:
    me = looking_on(Mode.OUTGOING_ONLY, observing=False)
    key = me.begins_request()
    me.response("tool", key.id)
    assert not me.is_waiting(key)
    assert [type(each) for each in me.effects if isinstance(each, Send | Start)] == [Send]


@pytest.mark.rule("3.observe.takes_no_part")
def test_what_is_answered_to_its_participant_is_for_the_running_agent() -> None:
    """A response to what was asked before the observer came is nothing that it left out."""
    me = looking_on()
    assert dropped(me.response("alice", "asked before", to=("me",))) == []


@pytest.mark.rule("3.observe.not_present")
def test_an_observer_is_not_among_those_present() -> None:
    me = looking_on()
    assert {each.id for each in me.table.roster.participants()} == {"alice", "me"}
    me.left("me")
    assert [each.id for each in me.table.roster.participants()] == ["alice"]
    assert me.table.roster.is_allowed("me", kinds.CHAT, {})
    me.joined("me")
    presence = {"event": "update", "participant": {"id": "me", "capabilities": []}}
    me.system(kinds.SYSTEM_PRESENCE, presence)
    assert me.table.roster.capabilities_of("me") == ()
    assert me.table.is_open(Key("in", "alice", "a1")) is False
