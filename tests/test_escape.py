"""Whatever a stranger writes, it prints as one harmless line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.escape import compact, visible, visible_name
from meup_agent.wording import format_proposed
from tests.wire import read_call

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain → ü 日本 😀", "plain → ü 日本 😀"),
        ("two\nlines\r\n", "two\\nlines\\r\\n"),
        ("\x1b[31mred\x1b]0;title\x07", "\\e[31mred\\e]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb\u2066c\u200fd", "a\\u202eb\\u2066c\\u200fd"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("line\u2028and\u2029paragraph", "line\\u2028and\\u2029paragraph"),
        ("half \ud800", "half \\ud800"),
        ("tag \U000e0041", "tag \\U000e0041"),
        ("[bold red]no markup[/]", "[bold red]no markup[/]"),
        ("z" + "\u0335" * 6, "z" + "\u0335" * 4 + "\\u0335" * 2),
        ("blank\u3164name", "blank\\u3164name"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_any_text_becomes_printable(text: str) -> None:
    assert visible(text).isprintable()


@given(json_values, st.integers(min_value=5, max_value=60))
def test_any_value_becomes_one_printable_line_of_bounded_length(value: object, limit: int) -> None:
    shown = compact(value, limit)
    assert shown.isprintable()
    assert len(shown) <= limit


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("größe", "größe"),
        ("$ref", "$ref"),
        ("repo/read-file.v2", "repo/read-file.v2"),
        ('path="a.txt", x', '"path=\\"a.txt\\", x"'),
        ("a: 1, b", '"a: 1, b"'),
        ("f() and then g", '"f() and then g"'),
        ("", '""'),
        ("x" * 100, "x" * 63 + "…"),
    ],
)
def test_a_name_is_read_as_one_name(name: str, shown: str) -> None:
    assert visible_name(name, 64) == shown
    call = {"method": "tools/call", "params": {"name": name, "arguments": {name: {name: 1}}}}
    whole = visible_name(name, 1_000)  # names may differ in their ends alone
    assert format_proposed(read_call(call), 1_000) == f"{whole}({whole}={{{whole}: 1}})"


def test_long_text_is_cut_and_says_so() -> None:
    assert visible("x" * 100, 5) == "xxxx…"
    assert visible("x" * 5, 5) == "xxxxx"


def test_a_huge_value_is_not_formatted_whole() -> None:
    class Tracing(dict[str, object]):
        read = 0

        def items(self):  # type: ignore[no-untyped-def]
            for pair in super().items():
                Tracing.read += 1
                yield pair

    compact(Tracing({str(number): "x" * 50 for number in range(10_000)}), 100)
    assert Tracing.read < 5
