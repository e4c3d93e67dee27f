"""An MCP server, made with the official SDK; it knows nothing of spaces."""

from typing import Annotated

from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from pydantic import BaseModel

server = MCPServer("tides")


class Harbour(BaseModel):
    """The answer that the server asks for."""

    name: str


def ask_for_harbour() -> Elicit[Harbour]:
    """The question, in whatever way the client's revision of MCP has."""
    return Elicit("Which harbour?", Harbour)


@server.tool(structured_output=False)
def high_water(harbour: str) -> str:
    """Say when the next high water is."""
    return f"{harbour}: at noon"


@server.tool(structured_output=False)
def my_high_water(harbour: Annotated[Harbour, Resolve(ask_for_harbour)]) -> str:
    """Ask which harbour is meant, and say when its next high water is."""
    return high_water(harbour.name)


if __name__ == "__main__":
    server.run("stdio")
