"""An envelope is translated once for each dialect that is present."""

import json
from collections import Counter

import pytest

from meup_agent import Envelope
from meup_agent.protocol.space import members
from tests.protocol.space.test_server import Listener, chat, host_with
from tests.spaces import (
    FrameFormat,
    MemoryJournal,
    SpaceCounters,
    SpaceServer,
    fanout,
    ignore,
    member_capabilities,
)
from tests.wire import DIALECTS, encode

V01, V02, V04, MCPX = "meup/v0.1", "meup/v0.2", "mew/v0.4", "mcpx/v0.1"


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts of writes, by dialect."""
    seen: Counter[str] = Counter()

    def counted(envelope: Envelope, dialect: str) -> bytes:
        seen[dialect] += 1
        return encode(envelope, dialect)

    for module in (fanout, members):  # what the gateway says itself is encoded before the journal
        monkeypatch.setattr(module, "encode", counted)
    return seen


@pytest.mark.rule("1.one_space")
def test_an_envelope_is_written_once_for_each_dialect_that_is_present(
    translated: Counter[str],
) -> None:
    host, (alice,) = host_with("alice")
    others: list[Listener] = []
    for dialect in (V04, V02, MCPX):
        for numbered in (True, False, False):
            listener = Listener(f"{dialect}-{len(others)}")
            listener.form = FrameFormat(dialect, numbered)
            host.grants.configure(listener.participant, member_capabilities([]))
            host.join(listener)
            others.append(listener)
    for listener in (alice, *others):
        listener.frames.clear()
    translated.clear()
    host.receive(alice, chat("alice"))
    assert alice.frames == [chat("alice")]
    assert translated == {V04: 1, V02: 1, MCPX: 1}
    for listener in others:
        said = json.loads(listener.frames[0])
        assert (said["protocol"], "seq" in said) == (listener.form.dialect, listener.form.numbered)

    # Nor does anything come out as what was said before, or what the gateway says more than once.
    translated.clear()
    host.leave(others.pop())
    assert translated == dict.fromkeys(DIALECTS, 1)
    for listener in others:
        assert json.loads(listener.frames[1])["kind"] == "system/presence"


@pytest.mark.rule("1.rpc_ids")
def test_what_a_response_answers_is_known_after_a_restart() -> None:
    """An answer by JSON-RPC id alone, to a request that was made before."""
    journal = MemoryJournal(lambda: 0)
    call = b'{"protocol":"mew/v0.4","id":"r","from":"alice","kind":"mcp/request","to":["bob"],'
    call += b'"payload":{"id":7,"method":"tools/list"}}'
    hello = b'{"protocol":"mcpx/v0.1","id":"h","from":"bob","kind":"chat","payload":{}}'
    answer = b'{"protocol":"mcpx/v0.1","id":"a","from":"bob","kind":"mcp","to":["alice"],'
    answer += b'"payload":{"id":7,"result":{}}}'
    may = {"alice": member_capabilities([{"kind": "*"}])}
    # Nothing but having been asked allows the answer.
    may["bob"] = member_capabilities([{"kind": "chat"}])
    for said in ((("alice", V04, call), ("bob", MCPX, hello)), (("bob", MCPX, answer),)):
        host = SpaceServer(
            "demo",
            new_id=lambda: "g",
            participants=may,
            journal=journal,
            now=lambda: 0,
            counters=SpaceCounters(),
        )
        for who, dialect, frame in said:
            host.receive_as(who, frame, dialect, ignore)
        assert not host.counters.refused
    (*_, last) = journal.recover("demo", since=0, limit=10).entries
    assert last.envelope.correlation == ("r",)


@pytest.mark.rule("1.one_space")
def test_what_cannot_be_said_is_counted_once_for_each_dialect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host, (alice,) = host_with("alice")
    host.grants.configure("alice", member_capabilities([{"kind": "*"}]))
    deaf = [Listener("bob"), Listener("carol")]
    for listener, numbered in zip(deaf, (True, False), strict=True):
        listener.form = FrameFormat(MCPX, numbered)
        host.grants.configure(listener.participant, member_capabilities([]))
        host.join(listener)
    for listener in (alice, *deaf):
        listener.frames.clear()
    host.receive(alice, chat("alice").replace(b'"chat"', b'"mcp"'))
    assert [len(listener.frames) for listener in (alice, *deaf)] == [1, 0, 0]
    assert host.counters.not_expressible == 1
    (line,) = caplog.messages
    assert MCPX in line


def test_forms_that_do_not_take_an_envelope_have_no_frame_made_of_it() -> None:
    host, (alice,) = host_with("alice")
    asked: list[str] = []

    def takes(envelope: Envelope) -> bool:
        asked.append(envelope.id)
        return envelope.id != "1"

    readers = [Listener("bob"), Listener("carol")]
    for reader in readers:
        reader.form = FrameFormat(MCPX, numbered=True, takes=takes)
        host.grants.configure(reader.participant, member_capabilities([]))
        host.join(reader)
    for listener in (alice, *readers):
        listener.frames.clear()
    asked.clear()
    host.receive(alice, chat("alice", 1))
    host.receive(alice, chat("alice", 2))
    assert len(alice.frames) == 2
    assert [len(each.frames) for each in readers] == [1, 1]
    # Once for all of one form, however many they are.
    assert asked == ["1", "2"]
