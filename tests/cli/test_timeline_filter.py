"""`meup tail` leaves out what no filter lets through, and follows it all the same."""

import json
from typing import Any

import pytest

from meup_agent import Envelope, Space
from meup_agent.cli.render.timeline import TimelineFilter, suggest_kinds
from meup_agent.gateway import ThreadedGateway
from tests.cli.participants import act_as
from tests.cli.processes import INTERRUPT, running
from tests.cli.test_timeline import (
    CANCEL,
    JOIN,
    PROPOSAL,
    REQUEST,
    RESPONSE,
    WITHDRAW,
    said,
    timeline,
)
from tests.wire import draft

CHAT = said("chat", {"message": "why?"}, "rev", about="p" * 32)
ASIDE = said("chat", {"message": "hello"}, "ann", "bob")
REJECT = said("mcp/reject", {"reason": "unsafe"}, "rev", about="p" * 32)
REFUSED = said("system/error", {"error": "no", "message": "no"}, "gateway", "ann", about="p" * 32)
UNREADABLE = Envelope(id="u", sender="ann", kind="mcp/request", raw_payload=b"[1e999999999999")
CHAIN = [PROPOSAL, REJECT, CHAT, REQUEST, CANCEL, RESPONSE, WITHDRAW, REFUSED]
EVERYTHING = [JOIN, ASIDE, UNREADABLE, *CHAIN]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("proposals", "proposal"),
        ("mcp.reqest", "mcp.request"),
        ("cancel", None),
        ("mcp/request", None),
        ("mcp.reqest*", None),
        ("!cancl", None),
        ("acme/event", None),
    ],
)
def test_a_kind_that_is_close_to_a_known_one_is_remarked_on(word: str, meant: str | None) -> None:
    told = suggest_kinds([word])
    assert len(told) == (meant is not None)
    assert all(f"did you mean {meant}?" in each for each in told)


def shown(*envelopes: Envelope, **choices: Any) -> list[Envelope]:
    shows, looks = TimelineFilter(**choices), timeline()
    return [
        each for at, each in enumerate(envelopes) if shows.shows(looks.observe(each, float(at)))
    ]


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({}, EVERYTHING),
        ({"kind": ["chat"]}, [ASIDE, CHAT]),
        ({"kind": ["mcp.re*"]}, [UNREADABLE, REJECT, REQUEST, CANCEL, RESPONSE]),
        ({"kind": ["mcp/re*"]}, [UNREADABLE, REJECT, REQUEST, CANCEL, RESPONSE]),
        ({"kind": ["cancel", "withdraw"]}, [CANCEL, WITHDRAW]),
        ({"kind": ["!mcp.*"]}, [JOIN, ASIDE, CHAT, REFUSED]),
        ({"sender": ["files"]}, [RESPONSE]),
        ({"sender": ["gateway"]}, [JOIN, REFUSED]),
        ({"to": ["files"]}, [REQUEST, CANCEL]),
        ({"to": ["files", "bob"], "sender": ["ann"]}, [ASIDE]),
        ({"who": ["files"]}, [REQUEST, CANCEL, RESPONSE]),
        ({"who": ["ann"]}, [JOIN, ASIDE, UNREADABLE, PROPOSAL, WITHDRAW, REFUSED]),
        ({"about": "p" * 32}, CHAIN),
        ({"about": "pp"}, CHAIN),
        ({"about": "r" * 32}, CHAIN[3:]),
        ({"about": "pppp/rrrr"}, CHAIN[3:]),
        ({"about": "pppp", "kind": ["response"]}, [RESPONSE]),
        ({"about": "q"}, []),
    ],
)
def test_what_is_shown(choices: dict[str, Any], expected: list[Envelope]) -> None:
    assert shown(*EVERYTHING, **choices) == expected


def thinking(kind: str, words: str, *, sender: str = "ann", id: str = "") -> Envelope:
    return draft(
        f"reasoning/{kind}",
        {"reason" if kind == "cancel" else "message": words},
        id=id or f"{kind}-{words}",
        sender=sender,
        context=None if kind == "start" else "s",
    )


@pytest.mark.rule("4.18.context")
def test_thoughts_are_folded_into_the_end_that_counts_them() -> None:
    start = thinking("start", "why?", id="s")
    first, second = thinking("thought", "so"), thinking("thought", "or\nso")
    other = thinking("thought", "mine", sender="bob")
    end = thinking("conclusion", "because")
    everything = (start, first, other, second, end)
    assert shown(*everything, fold=True) == [start, end]
    assert shown(*everything) == list(everything)
    assert shown(*everything, fold=True, kind=["reasoning/thought"]) == [first, other, second]
    assert shown(*everything, fold=True, about="s") == list(everything)
    looks = timeline()
    texts = [str(looks.line(looks.observe(each, 0.0))) for each in everything]
    assert "reasons   why?" in texts[0]
    assert "thought   or\\nso" in texts[3]
    assert "reasoned  because (2 thoughts)" in texts[4]
    # All begin with the id of the start.
    assert {text.split()[1] for text in texts} == {"s"}


@pytest.mark.rule("4.18.cancel")
def test_stopped_line_of_thought_says_why() -> None:
    looks = timeline()
    said = (
        thinking("start", "why?", id="s"),
        thinking("thought", "so"),
        thinking("cancel", "superseded"),
    )
    texts = [str(looks.line(looks.observe(each, 0.0))) for each in said]
    assert "stopped   superseded (1 thought)" in texts[2]


def test_a_state_is_known_from_what_was_not_shown() -> None:
    shows, looks = TimelineFilter(kind=["response"]), timeline()
    seen = [looks.observe(each, float(at)) for at, each in enumerate([PROPOSAL, REQUEST, RESPONSE])]
    [line] = [looks.line(each).plain for each in seen if shows.shows(each)]
    assert line.endswith("pppp/rrrr  files → rev              response  {ok: 1}  fulfilled")


def test_a_cancel_that_names_only_the_json_rpc_id_belongs_to_its_request() -> None:
    request = said("mcp/request", {"id": 7, "method": "tools/list"}, "rev", about="p" * 32)
    payload = {"method": "notifications/cancelled", "params": {"requestId": 7}}
    theirs, anothers = said("mcp/request", payload, "rev"), said("mcp/request", payload, "bob")
    assert shown(PROPOSAL, request, theirs, anothers, about="pppp") == [PROPOSAL, request, theirs]


def test_the_first_that_begins_so_is_shown_until_one_is_named_exactly() -> None:
    ten, one = (
        draft("mcp/proposal", {"method": "x"}, id=name, sender="ts") for name in ("ts-10", "ts-1")
    )
    shows, looks = TimelineFilter(about="ts-1"), timeline()
    assert [shows.shows(looks.observe(each, 0.0)) for each in (ten, one, ten)] == [
        True,
        True,
        False,
    ]

    shows, looks = TimelineFilter(about="ts"), timeline()
    assert [shows.shows(looks.observe(each, 0.0)) for each in (ten, one)] == [True, False]
    assert shows.chain is not None
    assert (shows.chain.exchange, shows.chain.other) == ("ts-10", "ts-1")


def test_an_exchange_is_followed(gateway: ThreadedGateway, tail_settings: dict[str, str]) -> None:
    async def speak(space: Space) -> None:
        for name in ("feed01", "feed02", "cafe"):
            await space.send("mcp/reject", {"reason": "policy"}, correlation=name)
        await space.chat("because", about="feed01")
        await space.chat("the end")

    with running("tail", "--about", "feed", variables=tail_settings) as tail:
        tail.until("waiting for feed; what came before this moment is not shown")
        act_as(gateway, "alice", speak)
        tail.until("because")
        tail.end(INTERRUPT)
    assert tail.out.count("policy") == 1
    assert "more than one id begins with feed: this is feed01; for feed02, give more" in tail.out
    assert "cafe" not in tail.out
    assert "the end" not in tail.out


def test_json_passes_the_filters(gateway: ThreadedGateway, tail_settings: dict[str, str]) -> None:
    async def speak(space: Space) -> None:
        await space.chat("to everybody")
        await space.chat("to bob", to="bob")

    with running("tail", "--json", "--to", "bob", variables=tail_settings) as tail:
        tail.until("no others", stream="err")
        act_as(gateway, "alice", speak)
        tail.until("to bob")
        tail.end(INTERRUPT)
    [line] = tail.out.splitlines()
    assert json.loads(line)["payload"] == {"message": "to bob"}
