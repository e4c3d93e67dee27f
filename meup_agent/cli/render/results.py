"""Results of tools, as text that is safe to print."""

from __future__ import annotations

import json
from typing import Any, cast

from meup_agent.cli.render.escape import visible
from meup_agent.protocol.outcomes import Responded, value_of
from meup_agent.protocol.payloads import as_object


def as_json_line(value: Any) -> str:
    """A JSON value on one line, in ASCII: safe for a terminal too."""
    return json.dumps(value).replace("\x7f", "\\u007f") + "\n"


def as_text(result: Any) -> str:
    """A tool's result: text as it is, other content block by block, structure as indented JSON.

    Line ends and tabs stay; any other character that does not print as itself is escaped. Empty,
    if the tool returned nothing.

    Args:
        result: MCP's ``CallToolResult``, as JSON values, or what else was answered.
    """
    value = value_of(Responded("", result))
    if value is None and "structuredContent" not in as_object(result):
        return ""
    if isinstance(value, list) and value is as_object(result).get("content"):
        return "".join(_lines(_block(block)) for block in cast("list[object]", value))
    return _lines(value if isinstance(value, str) else _as_json(value))


def safe_lines(text: str) -> str:
    """A stranger's text of several lines, escaped but for its line ends and tabs."""
    return "\n".join("\t".join(map(visible, line.split("\t"))) for line in text.split("\n"))


def _block(block: object) -> str:
    body = as_object(block)
    match body.get("type"):
        case "text" if isinstance(body.get("text"), str):
            return str(body["text"])
        case ("image" | "audio") as kind if isinstance(body.get("data"), str):
            about = body.get("mimeType", "of an unknown type")
            return f"[{kind} {about}, {len(body['data'])} characters of base64: see --json]"
        case _:
            return _as_json(block)


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _lines(text: str) -> str:
    """The lines of a text, whichever line ends and whether it ends with one."""
    return safe_lines(text.replace("\r\n", "\n").removesuffix("\n")) + "\n"
