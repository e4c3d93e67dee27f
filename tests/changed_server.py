"""A participant whose tool is not the accepted one, for whoever shows that to a person."""

from collections.abc import Sequence
from typing import Any

from meup_agent import Agent
from meup_agent.client.messages import Request
from meup_agent.errors import RequestError
from tests.wire import ACCEPT_CALL, ACCEPT_TOOLS, CHANGED, TOOL_CHANGES


class ChangedServer:
    """The agent, and what it was asked.

    Args:
        tool: The tool that has changed.
        form: How, line by line; without a line its texts alone have changed.
        text: A line about its texts.
    """

    def __init__(self, tool: str, form: Sequence[str], text: str) -> None:
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.form, self.digest = "f1", "d1"
        self.changed = {"name": tool, "form": list(form), "texts": [text]}
        self.agent = Agent("tools")
        for method in ("tools/list", "tools/call", TOOL_CHANGES, ACCEPT_TOOLS, ACCEPT_CALL):
            self.agent.on_request(method)(self._answer)

    async def _answer(self, request: Request) -> dict[str, Any]:
        self.got.append((request.method, request.params))
        tool, form = self.changed["name"], self.changed["form"]
        match request.method:
            case "tools/list":
                difference = {"form": self.form, "difference": form[:1]}
                mark = difference if form else {"texts": True}
                return {"tools": [{"name": tool, "inputSchema": {}, "_meta": {CHANGED: mark}}]}
            case "tools/call":
                return {"content": []}
            case "dev.meup/tool_changes":
                return {"server": "files", "digest": self.digest, "tools": [self.changed]}
            case _:
                if request.params.get("digest", self.digest) != self.digest:
                    raise RequestError(-32000, "they have changed since you looked")
                return {}

    def sent(self, method: str) -> list[dict[str, Any]]:
        """The parameters of each request of a method."""
        return [params for each, params in self.got if each == method]
