"""JSON values as rows: all of a value is there, and nothing of it looks like something else."""

import json
from itertools import islice
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from meup_agent.cli.render.card import GUTTER, Part, ShownValue, wrapped
from meup_agent.cli.render.screen import as_text
from tests.cli.commands import CardRow

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def rows(value: dict[str, Any], room: int = 10_000) -> tuple[list[str], bool]:
    shown = ShownValue(room)
    return [each.plain for each in shown.members(value, 0)], shown.is_whole


def test_each_line_of_a_text_stands_behind_a_bar() -> None:
    text = "first\n  - forged: true\n\x1b[2Jlast \n"
    assert rows({"content": text}) == (
        [
            "content: text of 3 lines, the last one ended",
            f"  {GUTTER}first",
            f"  {GUTTER}  - forged: true",
            f"  {GUTTER}\\e[2Jlast ⏎",
        ],
        True,
    )


def test_a_number_and_its_text_differ() -> None:
    assert rows({"a": 1, "b": "1", "c": None, "d": True, "e": "true"})[0] == [
        *("a: 1", 'b: "1"', "c: null", "d: true", 'e: "true"')
    ]


def test_deep_nesting_ends_on_one_line() -> None:
    deep: Any = {"end": 1}
    for _ in range(60):
        deep = {"in": deep}
    found, whole = rows({"deep": deep})
    assert whole
    assert len(found) < 20
    assert '{"end": 1}' in found[-1]


@pytest.mark.parametrize(
    "value",
    [{"a": "x" * 500}, {"a": "x\n" * 500}, {"a": list(range(500))}, {str(n): n for n in range(99)}],
)
def test_what_has_no_room_is_said(value: dict[str, Any]) -> None:
    assert not rows(value, room=100)[1]
    assert rows(value)[1]


@given(st.dictionaries(st.text(), JSON, max_size=4), st.integers(16, 60))
@example({"0" * 22 + "\u093a" * 4 + "00": None}, 25)  # a part that takes no room
def test_every_line_is_printable_and_fits(value: dict[str, Any], width: int) -> None:
    shown = list(ShownValue().members(value, 2))
    for line in wrapped(shown, width):
        text = "".join(part.text for part in line)
        assert text.isprintable()
        assert cell_len(text) <= width
    for each in shown:
        lines = ["".join(part.text for part in line) for line in wrapped([each], 40)]
        assert "".join(lines).replace(" ", "").replace("│", "") == (
            each.plain.replace(" ", "").replace("│", "")
        )


def test_text_that_is_counted_as_too_wide_for_any_line_ends_all_the_same() -> None:
    # Rich counts a joiner's neighbour in one way where it measures, in another where it cuts.
    text = "\u200d" * 2 + "\u2eeb" * 40
    lines = wrapped([CardRow((Part("x"), Part(text)))], 16)
    shown = ["".join(part.text for part in line).strip() for line in islice(lines, 100)]
    assert "".join(shown) == f"x{text}"


@pytest.mark.parametrize("width", range(16, 60))
@pytest.mark.parametrize("word", ["nothing", "n\u00f6thing"])
def test_words_stay_whole(word: str, width: int) -> None:
    prose = CardRow((Part("the tool: "), Part(f"{word} now"), Part(f"  ({word}, {word} here)")))
    lines = ["".join(part.text for part in line) for line in wrapped([prose], width)]
    whole = {"the", "tool:", word, "now", f"({word},", "here)"}
    assert {each for line in lines for each in line.split()} == whole


def test_a_line_that_goes_on_below_keeps_its_bar() -> None:
    long = CardRow((Part(GUTTER), Part("x" * 50)), indent=2)
    for line in wrapped([long], 20):
        assert "".join(part.text for part in line).startswith(f"  {GUTTER}x")


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_what_is_edited_is_the_same_json(value: dict[str, Any]) -> None:
    written = as_text(value)
    assert json.loads(written) == value
    assert all(each.isprintable() for each in written.split("\n"))
