"""Numbers that JSON, or a reader with doubles, has no form for (PROTOCOL 1, Numbers)."""

import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.errors import NotExpressible
from meup_agent.protocol.wire.envelope import DOUBLE_DIGITS, fits_double
from meup_agent.protocol.wire.payloads import digest
from tests.wire import encode_json

pytestmark = pytest.mark.rule("1.numbers")

LARGEST = int(sys.float_info.max)
TOO_LARGE = 2**1024


class Struct(msgspec.Struct):
    number: float
    nothing: None = None


@dataclasses.dataclass
class Data:
    number: float


PLAIN: list[Callable[[Any], Any]] = [
    lambda n: n,
    lambda n: [None, n],
    lambda n: (1, n),
    lambda n: {"a": {"b": [n]}, "c": None},
    lambda n: {1.5: n},
]
WRITTEN: list[Callable[[Any], Any]] = [*PLAIN, lambda n: {n}, Struct, lambda n: [Data(n)]]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, TOO_LARGE, -TOO_LARGE, 10**309])
def test_number_without_a_form_is_refused_wherever_it_stands(number: float) -> None:
    is_integer = isinstance(number, int)
    for around in PLAIN if is_integer else WRITTEN:
        match = "beyond the range of a double" if is_integer else "not finite"
        with pytest.raises(NotExpressible, match=match):
            encode_json(around(number))


@pytest.mark.parametrize("value", [None, [None], {"null": "null"}, [1, None], msgspec.Raw(b"null")])
def test_null_is_no_number_and_encoded_json_is_not_looked_into(value: Any) -> None:
    assert b"null" in encode_json(value)
    assert encode_json({"result": msgspec.Raw(b'{"a":null}')}) == b'{"result":{"a":null}}'


@pytest.mark.parametrize("number", [2**53 + 1, 2**70, LARGEST, -LARGEST])
def test_large_integers_pass_unchanged_and_have_no_digest(number: int) -> None:
    assert encode_json({"n": number}) == b'{"n":%d}' % number
    assert digest("tools/call", {"arguments": {"n": number}}, None) is None


@given(st.lists(st.integers(-TOO_LARGE * 2, TOO_LARGE * 2) | st.text(alphabet="0123456789x")))
def test_integers_fit_if_python_can_make_a_float_of_them(values: list[int | str]) -> None:
    def fits(value: int | str) -> bool:
        try:
            return isinstance(value, str) or math.isfinite(float(value))
        except OverflowError:
            return False

    assert fits_double(msgspec.json.encode(values), values) is all(map(fits, values))


@pytest.mark.parametrize("offset", range(0, DOUBLE_DIGITS * 2, 103))
def test_place_of_a_long_integer_does_not_matter(offset: int) -> None:
    values = ["x" * offset, TOO_LARGE]
    assert not fits_double(msgspec.json.encode(values), values)


def test_long_runs_of_digits_in_texts_and_fractions_are_no_integers() -> None:
    values = ["9" * 5000, 0.5]
    raw = b'["%b",0.%b]' % (b"9" * 5000, b"5" * 400)
    assert fits_double(raw, values)
