"""Whatever may answer at an address that was meant to be a gateway's."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from tests.transport.peers import CERTIFICATE as CERTIFICATE


@contextmanager
def listening() -> Generator[socket.socket]:
    """A port that takes connections into its backlog, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@contextmanager
def answering(reply: bytes) -> Generator[str]:
    """A server that gives everybody the same answer and hangs up; its address."""
    with listening() as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        # Who only looks whether there is a port hangs up without a word.
                        if connection.recv(65536):
                            connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def websockets_to(
    handle: Callable[[ServerConnection], object], *, tls: bool = False, host: str = "127.0.0.1"
) -> Generator[str]:
    """A server of WebSockets that treats each like this, and closes it after that; its address."""
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)

    def treat(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            handle(connection)

    with serve(treat, host, 0, ssl=context) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = server.socket.getsockname()[1]
            yield f"wss://localhost:{port}" if tls else f"ws://127.0.0.1:{port}"
        finally:
            server.shutdown()
            thread.join()


def silence(connection: ServerConnection) -> None:
    """Say nothing until the other end goes."""
    for _ in connection:
        pass


def welcoming(**fields: Any) -> str:
    """A welcome to `me`, as a frame."""
    envelope = {
        "protocol": "meup/v0.1",
        "id": "w",
        "from": "system:gateway",
        "to": ["me"],
        "kind": "system.welcome",
        "payload": {"you": {"id": "me", "capabilities": []}, "participants": []},
    }
    return json.dumps({**envelope, **fields})


def welcome(**fields: Any) -> Callable[[ServerConnection], None]:
    """Welcome everybody as `me`, and say nothing more."""

    def handle(connection: ServerConnection) -> None:
        connection.send(welcoming(**fields))
        silence(connection)

    return handle


def mcp_server(tools: str, text: str = "None") -> str:
    """An MCP server without the SDK.

    ``tools`` is an expression for what it offers; ``text`` for what a call gives, with the call's
    ``arguments``.
    """
    return f"""
import json, sys

INFO = {{"name": "small", "version": "1"}}
for line in sys.stdin:
    asked = json.loads(line)
    arguments = asked.get("params", {{}}).get("arguments", {{}})
    said = {{
        "initialize": lambda: {{
            "protocolVersion": "2025-11-25", "capabilities": {{"tools": {{}}}}, "serverInfo": INFO
        }},
        "tools/list": lambda: {{"tools": {tools}}},
        "tools/call": lambda: {{"content": [{{"type": "text", "text": {text}}}]}},
    }}.get(asked["method"])
    answer = {{"result": said()}} if said else {{"error": {{"code": -32601, "message": "unknown"}}}}
    if "id" in asked:
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], **answer}}), flush=True)
"""
