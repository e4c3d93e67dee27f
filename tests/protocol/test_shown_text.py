"""Text of strangers as it is shown: what hides is written out, what deceives is marked."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.protocol.wire.shown_text import Mark, printed, remarks, segments


def marked(text: str, *, is_name: bool = False) -> list[tuple[str, Mark]]:
    return [(each.text, each.mark) for each in segments(text, is_name=is_name) if each.mark]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain", []),
        ("rm \u202eabc\u202c", [("\\u202e", Mark.DIRECTION), ("\\u202c", Mark.DIRECTION)]),
        ("a\u200bb", [("\\u200b", Mark.INVISIBLE)]),
        ("a\u3164b", [("\\u3164", Mark.INVISIBLE)]),
        ("a\u2800b", [("\\u2800", Mark.INVISIBLE)]),
        ("a\ufe0fb", [("\\ufe0f", Mark.INVISIBLE)]),
        ("tag\U000e0041", [("\\U000e0041", Mark.INVISIBLE)]),
        ("\x1b[2J", [("\\e", Mark.CONTROL)]),
        ("two\nlines", [("\\n", Mark.CONTROL)]),
        ("wr\u0456te", [("\u0456", Mark.LOOK_ALIKE)]),
        ("path/t\u043e/x", [("\u043e", Mark.LOOK_ALIKE)]),
        ("\uff52\uff4d -rf", [("\uff52", Mark.LOOK_ALIKE), ("\uff4d", Mark.LOOK_ALIKE)]),
        ("e" + "\u0301" * 5, [("\\u0301", Mark.INVISIBLE)]),
    ],
)
def test_what_hides_or_deceives_is_marked(text: str, found: list[tuple[str, Mark]]) -> None:
    assert marked(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "привет, а оно в лесу",
        "Γειά σου Κόσμε",
        "日本語のテキスト",
        "it’s fine – quite",
        "❤️ ok",
        "naïve café",
    ],
)
def test_words_of_other_scripts_are_left_alone(text: str) -> None:
    assert marked(text) == []


def test_in_a_name_every_look_alike_is_marked() -> None:
    assert marked("сор", is_name=True) == [(each, Mark.LOOK_ALIKE) for each in "сор"]
    assert marked("a–b", is_name=True) == [("–", Mark.LOOK_ALIKE)]


def test_a_remark_names_the_character_and_its_look() -> None:
    assert remarks("wrіte wrіte") == [
        "U+0456 (cyrillic small letter byelorussian-ukrainian i) looks like 'i'"
    ]


@given(st.text())
def test_what_is_shown_prints_as_itself(text: str) -> None:
    shown = segments(text)
    assert all(each.text.isprintable() for each in shown)
    assert "".join(each.text for each in shown) == printed(text)
    assert not any(unicodedata.category(each) in ("Cc", "Cf") for each in printed(text))
    if text.isascii() and text.isprintable():
        assert printed(text) == text
