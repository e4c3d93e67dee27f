"""Servers as people use them, pinned: of the current era, and one of the oldest revision."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from meup_agent.errors import RequestError, ToolError
from meup_agent.mcp import StdioServer
from tests.mcp.bridge.stage import BRIDGE, bridged
from tests.programs import ROOT

pytestmark = pytest.mark.thorough

INSTALLED = ROOT / ".venv" / "mcp-servers"


def real(era: str, name: str, *arguments: str, **env: str) -> StdioServer:
    """A server that `make mcp-servers` has installed, and variables for it."""
    program = INSTALLED / era / "bin" / name
    assert program.exists(), f"{program} is missing; run: make mcp-servers"
    return StdioServer(str(program), arguments, env)


async def test_the_server_for_time() -> None:
    async with bridged(real("current", "mcp-server-time", "--local-timezone=UTC")) as stage:
        space = stage.caller
        names = {tool["name"] for tool in await space.offers.tools(BRIDGE)}
        assert names == {"get_current_time", "convert_time"}
        times = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        converted = await space.call(BRIDGE, "convert_time", times)
        assert converted["time_difference"] == "+9.0h"
        with pytest.raises((RequestError, ToolError), match="Nowhere"):
            await space.call(BRIDGE, "get_current_time", {"timezone": "Nowhere"})


async def test_the_server_for_git(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.com")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    git("init", "--quiet", "--initial-branch=main")
    (tmp_path / "notes.txt").write_text("one\n", "utf-8")
    git("add", "notes.txt")
    git("commit", "--quiet", "--message=first words")
    server = real("current", "mcp-server-git", "--repository", str(tmp_path))
    async with bridged(server) as stage:
        space = stage.caller
        where = {"repo_path": str(tmp_path)}
        (log,) = await space.call(BRIDGE, "git_log", where)
        assert "first words" in log["text"]
        (status,) = await space.call(BRIDGE, "git_status", where)
        assert "nothing to commit" in status["text"]


@contextmanager
def website() -> Generator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<html><body><h1>Tides</h1><p>High water at noon.</p></body></html>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/tides"
        finally:
            server.shutdown()
            thread.join()


async def test_the_server_that_fetches_pages() -> None:
    # Where it finds Node, it would install a reader for pages with npm.
    options = ("--ignore-robots-txt", "--allow-private-ips")
    server = real("current", "mcp-server-fetch", *options, PATH="")
    with website() as url:
        async with bridged(server) as stage:
            space = stage.caller
            (content,) = await space.call(BRIDGE, "fetch", {"url": url, "raw": True})
            assert "High water at noon." in content["text"]
            assert [prompt["name"] for prompt in await space.offers.prompts(BRIDGE)] == ["fetch"]
            prompt = await space.offers.prompt(BRIDGE, "fetch", {"url": url})
            assert "High water at noon." in prompt["messages"][0]["content"]["text"]


async def test_a_server_of_the_oldest_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It does not answer what the client asks first, as it would a server of today.
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 3)
    server = real("older", "mcp-server-sqlite", "--db-path", str(tmp_path / "a.db"))
    async with bridged(server) as stage:
        space = stage.caller
        described = await space.request(BRIDGE, "initialize", {})
        assert described["protocolVersion"] == "2024-11-05"
        await space.call(BRIDGE, "create_table", {"query": "CREATE TABLE t (name TEXT)"})
        await space.call(BRIDGE, "write_query", {"query": "INSERT INTO t VALUES ('Ann')"})
        (rows,) = await space.call(BRIDGE, "read_query", {"query": "SELECT * FROM t"})
        assert rows["text"] == "[{'name': 'Ann'}]"
        (memo,) = await space.offers.resources(BRIDGE)
        assert memo["uri"] == "memo://insights"
        await space.call(BRIDGE, "append_insight", {"insight": "tides are regular"})
        (content,) = await space.offers.read_resource(BRIDGE, "memo://insights")
        assert "tides are regular" in content["text"]
        (demo,) = await space.offers.prompts(BRIDGE)
        prompt = await space.offers.prompt(BRIDGE, demo["name"], {"topic": "tides"})
        assert prompt["messages"]
