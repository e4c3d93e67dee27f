"""Frames of a WebSocket: fragments that are joined, and the heads of those that are sent."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.gateway.edge.websocket import CONTINUATION, TEXT, Assembler, BadMessage, pack_text
from tests.gateways import TOO_BIG


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
