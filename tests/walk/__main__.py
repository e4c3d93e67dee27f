"""The walk, step by step: see :mod:`tests.walk`."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final, NamedTuple

import anyio
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.console_browser.conftest import find_chromium, settled
from tests.install.__main__ import CLEAN, ROOT, uv
from tests.programs import Program
from tests.walk.clients import Client, clients, use

SERVERS: Final = Path(sys.prefix) / "mcp-servers"

PERSONS: Final = ("ann", "bob")

POLICY: Final = """\
rules:
  - quorum: {tool: write_query, of: 2, among: [ann, bob], name: four eyes}
end: true
"""

STEP_SECONDS: Final = 240.0
"""For one step, however busy the machine is."""

SAID: Final = "read by a server of the walk"


class Step(NamedTuple):
    """A row of the table."""

    what: str
    typed: str
    keys: int
    seconds: float | None


@dataclass
class Walk:
    """A user with an environment, and what each step took of them."""

    folder: Path
    steps: list[Step] = field(default_factory=list[Step])
    keys: int = 0

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    @property
    def environment(self) -> dict[str, str]:
        """A user's own: nothing of ours is on its paths."""
        return {
            **CLEAN,
            "PATH": f"{self.bin}{os.pathsep}{CLEAN['PATH']}",
            "HOME": str(self.folder / "home"),
            "MEUP_STATE_DIR": str(self.folder / "state"),
            "PYTHONUNBUFFERED": "1",
        }

    @contextmanager
    def step(self, what: str, typed: str = "", *, timed: bool = True) -> Generator[None]:
        """Take the time of a block, and count its keys."""
        begun, keys = time.perf_counter(), self.keys
        with anyio.fail_after(STEP_SECONDS):
            yield
        took = time.perf_counter() - begun
        self.steps.append(Step(what, typed, self.keys - keys, took if timed else None))
        sys.stderr.write(f"{took:5.1f} s  {what}\n")

    def run(self, *command: str) -> str:
        """Run a command of the user's to its end; its output."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=STEP_SECONDS,
            check=False,
        )
        shown = f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, shown
        return done.stdout

    def start(self, *command: str) -> Program:
        """Start a command of the user's that runs on."""
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return Program(process)


class Person:
    """A person at a browser, whose keys count."""

    def __init__(self, walk: Walk, page: Page) -> None:
        self._walk = walk
        self.page = page

    async def press(self, *keys: str) -> None:
        for each in keys:
            self._walk.keys += 1
            await self.page.keyboard.press(each)

    async def sign_in(self, link: str) -> None:
        """Open a link, and confirm it."""
        await self.page.goto(link)
        # The browser focuses it in a moment, which a driver does not wait for.
        await expect(self.page.get_by_role("button", name="Continue")).to_be_focused()
        await self.press("Enter")
        await self.page.wait_for_url("**/inbox*")

    async def waiting(self, count: int) -> None:
        """Wait until so many calls wait for a decision."""
        rows = self.page.locator("#queue li")
        await expect(rows).to_have_count(count, timeout=1_000 * STEP_SECONDS)

    async def decide(self, *keys: str) -> None:
        """Decide the call that is shown, with its keys once more where the page asks for that."""
        decision = self.page.locator("#decision")
        # One that another person has decided stays for some seconds, and says so.
        await expect(self.page.locator("#approve:enabled")).to_be_visible()
        await settled(self.page)
        shown = await decision.get_attribute("data-key")
        for _ in range(2):
            await self.press(*keys)
            await self.page.wait_for_function(
                "key => document.querySelector('#decision')?.dataset.key !== key"
                " || document.querySelector('.notice.plain')",
                arg=shown,
            )
            if await decision.get_attribute("data-key") != shown:
                return
            await settled(self.page)
        raise AssertionError(await self.page.locator("main").inner_text())


@contextmanager
def serve_page() -> Generator[str]:
    """A page for the server that fetches one; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(SAID.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def configure(folder: Path) -> None:
    """The file of MCP servers that the user has, a repository, and rules."""
    current, older = (SERVERS / era / "bin" for era in ("current", "older"))
    servers = {
        "time": [current / "mcp-server-time", "--local-timezone", "UTC"],
        "git": [current / "mcp-server-git", "--repository", folder / "repository"],
        "fetch": [current / "mcp-server-fetch", "--ignore-robots-txt", "--allow-private-ips"],
        "sqlite": [older / "mcp-server-sqlite", "--db-path", folder / "data.db"],
    }
    entries = {
        name: {"command": str(command), "args": [str(each) for each in arguments]}
        for name, (command, *arguments) in servers.items()
    }
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}, indent=2))
    (folder / "policy.yaml").write_text(POLICY)
    git = ("git", "-c", "user.name=ann", "-c", "user.email=ann@example.org")
    subprocess.run([*git, "init", "--quiet", folder / "repository"], check=True)
    commit = ("commit", "--quiet", "--allow-empty", "--message", "first")
    subprocess.run([*git, "-C", folder / "repository", *commit], check=True)


def pasted(said: str, folder: Path) -> dict[str, tuple[Path, Path]]:
    """What `meup up` prints for each client, in files: by command, and by address."""
    decoder = json.JSONDecoder()
    blocks = [
        decoder.raw_decode(said, found.start())[0]
        for found in re.finditer(r"^\{$", said, re.MULTILINE)
    ]
    tokens = re.findall(r"^The token that belongs there is in (.*)$", said, re.MULTILINE)
    files: dict[str, tuple[Path, Path]] = {}
    for by_command, by_address, token in zip(blocks[::2], blocks[1::2], tokens, strict=True):
        name = by_command["mcpServers"]["meup"]["env"]["MEUP_PARTICIPANT"]
        headers = by_address["mcpServers"]["meup"]["headers"]
        headers["Authorization"] = f"Bearer {Path(token).read_text().strip()}"
        files[name] = folder / f"{name}.json", folder / f"{name}-url.json"
        for path, block in zip(files[name], (by_command, by_address), strict=True):
            path.write_text(json.dumps(block))
    return files


async def make_calls(
    walk: Walk, client: Client, file: Path, calls: list[tuple[str, dict[str, Any]]], wanted: str
) -> None:
    """Let a client make its calls, and look at what it is told of each."""
    tools, texts = await use(client, file, calls, walk.environment)
    missing = {"time_get_current_time", "git_git_status", "fetch_fetch", "sqlite_list_tables"}
    assert missing <= {*tools}, f"{client.title} has the tools {tools}"
    assert all(wanted in text for text in texts), f"{client.title} was told {texts}"


async def walk_through(walk: Walk, browser: Browser, address: str) -> None:
    """Everything after the installation."""
    users = clients(walk.bin / "python")
    options = ["--servers", "mcp.json", "--policy", "policy.yaml", "--port", "0"]
    options += [f"--person={each}" for each in PERSONS]
    options += [f"--client={each.name}" for each in users]
    repository = str(walk.folder / "repository")
    sorts: list[tuple[str, dict[str, Any], str]] = [
        ("time_get_current_time", {"timezone": "UTC"}, "datetime"),
        ("git_git_status", {"repo_path": repository}, "nothing to commit"),
        ("fetch_fetch", {"url": address}, SAID),
        ("sqlite_list_tables", {}, "["),
    ]
    async with AsyncExitStack() as stack:

        def run_up() -> Program:
            up = walk.start("meup", "up", *options)
            stack.callback(up.stop)
            return up

        what = "start, until all servers are there; one is old, and is started twice"
        with walk.step(what, "1 command"):
            up = run_up()
            await anyio.to_thread.run_sync(up.wait_for, "meup inbox list")
            for server in ("time", "git", "fetch", "sqlite"):
                await anyio.to_thread.run_sync(up.wait_for, f"is '{server}' in the space")
        files = pasted("\n".join(up.stdout), walk.folder)
        with walk.step("put the lines into the files of four clients", "8 pastes", timed=False):
            assert set(files) == {each.name for each in users}

        people: list[Person] = []
        with walk.step("two people sign in", "2 links"):
            said = "\n".join(up.stdout)
            for link in re.findall(r"^  (http\S+/console/link\S+)$", said, re.MULTILINE):
                context = await browser.new_context(viewport={"width": 1280, "height": 900})
                people.append(Person(walk, await context.new_page()))
                await people[-1].sign_in(link)
        ann, bob = people

        forms = {"by command": ann, "by address": bob}
        for form, (words, person) in enumerate(forms.items()):
            with walk.step(f"a call of each of the four clients {words}, at once"):
                async with anyio.create_task_group() as tasks:
                    for number, client in enumerate(users):
                        tool, arguments, wanted = sorts[(number + form) % len(sorts)]
                        calls = [(tool, arguments)]
                        file = files[client.name][form]
                        tasks.start_soon(make_calls, walk, client, file, calls, wanted)
                    await person.waiting(4)
                    for left in range(3, -1, -1):
                        await person.decide("a")
                        await person.waiting(left)

        python, fastmcp = users[0], users[2]
        with walk.step("a call that takes two votes by a rule"):
            query = {"query": "CREATE TABLE notes (text TEXT)"}
            async with anyio.create_task_group() as tasks:
                calls = [("sqlite_write_query", query)]
                file = files[fastmcp.name][1]
                tasks.start_soon(make_calls, walk, fastmcp, file, calls, "affected_rows")
                for person in people:
                    await expect(person.page.locator("#vote-form")).to_be_visible()
                    await settled(person.page)
                    await person.press("v", "a")

        with walk.step("ten calls alike: the first, a yes in advance with the second, no more"):
            calls = [
                ("git_git_create_branch", {"repo_path": repository, "branch_name": f"draft-{each}"})
                for each in range(10)
            ]
            async with anyio.create_task_group() as tasks:
                file = files[python.name][0]
                tasks.start_soon(make_calls, walk, python, file, calls, "Created branch")
                await ann.waiting(1)
                await ann.decide("a")
                await expect(ann.page.locator("#call")).to_contain_text("draft-1")
                await settled(ann.page)
                await ann.press("s")
                await expect(ann.page.locator("#give-yes")).to_be_focused()
                await ann.press("Enter")
            await ann.waiting(0)  # else the last of them is taken for the next call

        async with anyio.create_task_group() as tasks:
            what = "Ctrl-C while a call waits, and start again, until its server is there"
            with walk.step(what, "1 command"):
                call = partial(make_calls, walk, python, files[python.name][0])
                tasks.start_soon(call, [("time_get_current_time", {"timezone": "UTC"})], "datetime")
                await ann.waiting(1)
                port = ann.page.url.split(":")[2].split("/")[0]
                await anyio.to_thread.run_sync(up.stop)
                options[options.index("--port") + 1] = port
                up = run_up()
                await anyio.to_thread.run_sync(up.wait_for, "is 'time' in the space")
            with walk.step("sign in again, and decide it", "1 command, its link"):
                link = await anyio.to_thread.run_sync(
                    walk.run, "meup", "console", "ann", "--no-open"
                )
                found = re.search(r"http\S+/console/link\S+", link)
                assert found, link
                await ann.sign_in(found[0])
                await ann.waiting(1)
                await ann.decide("a")

        with walk.step("see who decided what", "1 command"):
            audit = walk.run("meup", "audit", "--json")
        check_audit(audit)


def check_audit(said: str) -> None:
    """Each call of the walk is there, carried out once, and who decided it."""
    entries = [json.loads(line) for line in said.splitlines()]
    assert [each["state"] for each in entries] == ["fulfilled"] * 20, said
    assert all(len(each["fulfillments"]) == 1 for each in entries), said
    by = Counter(each["decision"]["by"] for each in entries)
    assert by == {"ann": 4 + 2 + 1, "bob": 4, "reviewer": 1 + 8}, by
    rules = [each["decision"]["rule"] for each in entries]
    (votes,) = (each["votes"] for each in rules if each and each.get("votes"))
    assert set(votes) == set(PERSONS), votes
    assert sum(each is not None and each["rule"].startswith("yes ") for each in rules) == 8, rules
    labels = {each["client"].split()[0] for each in entries}
    assert labels == {"mcp", "walk", "fastmcp", "inspector-cli"}, labels


def table(steps: list[Step]) -> str:
    """The steps as a table of Markdown."""
    lines = ["| step | what is typed | keys | time |", "|---|---|---|---|"]
    for each in steps:
        took = "" if each.seconds is None else f"{each.seconds:.1f} s"
        lines.append(f"| {each.what} | {each.typed} | {each.keys or ''} | {took} |")
    return "\n".join(lines) + "\n"


def machine() -> str:
    """The machine, for whoever reads the table."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE)
        model = names[0] if names else model
    load = f"{os.getloadavg()[0]:.0f}"
    return (
        f"{time.strftime('%d %B %Y')}, Python {platform.python_version()}, {platform.system()},"
        f" {os.cpu_count()} cores of {model}, load {load}"
    )


async def main(folder: Path) -> None:
    """The walk in a folder, which is removed after it."""
    walk = Walk(folder)
    uv("build", "--wheel", ROOT, "--out-dir", folder / "dist")
    (wheel,) = (folder / "dist").glob("*.whl")
    for name in ("home", "state"):
        (folder / name).mkdir(mode=0o700)
    configure(folder)
    with walk.step("install from the wheel, with uv and a cache of packages", "1 command"):
        uv("venv", "--python", sys.executable, folder / "venv")
        into = ("--compile-bytecode", "--python", walk.bin / "python")
        uv("pip", "install", *into, f"{wheel}[gateway,mcp]")
    async with async_playwright() as playwright:
        options = ["--no-sandbox"] if hasattr(os, "getuid") and os.getuid() == 0 else []
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(playwright), args=options
        )
        try:
            with serve_page() as address:
                await walk_through(walk, browser, address)
        except BaseException:
            for page in (page for context in browser.contexts for page in context.pages):
                sys.stderr.write(f"--- {page.url}\n{await page.locator('main').inner_text()}\n")
            raise
        finally:
            await browser.close()
    timed = [each.seconds for each in walk.steps if each.seconds is not None]
    walk.steps.append(Step("in all", "5 commands, 8 pastes, 3 links", walk.keys, sum(timed)))
    sys.stdout.write(f"{machine()}\n\n{table(walk.steps)}")


if __name__ == "__main__":
    with TemporaryDirectory(prefix="meup-walk-") as temporary:
        anyio.run(main, Path(temporary))
