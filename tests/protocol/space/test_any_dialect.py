"""Whatever a member says in any dialect means the same to those of every other."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent import Envelope
from meup_agent.errors import NotExpressible
from meup_agent.protocol.management_payloads import READERS
from tests.protocol.space.test_server import Listener, host_with
from tests.protocol.test_dialect_translation import comparable, json_values, objects
from tests.spaces import FrameFormat, member_capabilities
from tests.wire import DIALECTS, decode, draft, encode, kinds

MCPX = "mcpx/v0.1"

# What a space takes: nothing unprintable in a name, and nothing that it would have to carry out.
names = st.text("abc:/.-_é ", min_size=1, max_size=6)
PLAIN = sorted(
    set(kinds.KINDS) - set(READERS) - {k for k in kinds.KINDS if k.startswith("system/")}
)
payloads = (
    objects
    | st.builds(lambda text: {"message": text}, names)
    | st.builds(lambda text, form: {"text": text, "format": form}, names, names)
    | st.builds(lambda call: {"proposal": call}, objects)
    | st.builds(lambda rpc, rest: {"id": rpc, **rest}, names | st.integers(), objects)
    | st.builds(lambda name, rest: {"method": name, **rest}, names, objects)
)
envelopes = st.builds(
    draft,
    st.sampled_from(PLAIN) | st.sampled_from(["mcp/request", "mcp/response", "chat"]) | names,
    payloads,
    id=names,
    sender=st.just("alice"),
    to=st.lists(names, max_size=2).map(tuple),
    correlation=st.lists(names, max_size=3, unique=True).map(tuple),
    context=st.none() | names,
    ts=st.just("2025-01-01T00:00:00.000Z"),
)


@pytest.mark.rule("1.one_space", "1.forward.between", "1.forward.same_dialect", "1.unknown_kept")
@given(envelope=envelopes, odd=json_values, spoken=st.sampled_from(sorted(DIALECTS)))
def test_everybody_gets_it_in_their_own_or_it_cannot_be_said_there(
    envelope: Envelope, odd: Any, spoken: str
) -> None:
    try:
        frame = encode(envelope, spoken)
    except NotExpressible:
        return
    frame = json.dumps({**json.loads(frame), "x-odd": odd}).encode()
    host, (alice,) = host_with("alice")
    host.grants.configure("alice", member_capabilities([{"kind": "*"}]))
    others = [Listener(dialect) for dialect in DIALECTS]
    for listener in others:
        listener.form = FrameFormat(listener.participant)
        host.grants.configure(listener.participant, member_capabilities([]))
        host.join(listener)
    for listener in (alice, *others):
        listener.frames.clear()
    accepted: list[Envelope] = []

    def took(answer: Any) -> None:
        if hasattr(answer, "envelope"):
            accepted.append(answer.envelope)

    host.receive_as("alice", frame, spoken, took)
    if not accepted:
        return
    for listener in others:
        if not listener.frames:
            assert (listener.participant, host.counters.not_expressible) == (MCPX, 1)
            continue
        heard = decode(listener.frames[0], listener.participant)
        # What a response answers is what the gateway found out, wherever it is said.
        assert comparable(heard) == comparable(accepted[0])
        assert {name: json.loads(raw) for name, raw in heard.extra} == {"x-odd": odd}
        if listener.participant == spoken:
            assert listener.frames[0] == frame
