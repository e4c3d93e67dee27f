"""The bridge as the suite's client: ``python -m tests.conformance_mcp.client URL``.

It speaks with the server of a scenario as ``meup bridge --http`` does, and signs in with a browser
that follows every link. It calls each tool that the scenario has.
"""

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import httpx2
from anyio import to_thread

from meup_agent import Agent
from meup_agent.mcp import Bridge, HttpServer
from meup_agent.mcp.bridge.config import OAuthClient
from meup_agent.mcp.bridge.connection import ConnectionSettings
from meup_agent.testing import MemorySpace

METADATA = "https://conformance-test.local/client-metadata.json"
"""The address that the scenarios of client documents know."""


async def main(url: str) -> None:
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    client = OAuthClient(given.get("client_id"), given.get("client_secret"), METADATA)
    async with anyio.create_task_group() as browser:

        def open_link(link: str) -> None:
            browser.start_soon(to_thread.run_sync, follow, link)

        with TemporaryDirectory(prefix="meup-sign-in-") as folder:
            settings = ConnectionSettings(sign_in_folder=Path(folder), open_link=open_link)
            bridge = Bridge("far", HttpServer(url, oauth=client), settings=settings)
            every = [{"kind": "*"}]
            around = MemorySpace(participants={"far": every, "caller": every})
            async with (
                bridge.join(around.connector("far")),
                Agent("caller").join(around.connector("caller")) as space,
            ):
                for tool in await space.offers.tools("far"):
                    await space.request("far", "tools/call", {"name": tool["name"]})
        browser.cancel_scope.cancel()


def follow(link: str) -> None:
    httpx2.get(link, follow_redirects=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
