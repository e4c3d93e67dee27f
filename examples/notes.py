"""A participant that offers notes as MCP resources."""

from typing import Any

from meup_agent import Agent, Request
from meup_agent.errors import RequestError

agent = Agent("notes")

NOTES = {"note:///groceries": "milk, bread", "note:///calls": "the dentist"}
UNKNOWN_RESOURCE = -32002


@agent.on_request("resources/list")
async def list_notes() -> dict[str, Any]:
    return {
        "resources": [
            {"uri": uri, "name": uri.rpartition("/")[2]} for uri in NOTES
        ]
    }


@agent.on_request("resources/read")
async def read_note(request: Request) -> dict[str, Any]:
    uri = request.params.get("uri")
    if uri not in NOTES:
        raise RequestError(UNKNOWN_RESOURCE, f"there is no note {uri!r}")
    return {
        "contents": [{"uri": uri, "mimeType": "text/plain", "text": NOTES[uri]}]
    }


if __name__ == "__main__":
    agent.run()
