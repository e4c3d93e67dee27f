"""A person at the command line of an inbox, beside tools, a reviewer, and two that propose."""

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from meup_agent import Agent, Space
from meup_agent.approval import Reviewer
from meup_agent.gateway import Gateway, ThreadedGateway
from tests.cli.commands import run
from tests.cli.conftest import Done
from tests.cli.participants import variables_of
from tests.interaction.views import is_, taped
from tests.wire import build_proposal, kinds

PROPOSE = [{"kind": "mcp/proposal"}, {"kind": "mcp/withdraw"}]
PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "files": [{"kind": "*"}],
    "reviewer": [{"kind": "*"}],
    "alice": [{"kind": "*"}],
    "reader": [{"kind": "chat"}],
    "bot": PROPOSE,
    "bot2": PROPOSE,
    "visitor": PROPOSE,
}
POLICY = """
rules:
  - quorum: {tool: deploy, of: 2, among: [alice, lead], name: four eyes}
  - deny: {tool: write, arguments: {path: "etc/**"}, name: never}
end: true
"""


def files_agent(calls: list[dict[str, Any]]) -> Agent:
    files = Agent("files")

    @files.tool
    async def write(path: str, text: str = "") -> str:
        calls.append({"path": path, "text": text})
        return f"wrote {path}"

    @files.tool(destructive=True)
    async def wipe(disk: str) -> str:
        raise ValueError(disk)

    @files.tool
    async def deploy(version: int) -> int:
        return version

    return files


class Office:
    """A space with tools and a reviewer, two that propose, and the command line of a person."""

    def __init__(self, gateway: ThreadedGateway, portal: BlockingPortal) -> None:
        self.gateway = gateway
        self.calls: list[dict[str, Any]] = []
        self.spaces: dict[str, Space] = {}
        self._portal = portal

    @asynccontextmanager
    async def joined(self, agents: dict[str, Agent | Reviewer]) -> AsyncGenerator[None]:
        """Let these join, for the length of a block."""
        async with AsyncExitStack() as stack:
            for name, each in agents.items():
                token = self.gateway.token(name)
                joining = each.join(self.gateway.url, space="demo", token=token, grace=0.0)
                self.spaces[name] = await stack.enter_async_context(joining)
            yield

    def propose(
        self,
        tool: str,
        by: str = "bot",
        seconds: float = 3_600,
        to: str | tuple[str, ...] = "alice",
        **arguments: Any,
    ) -> str:
        """Propose a call without waiting for its end; the proposal's id."""
        payload = build_proposal(
            "tools/call",
            {"name": tool, "arguments": arguments},
            target="files",
            expires=datetime.now(UTC) + timedelta(seconds=seconds),
        )
        space = self.spaces[by]

        async def propose() -> str:
            async with taped(space) as tape:
                sent = await space.send(kinds.MCP_PROPOSAL, payload, to=to)
                await tape.until(is_(sent))  # from then on the gateway knows it
            return sent

        return self._portal.call(propose)

    def until_decided(self, proposal: str, by: str = "bot2") -> None:
        """Wait until a proposal is decided, by whomever."""

        def is_decided(_: object = None) -> bool:
            known = self.spaces[by].proposals
            return any(each.id == proposal and not each.state.is_pending for each in known)

        async def wait() -> None:
            async with taped(self.spaces[by]) as tape:
                if not is_decided():
                    await tape.until(is_decided)

        self._portal.call(wait)

    def withdraw(self, proposal: str, by: str = "bot") -> None:
        """Withdraw what was proposed so."""
        payload = {"reason": "other"}
        send = partial(self.spaces[by].send, kinds.MCP_WITHDRAW, payload, correlation=proposal)
        self._portal.call(send)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Generator[Office]:
    policy: Path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(POLICY)
    with Gateway("demo", PARTICIPANTS).in_thread() as gateway, start_blocking_portal() as portal:
        office = Office(gateway, portal)
        agents: dict[str, Agent | Reviewer] = {
            "files": files_agent(office.calls),
            "reviewer": Reviewer(policy),
            "bot": Agent("bot"),
            "bot2": Agent("bot2"),
        }
        with portal.wrap_async_context_manager(office.joined(agents)):
            yield office


class Person:
    """Runs `meup inbox` in this process."""

    def __init__(
        self, office: Office, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.office = office
        self._capfd, self._patch = capfd, patch
        self.be("alice")

    def be(self, name: str) -> None:
        """Become a participant."""
        for variable, value in variables_of(self.office.gateway, name).items():
            self._patch.setenv(variable, value)

    def forget(self, *names: str) -> None:
        """Take variables out of the environment."""
        for each in names:
            self._patch.delenv(each)

    def __call__(self, *arguments: str) -> Done:
        code = run(["inbox", *arguments])
        said = self._capfd.readouterr()
        return Done(code, said.out, said.err)


@pytest.fixture
def meup(
    office: Office, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Person]:
    yield Person(office, capfd, monkeypatch)
    office.calls.clear()
