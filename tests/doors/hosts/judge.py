"""An MCP server on stdio: its tool ``judge`` is a hook of Codex, ``mark`` leaves a mark.

Its arguments are what happens as ``judge`` is asked, and the mark of an edited call.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

TOOLS = [
    {"name": name, "description": name, "inputSchema": {"type": "object"}}
    for name in ("judge", "mark")
]


def judge(what: str, edited: str) -> dict[str, Any]:
    """The result of the tool."""
    said: dict[str, Any] = {"hookEventName": "PreToolUse", "permissionDecision": "allow"}
    match what:
        case "time-out":
            time.sleep(60)
        case "gateway killed":
            os._exit(1)
        case "500":
            return {"content": [{"type": "text", "text": "it failed"}], "isError": True}
        case "junk":
            return {"content": [{"type": "text", "text": '{"hookSpecific'}]}
        case "silence":
            return {"content": []}
        case "deny":
            said |= {"permissionDecision": "deny", "permissionDecisionReason": "not on Fridays"}
        case "edit":
            said["updatedInput"] = {"command": f"touch {edited}"}
        case _:
            pass
    return {"content": [{"type": "text", "text": json.dumps({"hookSpecificOutput": said})}]}


def answer(request: dict[str, Any], what: str, edited: str) -> dict[str, Any]:
    """The result of a request."""
    params = request.get("params", {})
    match request["method"]:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "judge", "version": "1"},
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call" if params["name"] == "judge":
            return judge(what, edited)
        case "tools/call":
            Path(params["arguments"]["path"]).touch()
            return {"content": [{"type": "text", "text": "marked"}]}
        case _:
            return {}


def main() -> None:
    _, what, edited = sys.argv
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            said = {"jsonrpc": "2.0", "id": request["id"], "result": answer(request, what, edited)}
            print(json.dumps(said), flush=True)  # noqa: T201 - its protocol is spoken there


if __name__ == "__main__":
    main()
