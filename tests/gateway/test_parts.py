"""The gateway's smaller parts, each by itself."""

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.errors import ConfigurationError, UsageError
from meup_agent.gateway.admission import NotAdmitted
from meup_agent.gateway.auth import Identity, Tokens, new_token
from meup_agent.gateway.edge.handshake import bearer
from meup_agent.gateway.edge.websocket import (
    BINARY,
    CONTINUATION,
    PROTOCOL_ERROR,
    TEXT,
    Assembler,
    BadMessage,
    pack_text,
)
from meup_agent.gateway.embedded import Gateway
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.logs import MAX_SHOWN_CHARS, quote
from meup_agent.gateway.presets import GUESTS, PARTICIPANTS, dev_config
from meup_agent.transport.base import TOO_BIG


def test_tokens_tell_who_one_is() -> None:
    alice, bob = Identity("demo", "alice"), Identity("demo", "bob")
    tokens = Tokens([("a", alice), ("b", bob), ("a2", alice)])
    assert tokens.identify("a") == tokens.identify("a2") == alice
    assert tokens.identify("b") == bob


@pytest.mark.parametrize("token", ["", "c", "A", "a ", "é", "\ud800", "a" * 100_000])
def test_other_tokens_tell_nothing(token: str) -> None:
    assert Tokens([("a", Identity("demo", "alice"))]).identify(token) is None


def test_tokens_are_not_kept() -> None:
    tokens = Tokens([("very-secret", Identity("demo", "alice"))])
    assert "very-secret" not in repr(vars(tokens))


def test_new_tokens_differ_and_fit_in_a_header() -> None:
    first, second = new_token(), new_token()
    assert first != second
    assert len(first) >= 43
    assert bearer(f"bearer  {first} ") == first


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "abc"])
def test_other_authorization_is_refused(header: str) -> None:
    with pytest.raises(NotAdmitted) as refused:
        bearer(header)
    assert refused.value.status == 401
    assert "abc" not in str(refused.value)


def test_dev_participants_may_what_each_needs() -> None:
    config = dev_config({"tools": "kept"}, "space")
    (space,) = config.spaces
    assert space.id == "space"
    assert list(space.participants) == list(PARTICIPANTS)
    tokens = {name: token for name, entry in space.participants.items() for token in entry.tokens}
    assert len(set(tokens.values())) == len(PARTICIPANTS)
    assert tokens["tools"] == "kept"
    for name, token in tokens.items():
        assert config.tokens().identify(token) == Identity("space", name)
    may = {name: entry.capabilities.allow for name, entry in space.participants.items()}
    call, listing = {"method": "tools/call"}, {"method": "tools/list"}
    assert may["proposer"]("mcp/proposal", call)
    assert may["proposer"]("mcp/request", listing)
    assert not may["proposer"]("mcp/request", call)
    assert may["fulfiller"]("mcp/request", call)
    assert may["fulfiller"]("mcp/reject", {})
    assert may["tools"]("mcp/response", {})
    assert not may["tools"]("mcp/request", call)
    for kind in ("chat", "mcp/request", "mcp/response", "mcp/proposal", "mcp/reject"):
        assert not may["observer"](kind, call)
    for kind in ("capability/grant", "capability/revoke", "space/invite", "space/kick"):
        assert may["admin"](kind, {})
        assert not any(may[name](kind, {}) for name in PARTICIPANTS if name != "admin")
    for name in GUESTS:
        assert may[name]("mcp/proposal", call)
        assert not may[name]("mcp/request", call)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_connections": 0},
        {"close_timeout": -1.0},
        {"max_message_bytes": 5 << 20},
        {"ping_interval": 1.0, "ping_deadline": 2.0},
    ],
)
def test_limits_that_nothing_works_with(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        GatewayLimits(**wrong)  # type: ignore[arg-type]


def test_strangers_text_is_quoted_escaped_and_cut() -> None:
    assert quote("a'b\n\x1b[2J\u202e") == '"a\'b\\n\\x1b[2J\\u202e"'
    assert len(quote("x" * 1_000_000)) < MAX_SHOWN_CHARS + 20


def test_gateway_outside_of_its_block_says_so() -> None:
    with pytest.raises(UsageError, match="async with"):
        _ = Gateway().url
    with pytest.raises(KeyError, match="name a participant"):
        Gateway().token("nobody")


def test_memory_space_needs_no_extra() -> None:
    code = (
        "import sys\nimport meup_agent.testing.memory\n"
        "print({'picows', 'yaml', 'uvloop', 'trio'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- framing ---------------------------------------------------------------------------------


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_fragments_are_joined_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parts = [data[start:end] for start, end in pairwise(edges)]
    assembler = Assembler(300)
    for _ in range(2):
        for index, part in enumerate(parts):
            final = index == len(parts) - 1
            whole = assembler.add(TEXT if index == 0 else CONTINUATION, final, part)
            assert whole == (data if final else None)


@pytest.mark.parametrize("first", [TEXT, BINARY])
def test_message_within_a_message(first: int) -> None:
    assembler = Assembler(10)
    assembler.add(first, False, b"a")
    with pytest.raises(BadMessage) as bad:
        assembler.add(TEXT, True, b"b")
    assert bad.value.code == PROTOCOL_ERROR


def test_continuation_of_nothing() -> None:
    with pytest.raises(BadMessage) as bad:
        Assembler(10).add(CONTINUATION, True, b"b")
    assert bad.value.code == PROTOCOL_ERROR


def test_whole_message_is_bounded_not_the_fragment() -> None:
    assembler = Assembler(10)
    assert assembler.add(TEXT, True, b"x" * 10) == b"x" * 10
    assembler.add(TEXT, False, b"x" * 6)
    with pytest.raises(BadMessage) as bad:
        assembler.add(CONTINUATION, False, b"x" * 5)
    assert bad.value.code == TOO_BIG
    assert assembler.add(TEXT, True, b"y") == b"y"


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (0, "8100"),
        (125, "817d"),
        (126, "817e007e"),
        (65_535, "817effff"),
        (65_536, "817f0000000000010000"),
    ],
)
def test_frame_heads(size: int, head: str) -> None:
    packed = pack_text(b"x" * size)
    assert packed[: len(packed) - size].hex() == head
