"""The gateway's decisions, called by hand."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent import Envelope
from meup_agent.protocol.space.state.indexes import MAX_ERROR_CHARS
from meup_agent.protocol.space.state.rules import MAX_ID_CHARS, MAX_NAMED
from tests.protocol.frames import frame_by
from tests.spaces import (
    MAX_ORIGINS,
    Acceptance,
    FrameVerdict,
    Refusal,
    SpaceState,
    member_capabilities,
)
from tests.wire import kinds

DIALECT = "meup/v0.1"

CAPABILITIES: dict[str, list[dict[str, Any]]] = {
    "alice": [
        {"kind": "chat"},
        {"kind": "mcp/proposal"},
        {"kind": "mcp/request", "payload": {"method": "tools/list"}},
    ],
    "bob": [{"kind": "mcp/*"}],
    "carol": [],
}


CALL: dict[str, Any] = {"method": "tools/call", "params": {"name": "x"}}


def space_of(*names: str) -> SpaceState:
    space = SpaceState()
    for name in names:
        space.grants.configure(name, member_capabilities(CAPABILITIES[name]))
        space.join(name)
    return space


def accept(decision: FrameVerdict) -> Envelope:
    assert isinstance(decision, Acceptance)
    return decision.envelope


def refuse(decision: FrameVerdict, code: str) -> dict[str, Any]:
    """The payload of the refusal's error."""
    assert isinstance(decision, Refusal)
    error = decision.error
    assert (decision.code, error.kind, error.sender) == (code, "system/error", "system:gateway")
    payload: dict[str, Any] = error.payload
    assert payload["error"] == code
    assert payload["message"]
    assert payload["message"].isprintable()
    return payload


def test_withdraw_is_listed_once() -> None:
    assert member_capabilities([{"kind": "mcp/*"}]).patterns == ({"kind": "mcp/*"},)


@pytest.mark.parametrize("kind", ["system.made-up", "space/invite-ack"])
def test_what_only_the_gateway_says_is_refused(kind: str) -> None:
    space = SpaceState()
    space.grants.configure("root", member_capabilities([{"kind": "*"}, {"kind": "system/*"}]))
    space.join("root")
    refuse(space.decide("root", frame_by("root", kind), DIALECT), "reserved_kind")


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        *(("mcp.request", each) for each in ("notifications/message", [kinds.CANCELLED], None, 1)),
        ("mcp.proposal", kinds.CANCELLED),
    ],
)
def test_only_a_cancel_takes_no_capability(kind: str, method: object) -> None:
    sent = frame_by("carol", kind, {"method": method})
    refuse(space_of("carol").decide("carol", sent, DIALECT), "capability_violation")


def answer(sender: str, request: str) -> bytes:
    return frame_by(sender, "mcp.response", {"result": {}}, correlation_id=[request])


def asked(to: object) -> SpaceState:
    space = space_of("alice", "bob", "carol")
    accept(space.decide("bob", frame_by("bob", "mcp.request", CALL, id="r1", to=to), DIALECT))
    return space


@pytest.mark.parametrize("to", [["carol"], "carol", ["alice", "carol"], [], None])
def test_who_was_asked_may_answer(to: object) -> None:
    accept(asked(to).decide("carol", answer("carol", "r1"), DIALECT))


def test_an_answer_is_let_through_however_much_was_asked_and_answered_since() -> None:
    space = asked(["carol"])
    for number in range(MAX_ORIGINS + 1):
        more = frame_by("bob", "mcp.request", {"method": "x"}, id=f"q{number}", to=["carol"])
        accept(space.decide("bob", more, DIALECT))
        accept(space.decide("carol", answer("carol", f"q{number}"), DIALECT))
    accept(space.decide("carol", answer("carol", "r1"), DIALECT))


def test_only_a_proposer_withdraws_however_many_proposals_have_ended_since() -> None:
    space = space_of("alice", "bob")

    def withdraw(sender: str, proposal: str) -> FrameVerdict:
        header = {"id": f"w{proposal}", "correlationId": proposal}
        return space.decide(
            sender, frame_by(sender, "mcp.withdraw", {"reason": "busy"}, **header), DIALECT
        )

    for id in ("p1", *(f"q{number}" for number in range(MAX_ORIGINS))):
        accept(space.decide("alice", frame_by("alice", "mcp.proposal", CALL, id=id), DIALECT))
        if id != "p1":
            accept(withdraw("alice", id))
    refuse(withdraw("bob", "p1"), "not_proposer")


UNFIT = [
    "a\n",
    "\u001b[2J",
    "\u202egnp.exe",
    "\u200b",
    "\u2028",
    "\ufeff",
    "\x7f",
    "x" * (MAX_ID_CHARS + 1),
]
GOOD = {"protocol": DIALECT, "id": "e1", "from": "alice", "kind": "chat", "payload": {}}


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"{", "invalid_json"),
        (b"[]", "invalid_envelope"),
        (json.dumps(GOOD).encode() + b"\xff", "invalid_utf8"),
        (json.dumps(GOOD).encode().replace(b"{}", b'{"a": "\xff"}'), "invalid_utf8"),
        (json.dumps(GOOD).encode().replace(b"{}", b'{"a": 1e999}'), "invalid_json"),
        (json.dumps(GOOD).encode().replace(b"{}", b'{"a": ' + b"9" * 5000 + b"}"), "invalid_json"),
        (json.dumps(GOOD).encode().replace(b"{}", b'{"a": "\\ud800"}'), "invalid_json"),
        (json.dumps(GOOD).encode().replace(b"{}", b"[" * 200 + b"]" * 200), "too_deep"),
        (json.dumps(GOOD).encode().replace(b"{}", b'[{"a":' * 30_000), "too_deep"),
        (json.dumps({**GOOD, "payload": {"a": "x" * (4 << 20)}}).encode(), "too_large"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "kind"}).encode(), "invalid_envelope"),
        *((json.dumps({**GOOD, name: value}).encode(), "invalid_envelope")
          for name, value in [
              ("protocol", "meup/v9"), ("protocol", 1),
              ("id", 1),
              ("from", ["alice"]),
              ("kind", ""), ("kind", 7),
              ("payload", []), ("payload", "hi"), ("payload", ""),
              ("to", 5), ("to", [1]), ("to", ["x\0"]), ("to", ["a"] * (MAX_NAMED + 1)),
              ("correlationId", {}), ("correlationId", "x" * (MAX_ID_CHARS + 1)),
              ("correlation_id", ["a"] * (MAX_NAMED + 1)),
              ("ts", 5), ("context", []),
              *((name, unfit) for unfit in UNFIT for name in ("id", "kind")),
              *((name, [unfit]) for unfit in UNFIT for name in ("to", "correlationId")),
          ]),
    ],
)  # fmt: skip
def test_bad_frame_is_refused(sent: bytes, code: str) -> None:
    refuse(space_of("alice").decide("alice", sent, DIALECT), code)


def test_limits_are_reached_without_a_refusal() -> None:
    name = "x" * MAX_ID_CHARS
    sent = frame_by("alice", "chat", id=name, to=[name] * MAX_NAMED, correlationId=name)
    space = space_of("alice")
    space.grants.configure(name, member_capabilities([]))
    accept(space.decide("alice", sent, DIALECT))


@pytest.mark.parametrize(("id", "told"), [("x7", ("x7",)), ("x" * 9000, ())])
def test_error_refers_to_a_bad_envelope_where_its_id_is_one(id: str, told: tuple[str, ...]) -> None:
    decision = space_of("alice").decide("alice", frame_by("alice", "chat", [1], id=id), DIALECT)
    assert isinstance(decision, Refusal)
    assert decision.error.correlation == told


@pytest.mark.parametrize(
    ("sender", "protocol", "code"),
    [("m" * 100_000, DIALECT, "identity_mismatch"), ("alice", "m" * 100_000, "invalid_envelope")],
)
def test_error_is_short_whatever_it_quotes(sender: str, protocol: str, code: str) -> None:
    sent = frame_by(sender, "chat", protocol=protocol)
    decision = space_of("alice").decide("alice", sent, DIALECT)
    assert len(refuse(decision, code)["message"]) <= MAX_ERROR_CHARS


def test_escaped_key_is_the_same_key() -> None:
    sent = (
        rb'{"protocol":"meup/v0.1","id":"1","from":"alice","fr\u006fm":"bob","kind":"chat",'
        rb'"payload":{}}'
    )
    refuse(space_of("alice").decide("alice", sent, DIALECT), "identity_mismatch")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)


@given(
    header=st.dictionaries(
        st.sampled_from([*GOOD, "to", "correlationId", "correlation_id", "ts", "context"]), JSON
    ),
    kind=st.sampled_from(["mcp/request", "mcp.response", "mcp.withdraw", "mcp.proposal", "chat"]),
)
def test_whatever_comes_is_decided(header: dict[str, object], kind: str) -> None:
    space = space_of("alice", "bob")
    sent = json.dumps({**GOOD, "kind": kind, **header}).encode()
    decision = space.decide("alice", sent, DIALECT)
    if isinstance(decision, Acceptance):
        assert decision.envelope.sender == "alice"
        assert isinstance(decision.envelope.payload, dict)


DELETE = {"method": "tools/call", "params": {"name": "delete_all"}}
READ = {"method": "tools/call", "params": {"name": "read_file"}}


@pytest.mark.rule("3.capability.as_read")
@pytest.mark.parametrize(
    "pattern", [{"params": {"name": "read_*"}}, {"params": {"name": "!delete_all"}}]
)
def test_a_wrapped_proposal_is_allowed_for_what_is_in_it(pattern: dict[str, Any]) -> None:
    space = SpaceState()
    space.grants.configure(
        "alice", member_capabilities([{"kind": "mcp/proposal", "payload": pattern}])
    )
    space.join("alice")
    accept(space.decide("alice", frame_by("alice", "mcp/proposal", {"proposal": READ}), DIALECT))
    sent = frame_by("alice", "mcp/proposal", {"proposal": DELETE})
    refuse(space.decide("alice", sent, DIALECT), "capability_violation")
