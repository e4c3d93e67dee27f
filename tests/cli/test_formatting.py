"""Results of tools as text and as JSON that print harmlessly."""

from typing import Any

import pytest

from meup_agent.cli.render.escape import as_json_line
from meup_agent.cli.render.formatting import as_text


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [{"type": "text", "text": "a\n"}, {"type": "text", "text": "b"}]}, "a\nb\n"),
        ({"content": [{"type": "text", "text": "a\r\nb\rc\td"}]}, "a\nb\\rc\td\n"),
        ({"content": []}, ""),
        ({"content": "odd"}, "odd\n"),
        ({"content": [{"type": "text", "text": "5"}], "structuredContent": {"n": "\x1b"}}, None),
        (
            {"content": [{"type": "image", "data": "QUJD", "mimeType": "image/png\x1b"}]},
            "[image image/png\\e, 4 characters of base64: see --json]\n",
        ),
        ({"content": [{"type": "odd"}]}, '{\n  "type": "odd"\n}\n'),
        ({"content": [5]}, "5\n"),
        ({"odd": 1}, '{\n  "odd": 1\n}\n'),
        ("text", "text\n"),
        (5, "5\n"),
        (None, ""),
    ],
)
def test_a_result_reads_as_what_it_is(result: Any, text: str | None) -> None:
    expected = '{\n  "n": "\\u001b"\n}\n' if text is None else text
    assert as_text(result) == expected


def test_json_is_one_harmless_line() -> None:
    assert as_json_line({"a": "\x1b\x7fé\n"}) == '{"a": "\\u001b\\u007f\\u00e9\\n"}\n'
