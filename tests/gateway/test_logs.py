"""Text of strangers in the gateway's log."""

from meup_agent.gateway.logs import MAX_SHOWN_CHARS, quote


def test_strangers_text_is_quoted_escaped_and_cut() -> None:
    assert quote("a'b\n\x1b[2J\u202e") == '"a\'b\\n\\x1b[2J\\u202e"'
    assert len(quote("x" * 1_000_000)) < MAX_SHOWN_CHARS + 20
