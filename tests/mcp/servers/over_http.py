"""A server of the SDK over streamable HTTP, as a program that says its address first."""

import socket
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer


def run(server: MCPServer) -> None:
    """Serve over standard input and output, or, as `http`, `json` or `sse`, over HTTP."""
    if sys.argv[1:] == []:
        server.run("stdio")
        return
    way = sys.argv[1]
    older = way == "sse"
    app = server.sse_app() if older else server.streamable_http_app(json_response=way == "json")
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    listening = socket.create_server(("127.0.0.1", port))
    path = "sse" if older else "mcp"
    sys.stdout.write(f"http://127.0.0.1:{listening.getsockname()[1]}/{path}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
