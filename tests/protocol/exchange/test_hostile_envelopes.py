"""Whatever decodes, the table takes: no envelope of a stranger makes it raise."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.errors import InvalidEnvelope
from tests.protocol.exchange.peer import Peer, dropped, said
from tests.tables import Key, ProposalKey, Role, Start
from tests.wire import decode, encode_json, kinds

# Ids that mean something to the peer below, so that hostile payloads meet what is open.
IDS = ["a1", "p1", "1", "me-1", "me-2", "me-3", "me-4", "unknown", ""]
SENDERS = ["alice", "bob", "me", "system:gateway", "gateway", ""]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([*IDS, *SENDERS, "join", "leave", "refused", "notifications/cancelled"]),
    st.sampled_from(["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2025-01-01"]),
    st.sampled_from([0, 1, -1, 2**53, 2**63, 2**64, 10**400, -(10**400), 1e308, -0.0, 0.1]),
    st.text(max_size=5),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def having(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of these keys, whose values are anything."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, values))


meta = having("dev.meup/cause", "dev.meup/target", "dev.meup/expires_at", "progressToken")
params = having("requestId", "reason", "progressToken", "progress", "total", "message", "name") | (
    st.fixed_dictionaries({"requestId": st.sampled_from(IDS), "_meta": meta | values})
)
methods = st.sampled_from(
    ["tools/call", "initialize", kinds.CANCELLED, kinds.PROGRESS, "notifications/x", ""]
)
calls = st.fixed_dictionaries(
    {"method": methods | values, "params": params | values}, optional={"id": values}
)
causes = st.fixed_dictionaries(
    {
        "method": st.just(kinds.CANCELLED),
        "params": st.fixed_dictionaries(
            {
                "requestId": st.sampled_from(IDS),
                "reason": values,
                "_meta": st.fixed_dictionaries(
                    {"dev.meup/cause": st.lists(having("by", "id", "reason", "text") | values)}
                ),
            }
        ),
    }
)
bodies = st.one_of(
    values,
    calls,
    causes,
    st.fixed_dictionaries({"proposal": calls | values}),
    having("reason", "result", "error", "event", "participant", "you", "participants", "message"),
    st.fixed_dictionaries({"error": having("code", "message", "data")}),
    st.fixed_dictionaries({"you": having("id", "capabilities"), "participants": values}),
    st.fixed_dictionaries(
        {"event": st.sampled_from(["join", "leave"]), "participant": having("id", "capabilities")}
    ),
)
ids = st.sampled_from(IDS)
envelopes = st.fixed_dictionaries(
    {
        "protocol": st.just("meup/v0.1"),
        "id": ids | st.text(max_size=3),
        "from": st.sampled_from(SENDERS) | st.text(max_size=3),
        "kind": st.sampled_from(
            [kinds.dotted(kind) for kind in kinds.KINDS] + ["system/other", "made/up", ""]
        ),
        "payload": bodies,
    },
    optional={
        "to": st.lists(st.sampled_from(SENDERS), max_size=2) | st.sampled_from(SENDERS),
        "correlationId": ids | st.lists(ids, max_size=3),
        "correlation_id": ids | st.lists(ids, max_size=3),
        "ts": st.text(max_size=3),
    },
)


def busy() -> Peer:
    """A participant with something open of every sort."""
    me = Peer(roles=set(Role), wall_clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    me.welcomed("alice", "bob", "tool")
    me.request("alice", "a1", rpc_id=1)
    me.proposal("alice", "p1", to=("me",))
    me.begins_request(fulfills=ProposalKey("alice", "p1"))
    me.begins_request(parent=Key("in", "alice", "a1"), deadline=5.0)
    me.begins_proposal(to=("bob",))
    me.begins_proposal(sent=False)
    return me


@pytest.mark.rule("5.hostile")
@given(st.lists(envelopes, min_size=1, max_size=8))
def test_no_envelope_makes_the_table_raise(sent: list[dict[str, Any]]) -> None:
    me = busy()
    for fields in sent:
        try:
            envelope = decode(msgspec.json.encode(fields))
        except InvalidEnvelope:
            continue
        me.did(me.table.receive(envelope, me.now))
        me.passes(1)
    me.loses_connection()
    me.welcomed("alice")
    me.shuts_down()
    me.ends_grace()
    me.passes(10_000)


@pytest.mark.rule("5.hostile")
@pytest.mark.parametrize(
    "payload", [b"1e999", b'{"id":-1e999,"method":"x"}', b"[" + b"9" * 5000 + b"]"], ids=len
)
@pytest.mark.parametrize("sender", ["alice", "system:gateway"])
def test_numbers_that_no_float_holds_do_no_harm(sender: str, payload: bytes) -> None:
    for kind in kinds.KINDS:
        me = busy()
        addressed = {"to": "me", "correlationId": ["me-2", "p1"]}
        head = {"id": "x", "from": sender, "kind": kinds.dotted(kind), **addressed}
        frame = encode_json(head)[:-1] + b',"payload":' + payload + b"}"
        me.did(me.table.receive(decode(frame), me.now))
        assert me.table.is_open(Key("in", "alice", "a1")), kind


@pytest.mark.rule("5.hostile")
def test_infinite_progress_is_none() -> None:
    me = busy()
    key = me.begins_request()
    frame = (
        b'{"id":"x","from":"tool","kind":"mcp.request","payload":{"method":'
        b'"notifications/progress","params":{"progress":1e999,"progressToken":"%s"}}}'
    ) % key.id.encode()
    assert [type(effect) for effect in me.table.receive(decode(frame), me.now)] == [Start]
    assert len(me.progress("tool", key.id, 1)) == 2


@pytest.mark.rule("5.hostile")
def test_a_large_json_rpc_id_is_given_back() -> None:
    me = busy()
    me.request("bob", "b1", rpc_id=10**200)
    (response,) = said(me.returns(Key("in", "bob", "b1")))
    assert response.payload["id"] == 10**200
    assert dropped(me.cancel("bob", 10**200)) == ["late_cancel"]
