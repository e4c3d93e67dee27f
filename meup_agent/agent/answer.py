"""Answers as they can be sent: no larger than a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from meup_agent.agent.content import text_content
from meup_agent.protocol.envelope import encode_json
from meup_agent.protocol.limits import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from meup_agent.protocol.payloads import JsonObject

MAX_RESULT_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
"""Leaves room for the envelope around the result: ids and names are a stranger's, but short."""


def wire_result(result: JsonObject) -> msgspec.Raw:
    """The JSON of a ``CallToolResult``, or of one that says why this one cannot be sent."""
    raw = encode_json(result)
    if len(raw) > MAX_RESULT_BYTES and "structuredContent" in result:
        # The text says the same for readers of an older MCP; what is structured comes first.
        raw = encode_json({**result, "content": []})
    if len(raw) > MAX_RESULT_BYTES:
        raw = encode_json(
            {
                "content": [
                    text_content(
                        f"the result has {len(raw)} bytes; at most {MAX_RESULT_BYTES} can be sent"
                    )
                ],
                "isError": True,
            }
        )
    return msgspec.Raw(raw)
