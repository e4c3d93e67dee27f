"""The call that a reviewer is shown: byte for byte what its digest covers, and what runs."""

import hashlib
import json
from contextlib import suppress
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from meup_agent import Agent, Proposal, Request
from tests.interaction.people import Meeting, Notes, gathered, raw, until
from tests.wire import decode, kinds, payloads

WRITTEN = {
    "number forms": r'{"a":1.0,"b":1e2,"c":-0.0,"d":0.1,"e":1E-7,"f":12345678901234567e3,"g":10}',
    "key order": r'{"b":{"z":1,"a":[3,2,1]},"a":2,"€":3,"$":4}',
    "unicode": r'{"nfc":"é","nfd":"é","bidi":"\u202eabc","pair":"\ud83d\ude00","nul":"\u0000"}',
    "escapes": r'{"\u0061":"\u0041\/\t","quote":"\"","separator":"\u2028"}',
    "a key twice": r'{"path":"/harmless","path":"/secret"}',
    "nothing": r'{"null":null,"empty":{},"list":[],"no":false,"zero":0,"text":""}',
    "spaces": r'{ "a" :   [ 1 , 2 ] }',
}


def executor(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.on_request("tools/call")
    async def run(request: Request) -> dict[str, Any]:
        notes(request.params)
        return {"content": []}

    return agent


@pytest.mark.rule("6.digest", "6.digest.shown")
@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
async def test_what_is_shown_is_what_the_digest_covers_and_what_runs(
    meeting: Meeting, notes: Notes, written: str
) -> None:
    shown: list[Proposal] = []
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def look(proposal: Proposal) -> None:
        shown.append(proposal)
        await proposal.fulfill()

    async with gathered(meeting, executor(notes), reviewer), raw(meeting, "proposer") as alice:
        call = f'{{"name":"work","arguments":{written}}}'
        params = call[:-1] + ',"_meta":{"dev.meup/target":"tools"}}'
        frame = (
            '{"protocol":"meup/v0.1","id":"p1","from":"proposer","kind":"mcp.proposal",'
            f'"payload":{{"method":"tools/call","params":{params}}}}}'
        )
        await alice.transport.send(frame.encode())
        request = await alice.hear(lambda e: e.kind == kinds.MCP_REQUEST and bool(e.correlation))
        await until(lambda: bool(notes.all))
        (proposal,) = shown
        canonical = rfc8785.dumps(
            {"method": "tools/call", "params": json.loads(call), "target": "tools"}
        )
        assert proposal.canonical == canonical
        meta = payloads.read_call(request.payload).meta
        assert meta[payloads.DIGEST] == hashlib.sha256(canonical).hexdigest()
        assert payloads.EDITED not in meta
        said = json.loads(canonical, parse_int=float)["params"]["arguments"]
        assert said == proposal.arguments
        ran = payloads.canonical("tools/call", notes.all[0], "tools")
        assert ran == canonical
        assert decode(frame.encode()).id == proposal.id


@pytest.mark.rule("6.digest.shown")
def test_what_has_no_canonical_form_has_no_digest() -> None:
    assert payloads.canonical("x", {"n": 2**53 + 1}, None) is None
    assert payloads.digest("x", {"n": 2**53 + 1}, None) is None


names = st.text(max_size=3) | st.sampled_from(["\ue000", "\U00010000", "\x7f", "\u2028", "\ud800"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | names
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.rule("6.digest.shown")
@given(values)
def test_its_form_is_that_of_rfc_8785(value: Any) -> None:
    form = None
    with suppress(rfc8785.CanonicalizationError, UnicodeEncodeError):
        form = rfc8785.dumps({"method": "x", "params": {"a": value}})
    assert payloads.canonical("x", {"a": value}, None) == form


def test_what_contains_itself_has_no_digest() -> None:
    value: dict[str, Any] = {}
    value["a"] = [value]
    assert payloads.digest("x", value, None) is None
