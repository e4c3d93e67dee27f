"""The whole life of a space, everything logged: its tokens are with their owners alone."""

import json
import logging
import re
import signal
import sys
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from anyio import to_thread
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from meup_agent import Agent, Backoff, Proposal, Reason, Settings, Space
from meup_agent.errors import Kicked, TokenRefused
from meup_agent.types import Invitation
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.cli.commands import run
from tests.cli.processes import Running, running
from tests.faults.gateways import free_port
from tests.gateways import hash_token, new_token
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE

SETTINGS = Settings(backoff=Backoff(first=0.05, longest=0.2))
CHAT = {"kind": "chat"}

LOGS_EVERYTHING = """
import logging
logging.basicConfig(level=1, format="%(levelname)s %(name)s %(message)s %(args)s")
from meup_agent.cli import main
main()
"""

SPACES = """
spaces:
  demo:
    participants:
      manager: {{tokens: [{manager}], capabilities: [{{kind: '**'}}]}}
      alice:
        token_hashes: ['{hash}']
        capabilities: [{{kind: mcp/proposal}}]
      tools: {{token_files: [tools.token], capabilities: []}}
http: {{port: 0}}
journal: {{path: kept/journal.db}}
"""


class Life:
    """A gateway that is started more than once, and all that anybody has written.

    Attributes:
        tokens: Of everybody, by name, and one that nobody has.
        said: What was answered, raised, printed and logged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens = {name: new_token() for name in ("manager", "alice", "tools", "wrong")}
        self.said: list[str] = []
        self.port = free_port()
        self.url = f"ws://127.0.0.1:{self.port}"
        self.http = ""
        self.handled: list[str] = []
        (folder / "kept").mkdir()
        text = SPACES.format(manager=self.tokens["manager"], hash=hash_token(self.tokens["alice"]))
        (folder / "space.yaml").write_text(text)
        (folder / "tools.token").write_text(self.tokens["tools"])

    @contextmanager
    def gateway(self) -> Generator[Running]:
        command = (sys.executable, "-W", "error", "-c", LOGS_EVERYTHING)
        arguments = ("gateway", "--config", "space.yaml", "--port", str(self.port))
        with running(*arguments, command=command, cwd=self.folder) as process:
            process.until("for HTTP ", stream="err")
            found = re.search(r"listening at (http://\S+) for HTTP", process.err)
            assert found
            self.http = found[1]
            try:
                yield process
            finally:
                process.end(signal.SIGKILL)
                self.said += [process.out, process.err]

    def join(
        self, agent: Agent | str, token: str | None = None
    ) -> AbstractAsyncContextManager[Space]:
        agent = Agent(agent) if isinstance(agent, str) else agent
        secret = self.tokens[agent.name] if token is None else token
        return agent.join(self.url, space="demo", token=secret, settings=SETTINGS)

    @property
    def kept(self) -> bytes:
        """All that the gateway has written to files."""
        return b"".join(path.read_bytes() for path in (self.folder / "kept").iterdir())


async def strangers(life: Life) -> None:
    """Come with a token that is unknown, by every door."""
    wrong = life.tokens["wrong"]
    with pytest.raises(TokenRefused) as refused:
        async with life.join("alice", wrong):
            pass
    life.said.append(repr(refused.value))
    async with connect(f"{life.url}/?token={wrong}", open_timeout=PATIENCE) as stranger:
        await stranger.send(json.dumps({"type": "join", "space": wrong, "token": wrong}))
        with pytest.raises(ConnectionClosed) as closed:
            await stranger.recv()
    life.said.append(str(closed.value))
    await read(life, wrong, "/me", f"/spaces/{wrong}/events")


async def read(life: Life, token: str, *paths: str) -> None:
    """Ask for everything over HTTP."""
    async with httpx.AsyncClient(
        base_url=life.http, trust_env=False, verify=NO_TLS, timeout=PATIENCE
    ) as client:
        for path in paths:
            answer = await client.get(path, headers={"Authorization": f"Bearer {token}"})
            life.said.append(f"{answer.status_code} {answer.headers} {answer.text}")


async def say(space: Space, text: str) -> None:
    """Say something, and wait until it is accepted."""
    with space.watch() as heard:
        said = await space.chat(text)
        async for envelope in heard:
            if envelope.id == said:
                return


async def manage(life: Life, manager: Space) -> Invitation:
    """Grant, invite, revoke and remove."""
    grant = await manager.members.grant("alice", [CHAT], reason="to talk")
    invitation = await manager.members.invite("guest", [CHAT], reason="for a while")
    assert invitation.token
    life.tokens["guest"] = invitation.token
    life.said.append(repr(invitation))
    gone = anyio.Event()

    async def be_kicked() -> None:
        try:
            async with life.join("guest") as guest:
                await say(guest, "here I am")
                joined.set()
                await anyio.sleep_forever()
        except Kicked as kicked:
            life.said.append(repr(kicked))
            gone.set()

    joined = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(be_kicked)
        await joined.wait()
        await manager.members.revoke("alice", grant=grant, reason="enough talk")
        await manager.members.kick("guest", reason="it is late")
        await gone.wait()
    with pytest.raises(TokenRefused) as refused:
        async with life.join("guest"):
            pass
    life.said.append(repr(refused.value))
    return await manager.members.invite("guest", [CHAT], reason="again")


def audit(life: Life, capfd: pytest.CaptureFixture[str]) -> None:
    """Read the journal's file in every form."""
    source = ("audit", "--journal", str(life.folder / "kept" / "journal.db"), "--space", "demo")
    for more in ((), ("--json",), ("--grants",), ("--grants", "--json")):
        assert run([*source, *more]) == 0
    told = capfd.readouterr()
    assert "write" in told.out
    assert "it is late" in told.out
    life.said += [told.out, told.err]


@pytest.mark.rule("3.audit.no_token", "3.tokens.nowhere")
async def test_no_token_is_anywhere_but_with_its_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(1)
    # The test's own clients, which say their addresses and headers, and not the package's.
    caplog.set_level(logging.WARNING, "httpx")
    caplog.set_level(logging.INFO, "websockets")
    life = Life(tmp_path)
    tools, manager, seen = Agent("tools"), Agent("manager"), anyio.Event()

    @tools.tool
    async def write(text: str) -> str:
        life.handled.append(text)
        return text

    @manager.on_proposal
    async def look(_: Proposal) -> None:
        seen.set()

    with anyio.fail_after(2 * PATIENCE):
        with life.gateway() as process:
            await strangers(life)
            async with (
                life.join(tools),
                life.join(manager) as managing,
                life.join("alice") as alice,
            ):
                again = await manage(life, managing)
                assert again.token
                life.tokens["guest again"] = again.token
                async with alice.propose("tools", "write", {"text": "no"}) as proposal:
                    await seen.wait()
                    await proposal.withdraw(Reason.NO_LONGER_NEEDED)
                assert await managing.call("tools", "write", {"text": "yes"}) == "yes"
                everything = ("/me", "/spaces/demo/participants", "/spaces/demo/proposals")
                for name in ("manager", "alice", "guest again"):
                    who = name.partition(" ")[0]
                    await read(
                        life,
                        life.tokens[name],
                        *everything,
                        f"/participants/{who}/messages?limit=500",
                        f"/spaces/demo/events?since=0&follow=false&token={life.tokens[name]}",
                        f"/participants/manager/messages?since={life.tokens[name]}",
                    )
                await read(life, life.tokens["alice"], "/metrics", "/openapi.json", "/readyz")
                # Killed, and started again: everybody comes back with what they have.
                process.process.kill()
                with life.gateway() as process:
                    assert await managing.call("tools", "write", {"text": "again"}) == "again"
                    async with life.join("guest", again.token) as guest:
                        await say(guest, "here I am again")
                        await read(life, again.token, "/participants/guest/messages?limit=500")
                    assert await to_thread.run_sync(process.end, signal.SIGTERM) == 0
                    life.said += [process.out, process.err]
    await to_thread.run_sync(audit, life, capfd)

    everywhere = "\n".join(life.said)
    logs = "\n".join(f"{each.getMessage()} {each.args!r}" for each in caplog.records)
    assert "INFO meup_agent.gateway 'alice' in 'demo': joined" in everywhere
    assert "here I am again" in everywhere
    assert b"here I am again" in life.kept
    assert life.handled == ["yes", "again"]
    for name, token in life.tokens.items():
        assert token not in everywhere, name
        assert token not in logs, name
        assert token.encode() not in life.kept, name
