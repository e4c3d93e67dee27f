"""Tools that see whole requests of MCP and return whole results, as ``@agent.tool`` does not."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from meup_agent import Agent, Context, Request, Space
from meup_agent.errors import RequestError

JsonObject = dict[str, Any]

INVALID_PARAMS = -32602

OBJECT: JsonObject = {"type": "object"}


@dataclass(frozen=True)
class Call:
    """One call of a tool."""

    request: Request
    space: Space
    context: Context

    @property
    def arguments(self) -> JsonObject:
        return self.request.params.get("arguments") or {}

    @property
    def state(self) -> str | None:
        return self.request.params.get("requestState")

    def answer(self, key: str) -> JsonObject | None:
        """The client's answer to a question of the round before, under a key."""
        answer = (self.request.params.get("inputResponses") or {}).get(key)
        return answer if isinstance(answer, dict) else None

    async def ask(self, question: JsonObject) -> JsonObject:
        """Ask the client that made the call; why it cannot be asked is the call's own error."""
        asked = {**question["params"], "_meta": {"dev.meup/request": self.request.id}}
        caller, method = self.request.sender, question["method"]
        try:
            answer: JsonObject = await self.space.request(caller, method, asked)
        except RequestError as error:
            raise RequestError(error.code, error.message, error.data) from error
        return answer

    async def notify(self, method: str, **params: Any) -> None:
        """Tell the client that made the call."""
        meta = {"dev.meup/request": self.request.id}
        payload = {"method": method, "params": {**params, "_meta": meta}}
        await self.space.send("mcp/request", payload, to=[self.request.sender])

    async def announce(self, method: str) -> None:
        """Tell every member."""
        await self.space.send("mcp/request", {"method": method, "params": {}})


Tool = Callable[[Call], Awaitable[JsonObject]]


class RawTools:
    """The tools of an agent, described and answered by hand."""

    def __init__(self, agent: Agent) -> None:
        self._tools: dict[str, tuple[JsonObject, Tool]] = {}
        agent.on_request("tools/list")(self._list)
        agent.on_request("tools/call")(self._call)

    def add(
        self, name: str, schema: JsonObject | None = None, **described: Any
    ) -> Callable[[Tool], Tool]:
        """Offer a tool; its description is the function's."""

        def register(tool: Tool) -> Tool:
            shown = {
                "name": name,
                "description": tool.__doc__ or name,
                "inputSchema": schema or OBJECT,
                **described,
            }
            self._tools[name] = (shown, tool)
            return tool

        return register

    def remove(self, name: str) -> None:
        """Withdraw a tool, if there is one of this name."""
        self._tools.pop(name, None)

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    async def _list(self) -> JsonObject:
        return {"tools": [shown for shown, _ in self._tools.values()]}

    async def _call(self, request: Request, space: Space, context: Context) -> JsonObject:
        name = request.params.get("name")
        if not isinstance(name, str) or name not in self._tools:
            raise RequestError(INVALID_PARAMS, f"there is no tool {name!r}")
        return await self._tools[name][1](Call(request, space, context))


def text(*texts: str) -> JsonObject:
    """A result that is text."""
    return {"content": [{"type": "text", "text": each} for each in texts]}


def properties(*required: str, **each: str | JsonObject) -> JsonObject:
    """The schema of an object, by the types or schemas of its properties."""
    described = {k: {"type": v} if isinstance(v, str) else v for k, v in each.items()}
    return {"type": "object", "properties": described, "required": list(required)}


def input_required(state: str | None = None, **requests: JsonObject) -> JsonObject:
    """A result that asks the client for something."""
    result: JsonObject = {"resultType": "input_required", "inputRequests": requests}
    return result if state is None else {**result, "requestState": state}


def elicitation(message: str, schema: JsonObject) -> JsonObject:
    """A question for the client's user, as an input request."""
    return {
        "method": "elicitation/create",
        "params": {"message": message, "requestedSchema": schema},
    }


def sampling(prompt: str, max_tokens: int) -> JsonObject:
    """A question for the client's model, as an input request."""
    content = {"type": "text", "text": prompt}
    return {
        "method": "sampling/createMessage",
        "params": {"messages": [{"role": "user", "content": content}], "maxTokens": max_tokens},
    }


ROOTS: JsonObject = {"method": "roots/list", "params": {}}
