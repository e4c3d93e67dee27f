"""A model's API on loopback, for trials of coding agents: one tool call, then a text.

It speaks as much of Anthropic's Messages and of OpenAI's Responses as the agents' programs ask for.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from meup_agent.protocol.wire.payloads import objects_in

DONE: Final = "done"

MAX_BODY_BYTES: Final = 16 << 20
"""Bytes of a request that are read; an agent's first one has its whole prompt."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a program that is ended leaves its connections."""


class ModelApi:
    """A server that plays a model, which asks for one call of a tool.

    It listens at a free port of loopback for the length of a ``with`` block.

    Args:
        tool: The tool, as Anthropic's API is offered it; of OpenAI's, the shell is called.
        arguments: Its arguments; the shell's have ``command``.

    Attributes:
        url: Its address.
        requests: The bodies that it was sent.
    """

    def __init__(self, tool: str, arguments: dict[str, Any]) -> None:
        self.tool = tool
        self.arguments = arguments
        self.requests: list[dict[str, Any]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                self._send(b"", "text/plain")

            do_GET = do_HEAD  # noqa: N815 - the server finds it by this name

            def do_POST(self) -> None:
                said = self.rfile.read(
                    min(int(self.headers.get("content-length") or 0), MAX_BODY_BYTES)
                )
                body: dict[str, Any] = {}
                with contextlib.suppress(ValueError):
                    body = json.loads(said or b"{}")
                if "count_tokens" in self.path:
                    self._send(json.dumps({"input_tokens": 10}).encode(), "application/json")
                    return
                if "messages" not in self.path and "responses" not in self.path:
                    self._send(b"{}", "application/json")
                    return
                api.requests.append(body)
                is_messages = "messages" in self.path
                events = api.messages(body) if is_messages else api.responses(body)
                said = b"".join(
                    f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode()
                    for each in events
                )
                self._send(said, "text/event-stream")

            def _send(self, said: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(said)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(said)

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def results(self) -> list[str]:
        """The results of its calls that the model was told, as text."""
        found: dict[str, None] = {}
        for body in self.requests:
            messages = objects_in(body.get("messages"))
            blocks = [each for said in messages for each in objects_in(said.get("content"))]
            for item in (*blocks, *objects_in(body.get("input"))):
                if str(item.get("type")).endswith(("tool_result", "call_output")):
                    found[_text(item.get("content", item.get("output")))] = None
        return list(found)

    # --- Anthropic's Messages ---

    def messages(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events that answer a request of Anthropic's API."""
        tools = {each.get("name") for each in body.get("tools", [])}
        asks = self.tool in tools and not self.results
        usage = {"input_tokens": 1, "output_tokens": 1}
        message: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-test",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield {"type": "message_start", "message": message}
        if asks:
            block: dict[str, Any] = {
                "type": "tool_use",
                "id": "toolu_1",
                "name": self.tool,
                "input": {},
            }
            delta = {"type": "input_json_delta", "partial_json": json.dumps(self.arguments)}
        else:
            block = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": DONE}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
        stop = {"stop_reason": "tool_use" if asks else "end_turn", "stop_sequence": None}
        yield {"type": "message_delta", "delta": stop, "usage": usage}
        yield {"type": "message_stop"}

    # --- OpenAI's Responses ---

    def responses(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events that answer a request of OpenAI's API."""
        offered = [each.get("name") for each in objects_in(body.get("tools"))]
        wanted = ("exec_command", "shell_command", "shell")
        tool = next((each for each in wanted if each in offered), None)
        yield {"type": "response.created", "response": {"id": "resp_1"}}
        if tool is not None and not self.results:
            command = self.arguments["command"]
            given = {
                "exec_command": {"cmd": command},
                "shell_command": {"command": command},
                "shell": {"command": ["bash", "-c", command]},
            }[tool]
            item: dict[str, Any] = {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": tool,
                "arguments": json.dumps(given),
            }
        else:
            content = [{"type": "output_text", "text": DONE}]
            item = {"type": "message", "role": "assistant", "id": "msg_1", "content": content}
        yield {"type": "response.output_item.done", "item": item}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        yield {"type": "response.completed", "response": {"id": "resp_1", "usage": usage}}


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return " ".join(str(each.get("text", each)) for each in objects_in(content))
