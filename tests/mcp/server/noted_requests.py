"""`meup`, whose server for MCP clients says on standard error from which port each request came."""

import sys
from typing import Any

from meup_agent.cli import main
from meup_agent.mcp import McpApp

_answer = McpApp.__call__


async def _note(self: McpApp, scope: Any, receive: Any, send: Any) -> None:
    sys.stderr.write(f"asked from {scope['client'][1]}\n")
    await _answer(self, scope, receive, send)


McpApp.__call__ = _note  # type: ignore[method-assign]
main()
