"""Results of tools as text and as JSON that print harmlessly."""

from typing import Any

import pytest

from meup_agent.cli.render.formatting import as_text, format_envelope
from meup_agent.escape import as_json_line
from tests.wire import draft, kinds


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


CALL = {"name": "run", "arguments": {"path": "a"}, "task": {"ttl": 1}, "cmd": "rm\x1b", "_meta": {}}


@pytest.mark.parametrize("kind", [kinds.MCP_PROPOSAL, kinds.MCP_REQUEST])
@pytest.mark.parametrize(
    ("params", "said"),
    [
        (CALL, 'run(path="a") and, beside its arguments, {task: {ttl: 1}, cmd: "rm\\u001b"}'),
        ({"name": "run"}, "run()"),
        ({"name": "run", "arguments": ["rm"]}, 'arguments: ["rm"]'),
        ({"name": "run", "arguments": "rm"}, 'arguments: "rm"'),
        (["run", "rm"], '["run", "rm"]'),
    ],
)
def test_a_call_is_shown_with_everything_in_it(kind: str, params: Any, said: str) -> None:
    payload = {"method": "tools/call", "params": params}
    assert said in format_envelope(draft(kind, payload, id="1", sender="ann")).said


@pytest.mark.parametrize(
    ("kind", "payload", "said"),
    [
        (
            kinds.STREAM_REQUEST,
            {"direction": "upload", "target": ["bob", "eve\x1b"], "format": "jsonl"},
            "to bob, eve\\e, jsonl",
        ),
        (kinds.STREAM_OPEN, {"stream_id": "s-1", "description": "x\n"}, "s-1, x\\n"),
        (
            kinds.STREAM_CLOSE,
            {"stream_id": "s-1", "reason": "cancelled", "text": "enough"},
            "s-1, cancelled, enough",
        ),
        (kinds.STREAM_GRANT_WRITE, {"stream_id": "s-1", "participant_id": "bob"}, "s-1, for bob"),
        (kinds.STREAM_LOST, {"stream_id": "s-1", "frames": 7, "bytes": 70}, "s-1, frames: 7"),
        (kinds.STREAM_CLOSE, {"stream_id": {"odd": 1}, "target": 5}, "{odd: 1}"),
    ],
)
def test_messages_about_streams_say_which(kind: str, payload: dict[str, Any], said: str) -> None:
    shown = format_envelope(draft(kind, payload, id="1", sender="ann"))
    assert (shown.noun, shown.said) == (kind, said)
