"""One line an envelope: what belongs together is seen, and nothing breaks out of its line."""

import re
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from meup_agent import Envelope
from meup_agent.cli.render.formatting import NARROW
from meup_agent.types import Cause, CauseStep
from tests.cli.commands import Glyphs, Timeline
from tests.wire import draft, payloads

ids = count()


def timeline(width: int | None = None, encoding: str = "utf-8") -> Timeline:
    return Timeline(
        lambda: width, Glyphs(encoding), lambda: datetime(2025, 6, 1, 9, 41, 7, 123000, UTC)
    )


def said(
    kind: str, payload: Any, sender: str, *to: str, about: str | None = None, id: str | None = None
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
    payloads.cancelled("r" * 32, Cause("unsafe", "rev", chain=(CauseStep("ann", "p", "unsafe"),))),
    "rev",
    "files",
    about="r" * 32,
)


def states(shown: list[str]) -> list[str]:
    return [line.rpartition("  ")[2] for line in shown]


JOIN = said("system/presence", {"event": "join", "participant": {"id": "ann"}}, "system:gateway")
WIDTHS = [53, 60, NARROW - 1, NARROW, 80, 100, 120]


def lines(*envelopes: Envelope, width: int | None = None) -> list[str]:
    shown = timeline(width)
    return [shown.line(shown.observe(each, float(at))).plain for at, each in enumerate(envelopes)]


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
    reject = said("mcp/reject", {"reason": "unsafe"}, "rev", "ann", about="p" * 32)
    shown = lines(PROPOSAL, REQUEST, RESPONSE, RESPONSE, WITHDRAW, CANCEL, late, reject)
    assert states(shown[3:]) == ["again", "too late", "too late", "too late", "too late"]
    assert lines(PROPOSAL, REQUEST, WITHDRAW, CANCEL, late)[4].endswith("too late")
    assert lines(PROPOSAL, REQUEST, WITHDRAW, late)[3].endswith("withdrawn")


@pytest.mark.parametrize(
    ("outcome", "last"), [("completed", "fulfilled"), ("failed", "failed"), ("not_run", "failed")]
)
def test_the_report_of_a_permit_says_what_came_of_it(outcome: str, last: str) -> None:
    meta = {payloads.TARGET: "ann", payloads.DOOR: {"agent": "codex"}}
    asked = {"method": "tools/call", "params": {"name": "Bash", "arguments": {}, "_meta": meta}}
    permit = {"content": [], "_meta": {payloads.PERMITTED: True}}
    shown = lines(
        said("mcp/proposal", asked, "ann", id="p"),
        said("mcp/request", {"id": 1, **asked}, "rev", "ann", about="p", id="r"),
        said("mcp/response", {"id": 1, "result": permit}, "ann", "rev", about="r"),
        said("mcp/report", {"outcome": outcome}, "ann", about="p"),
    )
    assert states(shown) == ["pending", "in progress", "permitted", last]


LONG = "what is to be written there, all of it, and " * 6 + "END"


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_arguments_and_the_mark_of_an_edit_are_never_cut(width: int) -> None:
    proposal = said("mcp/proposal", call(path="a.txt", text=LONG), "ann", "rev", id="p" * 32)
    edited = {"id": 1, **call(path="a.txt", text=f"x{LONG}")}
    request = said("mcp/request", edited, "rev", "files", about="p" * 32)
    proposed, requested = lines(proposal, request, width=width)
    for shown, state in ((proposed, " pending"), (requested, " in progress")):
        assert shown.partition("\n")[0].endswith(state)
    whole = squeezed(f'write(path="a.txt", text="{LONG}")')
    assert whole in squeezed(proposed.replace(" pending", ""))
    whole = squeezed(f'write(path="a.txt", text="x{LONG}") (edited)')
    assert whole in squeezed(requested.replace(" in progress", ""))


def test_an_edit_is_marked_whether_or_not_it_says_so() -> None:
    def request(**arguments: Any) -> Envelope:
        return said("mcp/request", {"id": 1, **call(**arguments)}, "rev", "files", about="p" * 32)

    assert lines(PROPOSAL, request(path="b.txt"))[1].endswith(
        '(path="b.txt") (edited)  in progress'
    )
    assert lines(PROPOSAL, request(path="a.txt"))[1].endswith('(path="a.txt")  in progress')
    marked = call(path="a.txt")
    marked["params"]["_meta"][payloads.EDITED] = True
    [line] = lines(said("mcp/request", {"id": 1, **marked}, "rev", "files", about="unseen"))
    assert "(edited)" in line


def test_a_call_that_is_longer_than_a_screen_says_that_it_is_cut() -> None:
    proposal = said("mcp/proposal", call(text="x" * 5_000), "ann", "rev")
    for width in (80, None):
        [line] = lines(proposal, width=width)
        assert "…[cut:4,000charactersareshown;meuptail--jsonshowsall])" in re.sub(r"\s", "", line)
    [line] = lines(said("mcp/proposal", call(text="x" * 1_500, path="END"), "ann", "rev"))
    assert "x" * 1_500 in line
    assert line.endswith('path="END")  pending')


@pytest.mark.parametrize("width", [60, 80, 120])
def test_long_names_and_ids_are_never_cut(width: int) -> None:
    names = ("the-first-of-all-proposers", "the-reviewer-of-what-it-proposes", "another")
    proposal = said("mcp/proposal", call(path="a.txt"), names[0], *names[1:], id="proposer-1")
    real = {"id": 1, **call()}
    request = said("mcp/request", real, names[1], "files", about="proposer-1", id="reviewer-77")
    first, second = lines(proposal, request, width=width)
    assert f"{names[0]}→{names[1]},{names[2]}" in re.sub(r"\s", "", first)
    assert "prop/revi" in re.sub(r"\s", "", second)


def test_many_addressees_are_counted() -> None:
    [line] = lines(said("chat", {"message": "hi"}, "ann", *(f"to{each}" for each in range(11))))
    assert "to7 and 3 more  chat" in line


FAILURES: list[dict[str, Any]] = [
    {"error": {"code": -32000, "message": "disk full"}},
    {"result": {"isError": True, "content": [{"type": "text", "text": "disk full"}]}},
]


@pytest.mark.parametrize("outcome", FAILURES)
def test_a_failed_tool_is_not_called_fulfilled(outcome: dict[str, Any]) -> None:
    failed = said("mcp/response", {"id": 1, **outcome}, "files", "rev", about="r" * 32)
    again = said("mcp/response", {"id": 1, **outcome}, "files", "rev", about="r" * 32)
    later = said("mcp/request", {"id": 2, **call(path="a.txt")}, "rev", "files", about="p" * 32)
    shown = lines(PROPOSAL, REQUEST, failed, again, later)
    assert states(shown[2:]) == ["failed", "again", "failed"]
    plain = said("mcp/request", {"method": "tools/call"}, "rev", "files", id="r" * 32)
    assert states(lines(plain, failed))[1] == "failed"


def test_a_refused_request_is_neither() -> None:
    error = {"code": -32000, "message": "no", "data": {"reason": "refused"}}
    refused = said("mcp/response", {"id": 1, "error": error}, "files", "rev", about="r" * 32)
    assert states(lines(PROPOSAL, REQUEST, refused))[2] == "refused"


def test_a_rejected_proposal_is_rejected_though_it_is_withdrawn_then() -> None:
    reject = said("mcp/reject", {"reason": "unsafe"}, "rev", "ann", about="p" * 32)
    other = said("mcp/reject", {"reason": "disagree"}, "eve", "ann", about="p" * 32)
    withdraw = said("mcp/withdraw", {"reason": "no_longer_needed"}, "ann", "rev", about="p" * 32)
    shown = lines(PROPOSAL, other, reject, withdraw, REQUEST)
    assert shown[3].endswith("withdraw  no_longer_needed, since rev rejected it: unsafe  rejected")
    assert shown[4].endswith("  rejected")
    of_its_own = said("mcp/withdraw", {"reason": "timeout"}, "ann", "rev", about="p" * 32)
    assert lines(PROPOSAL, reject, of_its_own)[2].endswith("withdraw  timeout  withdrawn")
    hostile = said("mcp/reject", {"reason": "\x1b[2J"}, "rev", "ann", about="p" * 32)
    assert lines(PROPOSAL, hostile, withdraw)[2].isprintable()


def test_what_is_said_again_after_a_reconnect_is_marked() -> None:
    def ends(number: int) -> list[Envelope]:
        # The ids are new, what they say is not.
        return [
            said("mcp/withdraw", {"reason": "unsafe"}, "ann", "rev", about="p" * 32),
            CANCEL.replace(id=f"c{number}"),
            said("mcp/reject", {"reason": "busy"}, "rev", "ann", about="q"),
            RESPONSE.replace(id=f"a{number}", correlation=("s",)),
        ]

    shown = lines(PROPOSAL, REQUEST, *ends(1), PROPOSAL, REQUEST, *ends(2))
    assert states(shown[6:]) == ["again"] * 6
    assert "again" not in states(shown[:6])


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
        (said("mcp/response", FAILURES[0], "f", "r"), "response  error -32000: disk full"),
        (said("mcp/response", FAILURES[1], "f", "r"), "response  failed: disk full"),
        (
            said("mcp/request", payloads.progress("t", 3, 4, "reading"), "f", "r"),
            "progress  ━━━━━━━━╌╌ 3/4 reading",
        ),
        (said("mcp/request", payloads.progress("t", 7, None, None), "f", "r"), "progress  7"),
        (JOIN, "ann                      join"),
        (
            said("system/error", {"error": "capability_violation", "message": "no"}, "gateway"),
            "refused   capability_violation: no",
        ),
        (said("acme/event", {"a": 1}, "ann"), "acme/event  {a: 1}"),
        (said("mcp/request", {"method": "tools/list"}, "ann", "f"), "request   tools/list"),
        (draft("chat", b"[1]", id="x", sender="ann"), "chat      {}"),
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
    (
        *("mcp/proposal", "mcp/request", "mcp/response", "mcp/withdraw", "mcp/reject", "chat"),
        *("system/welcome", "system/presence", "system/error", "x/y"),
    )
)
names = st.sampled_from(
    (
        *("method", "params", "result", "error", "message", "reason", "event"),
        *("participant", "you", "id"),
    )
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | texts, inner, max_size=4),
    max_leaves=10,
)


@given(kinds | texts, values, texts, st.lists(texts, max_size=2), st.sampled_from(WIDTHS))
def test_no_line_is_broken(kind: str, payload: Any, sender: str, to: list[str], width: int) -> None:
    envelope = said(kind, payload, sender, *to, about=sender)
    line, *below = lines(envelope, width=width)[0].split("\n")
    assert all(each.isprintable() and cell_len(each) <= width for each in (line, *below))
    # What goes on below cannot be taken for the first line of another envelope.
    assert all(each.startswith(" " * 9) or not each for each in below)
    assert lines(envelope)[0].isprintable()


@pytest.mark.parametrize("width", [80, 120])
def test_the_state_stands_at_the_right_edge(width: int) -> None:
    shown = lines(PROPOSAL, REQUEST, RESPONSE, width=width)
    firsts = [line.partition("\n")[0] for line in shown]
    assert {len(line) for line in firsts} == {width}
    assert states(firsts) == ["pending", "in progress", "fulfilled"]


def test_a_long_kind_is_shown_whole() -> None:
    [line] = lines(said("participant/pause", {"timeout": 5}, "ann", "bob"), width=120)
    assert line.endswith("ann → bob                pause     participant/pause {timeout: 5}")


def test_a_narrow_terminal_has_what_is_said_below() -> None:
    assert "\n".join(lines(PROPOSAL, REQUEST, RESPONSE, width=60)).split("\n") == [
        "09:41:07 pppp      ann → rev           proposal      pending",
        '                   files.write(path="a.txt")',
        "09:41:07 pppp/rrrr rev → files         request   in progress",
        '                   write(path="a.txt")',
        "09:41:07 pppp/rrrr files → rev         response    fulfilled",
        "                   {ok: 1}",
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
        plain.line(plain.observe(each, 0.0)).plain.encode("ascii")
