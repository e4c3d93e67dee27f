"""One line an envelope: what belongs together is seen, and nothing breaks out of its line."""

from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from meup_agent.cli.timeline import NARROW, Glyphs, Timeline
from meup_agent.protocol import payloads
from meup_agent.protocol.envelope import Envelope, draft
from meup_agent.protocol.reasons import Cause, Link

ids = count()


def timeline(width: int | None = None, encoding: str = "utf-8") -> Timeline:
    return Timeline(
        lambda: width, Glyphs(encoding), lambda: datetime(2025, 6, 1, 9, 41, 7, 123000, UTC)
    )


def said(
    kind: str,
    payload: Any,
    sender: str,
    *to: str,
    about: str | None = None,
    id: str | None = None,
) -> Envelope:
    return draft(
        kind,
        payload,
        id=id or f"{next(ids):x}",
        sender=sender,
        to=to,
        correlation=() if about is None else (about,),
    )


def call(tool: str = "write", **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments, "_meta": {payloads.TARGET: "files"}}
    return {"method": "tools/call", "params": params}


PROPOSAL = said("mcp/proposal", call(path="a.txt"), "ann", "rev", id="p" * 32)
REQUEST = said(
    "mcp/request", {"id": 1, **call(path="a.txt")}, "rev", "files", about="p" * 32, id="r" * 32
)
RESPONSE = said(
    "mcp/response", {"id": 1, "result": {"structuredContent": {"ok": 1}}}, "files", "rev",
    about="r" * 32,
)  # fmt: skip
WITHDRAW = said("mcp/withdraw", {"reason": "unsafe"}, "ann", "rev", about="p" * 32)
CANCEL = said(
    "mcp/request",
    payloads.cancelled("r" * 32, Cause("unsafe", "rev", chain=(Link("ann", "p", "unsafe"),))),
    "rev",
    "files",
    about="r" * 32,
)


JOIN = said("system/presence", {"event": "join", "participant": {"id": "ann"}}, "system:gateway")
WIDTHS = [53, 60, NARROW - 1, NARROW, 80, 100, 120]


def lines(*envelopes: Envelope, width: int | None = None) -> list[str]:
    shown = timeline(width)
    return [shown.envelope(each, float(at)).plain for at, each in enumerate(envelopes)]


def test_a_fulfilled_proposal_is_followed_by_its_ids_and_states() -> None:
    assert lines(PROPOSAL, REQUEST, RESPONSE) == [
        '09:41:07.123  pppp       ann → rev                proposal  files.write(path="a.txt")  '
        "pending",
        '09:41:07.123  pppp/rrrr  rev → files              request   write(path="a.txt")  '
        "in progress",
        "09:41:07.123  pppp/rrrr  files → rev              response  {ok: 1}  fulfilled",
    ]


def test_a_withdrawal_stops_what_it_began() -> None:
    shown = lines(PROPOSAL, REQUEST, WITHDRAW, CANCEL)
    assert shown[2].endswith("withdraw  unsafe  withdrawn")
    assert shown[3].endswith("cancel    unsafe, begun by ann  cancelled")
    assert "pppp/rrrr" in shown[3]


def test_what_comes_too_late_or_again_is_called_so() -> None:
    late = said("mcp/response", {"id": 1, "result": {}}, "files", "rev", about="r" * 32)
    shown = lines(PROPOSAL, REQUEST, RESPONSE, RESPONSE, WITHDRAW, CANCEL)
    assert [line.rpartition("  ")[2] for line in shown[3:]] == ["again", "too late", "too late"]
    assert lines(PROPOSAL, REQUEST, WITHDRAW, CANCEL, late)[4].endswith("withdrawn")


def test_nothing_is_claimed_of_what_began_before_we_looked() -> None:
    for envelope in (RESPONSE, CANCEL):
        assert not lines(envelope)[0].endswith("too late")


def test_a_request_without_a_proposal_ends_once() -> None:
    request = said("mcp/request", {"method": "tools/list"}, "rev", "files", id="r" * 32)
    late = said("mcp/response", {"result": {}}, "files", "rev", about="r" * 32)
    shown = lines(request, RESPONSE, late, CANCEL)
    assert [line.endswith("too late") for line in shown] == [False, False, True, True]


def test_a_withdrawal_by_somebody_else_changes_nothing() -> None:
    stolen = said("mcp/withdraw", {"reason": "other"}, "eve", about="p" * 32)
    shown = lines(PROPOSAL, stolen, REQUEST)
    assert shown[1].endswith("not theirs")
    assert shown[2].endswith("in progress")


def test_a_rejection_and_its_explanation_belong_to_the_proposal() -> None:
    reject = said("mcp/reject", {"reason": "unsafe"}, "rev", "ann", about="p" * 32, id="j" * 32)
    chat = said("chat", {"message": "it leaves the folder"}, "rev", "ann", about="j" * 32)
    shown = lines(PROPOSAL, reject, chat)
    assert shown[1].endswith("reject    unsafe  rejected")
    assert all("pppp " in line for line in shown)


@pytest.mark.parametrize(
    ("envelope", "words"),
    [
        (
            said("mcp/response", {"error": {"code": -32602, "message": "no such file"}}, "f", "r"),
            "response  error -32602: no such file",
        ),
        (
            said(
                "mcp/response",
                {"result": {"isError": True, "content": [{"type": "text", "text": "disk full"}]}},
                "f",
                "r",
            ),
            "response  failed: disk full",
        ),
        (
            said("mcp/request", payloads.progress("t", 3, 4, "reading"), "f", "r"),
            "progress  ━━━━━━━━╌╌ 3/4 reading",
        ),
        (
            said("mcp/request", payloads.progress("t", 7, None, None), "f", "r"),
            "progress  7",
        ),
        (
            said("system/presence", {"event": "join", "participant": {"id": "ann"}}, "gateway"),
            "ann                      join",
        ),
        (
            said("system/error", {"error": "capability_violation", "message": "no"}, "gateway"),
            "refused   capability_violation: no",
        ),
        (said("acme/event", {"a": 1}, "ann"), "acme/event  {a: 1}"),
        (said("mcp/request", {"method": "tools/list"}, "ann", "f"), "request   tools/list"),
        (draft("chat", b"[1]", id="x", sender="ann"), "chat      null"),
    ],
)
def test_every_kind_has_words(envelope: Envelope, words: str) -> None:
    assert words in lines(envelope)[0]


def test_a_payload_that_cannot_be_read_is_shown_as_that() -> None:
    for raw in (b'"\\ud800"', b"[" * 100_000 + b"]" * 100_000, b'{"message": 1e999}'):
        [line] = lines(draft("chat", raw, id="x", sender="ann"))
        assert "ann" in line


def test_short_ids_are_longer_where_they_would_be_the_same() -> None:
    chats = [said("chat", {}, "a", id=name) for name in ("abcd" * 8, "abcd1" * 6, "client-12")]
    assert [line.split()[1] for line in lines(*chats)] == ["abcd", "abcd1", "client-12"]


texts = st.text(max_size=200)
kinds = st.sampled_from(
    [
        "mcp/proposal",
        "mcp/request",
        "mcp/response",
        "mcp/withdraw",
        "mcp/reject",
        "chat",
        "system/welcome",
        "system/presence",
        "system/error",
        "x/y",
    ]
)
names = st.sampled_from(
    [
        "method",
        "params",
        "result",
        "error",
        "message",
        "reason",
        "event",
        "participant",
        "you",
        "id",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | texts, inner, max_size=4),
    max_leaves=10,
)


@given(kinds | texts, values, texts, st.lists(texts, max_size=2), st.sampled_from(WIDTHS))
def test_nothing_leaves_its_line(
    kind: str, payload: Any, sender: str, to: list[str], width: int
) -> None:
    envelope = said(kind, payload, sender, *to, about=sender)
    line, *below = timeline(width).envelope(envelope, 0.0).plain.split("\n")
    assert all(each.isprintable() and cell_len(each) <= width for each in (line, *below))
    # Only a narrow terminal has a second line, and none that could be taken for a first one.
    assert len(below) <= (width < NARROW)
    assert all(each.startswith(" " * 19) for each in below)
    assert timeline(None).envelope(envelope, 0.0).plain.isprintable()


@pytest.mark.parametrize("width", [80, 120])
def test_the_state_stands_at_the_right_edge(width: int) -> None:
    shown = lines(PROPOSAL, REQUEST, RESPONSE, width=width)
    assert {len(line) for line in shown} == {width}
    assert [line.rpartition("  ")[2] for line in shown] == ["pending", "in progress", "fulfilled"]


def test_a_long_kind_is_shown_whole() -> None:
    [line] = lines(said("participant/pause", {"timeout": 5}, "ann", "bob"), width=120)
    assert line.endswith("ann → bob                pause     participant/pause {timeout: 5}")


def test_a_narrow_terminal_has_what_is_said_below() -> None:
    shown = [line.split("\n") for line in lines(PROPOSAL, REQUEST, RESPONSE, width=60)]
    assert shown == [
        [
            "09:41:07 pppp      ann → rev           proposal      pending",
            '                   files.write(path="a.txt")',
        ],
        [
            "09:41:07 pppp/rrrr rev → files         request   in progress",
            '                   write(path="a.txt")',
        ],
        [
            "09:41:07 pppp/rrrr files → rev         response    fulfilled",
            "                   {ok: 1}",
        ],
    ]
    assert "\n" not in lines(JOIN, width=60)[0]


@pytest.mark.parametrize("width", [60, 80])
def test_a_note_is_wrapped_and_not_cut(width: int) -> None:
    note = timeline(width).note("disk", "has", "word " * 20).plain
    assert all(len(line) <= width for line in note.splitlines())
    assert note.count("word") == 20


def test_an_output_without_the_glyphs_gets_plain_ones() -> None:
    plain = timeline(120, encoding="ascii")
    for each in (PROPOSAL, said("mcp/request", payloads.progress("t", 1, 2, "x" * 90), "f", "r")):
        plain.envelope(each, 0.0).plain.encode("ascii")
