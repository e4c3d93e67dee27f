"""An MCP server of 2025-06-18 that says whatever a test has it say, over standard input and output.

Its tool `do` takes `lines`, which it writes as they are, `times` over; in them `$ID` is the call's
id, and `$TOKEN` its progress token. With `stderr` it floods standard error for ever, meanwhile.
TOOLS is the list of tools as JSON, in which Python's own NaN may stand.
"""

import json
import os
import sys
import threading
from typing import Any

TOOLS = os.environ.get("TOOLS", '[{"name": "do", "inputSchema": {"type": "object"}}]')


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def answer(request: dict[str, Any], result: str) -> None:
    write(f'{{"jsonrpc": "2.0", "id": {json.dumps(request["id"])}, "result": {result}}}')


def flood() -> None:
    """Write to standard error without an end."""
    while True:
        os.write(2, b"x" * 24 * 2600 + b"\n")


def do(request: dict[str, Any]) -> None:
    arguments = request["params"]["arguments"]
    if arguments.get("stderr"):
        for _ in range(3):
            threading.Thread(target=flood, daemon=True).start()
    token = request["params"].get("_meta", {}).get("progressToken")
    for _ in range(arguments.get("times", 1)):
        for line in arguments.get("lines", ()):
            write(line.replace("$ID", json.dumps(request["id"])).replace("$TOKEN", str(token)))
    answer(request, '{"content": [{"type": "text", "text": "done"}]}')


def main() -> None:
    capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
    info = {"name": "hostile", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "server/discover":
                error = '"error": {"code": -32601, "message": "Method not found"}'
                write(f'{{"jsonrpc": "2.0", "id": {json.dumps(message["id"])}, {error}}}')
            case "initialize":
                answer(message, json.dumps(hello))
            case "tools/list":
                answer(message, f'{{"tools": {TOOLS}}}')
            case "tools/call":
                do(message)
            case str() if "id" in message:
                answer(message, "{}")
            case _:
                pass


if __name__ == "__main__":
    main()
