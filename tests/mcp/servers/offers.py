"""An MCP server, made with the official SDK, that offers something of each kind.

Its calls also do what servers do on the side: they ask, log, and change what they offer. It runs
over standard input and output, or over streamable HTTP.
"""

from typing import Any

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from tests.mcp.servers.over_http import run

server = MCPServer("offers", instructions="Offers one of each.")


class Name(BaseModel):
    """The answer to the question for a name."""

    name: str


def question() -> types.ElicitRequest:
    """The question for a name, as newer servers put it into a result."""
    schema = Name.model_json_schema()
    params = types.ElicitRequestFormParams(message="Your name?", requested_schema=schema)
    return types.ElicitRequest(params=params)


@server.tool(structured_output=False)
async def greet(ctx: Context[Any, Any]) -> str | types.InputRequiredResult:
    """Ask for a name, and greet it."""
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        answers = ctx.input_responses
        if not answers:
            return types.InputRequiredResult(input_requests={"name": question()}, request_state="1")
        answer = types.ElicitResult.model_validate(answers["name"], from_attributes=True)
        return f"hello {(answer.content or {}).get('name', answer.action)}"
    elicited = await ctx.elicit("Your name?", Name)
    return f"hello {elicited.data.name if elicited.action == 'accept' else elicited.action}"


@server.tool(structured_output=False)
async def sample(ctx: Context[Any, Any]) -> str:
    """Ask the client's model; only older revisions have a request for it."""
    said = types.TextContent(type="text", text="2+2?")
    messages = [types.SamplingMessage(role="user", content=said)]
    result = await ctx.session.create_message(  # pyright: ignore[reportDeprecated]
        messages, max_tokens=10
    )
    return f"{result.model}: {getattr(result.content, 'text', '')}"


@server.tool(structured_output=False)
async def folders(ctx: Context[Any, Any]) -> str:
    """Ask for the client's roots."""
    found = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
    return ", ".join(str(root.uri) for root in found.roots)


@server.tool(structured_output=False)
async def announce(ctx: Context[Any, Any]) -> str:
    """Log a line with a control character in it."""
    await ctx.info("a line\x1b[31m of the server")  # pyright: ignore[reportDeprecated]
    return "logged"


@server.tool(structured_output=False)
async def grow(ctx: Context[Any, Any]) -> str:
    """Offer one tool more, and say so."""

    def extra() -> str:
        """One more."""
        return "extra"

    server.add_tool(extra)
    await ctx.session.send_tool_list_changed()
    await ctx.notify_tools_changed()
    return "grown"


@server.tool(structured_output=False)
async def touch(ctx: Context[Any, Any]) -> str:
    """Say that a resource has changed."""
    await ctx.notify_resource_updated("note://first")
    return "touched"


@server.resource("note://first", name="first", mime_type="text/plain")
def first() -> str:
    """The first note."""
    return "remember the milk"


@server.resource("note://{name}/copy", name="copies")
def copy(name: str) -> str:
    """A copy of a note."""
    return f"a copy of {name}"


@server.prompt()
def review(subject: str) -> str:
    """Ask for a review."""
    return f"Please review {subject}."


@server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
async def complete(
    ref: types.PromptReference | types.ResourceTemplateReference,
    argument: types.CompletionArgument,
    context: types.CompletionContext | None,
) -> types.Completion:
    """Complete an argument with what was given before."""
    known = (context.arguments or {}) if context else {}
    return types.Completion(values=[f"{argument.value}!", *known.values()])


if __name__ == "__main__":
    run(server)
