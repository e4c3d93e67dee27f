"""A server of the SDK over streamable HTTP, as a program that says its address first."""

import socket
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer


def run(server: MCPServer) -> None:
    """Serve over standard input and output, or, as `http` or `json`, over HTTP."""
    if sys.argv[1:] == []:
        server.run("stdio")
        return
    app = server.streamable_http_app(json_response=sys.argv[1] == "json")
    listening = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
