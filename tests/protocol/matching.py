"""Matching of one pattern, for the tests of capabilities."""

import pytest
from hypothesis import strategies as st

from meup_agent.errors import InvalidPattern
from tests.wire import compile_capabilities, compile_pattern

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)
LITERALS = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="!/*?[$"))
SEGMENTS = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1
).filter(lambda segment: not segment.startswith("."))


PLAIN_SEGMENTS = st.text(alphabet=st.characters(categories=["L", "N"]), min_size=1).filter(
    lambda segment: not segment.startswith(".")
)


def matches(pattern: object, value: object) -> bool:
    return compile_pattern(pattern).matches(value)


def place_of_refusal(capability: object) -> str:
    with pytest.raises(InvalidPattern) as refused:
        compile_capabilities([{"kind": "chat"}, capability])
    assert str(refused.value).startswith(refused.value.place + ": ")
    return refused.value.place
