"""Agents of the public API at an existing gateway: who they are, and what they may do."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import pytest
from anyio import to_thread

from meup_agent import Agent, Backoff, Settings, Space
from tests.conformance.gateways import MEW_V04, ExistingGateway
from tests.conformance.versions import Version
from tests.patience import PATIENCE

T = TypeVar("T")

SPACE = "demo"
MAY_CALL: list[dict[str, Any]] = [{"kind": "mcp/*"}, {"kind": "chat"}]
MAY_PROPOSE: list[dict[str, Any]] = [
    {"kind": "mcp/proposal"},
    {"kind": "mcp/withdraw"},
    {"kind": "chat"},
]
CAPABILITIES = {
    "proposer": MAY_PROPOSE,
    "reviewer": MAY_CALL,
    "caller": MAY_CALL,
    "files": MAY_CALL,
    "typescript": MAY_CALL,
}
only_on_v04 = pytest.mark.parametrize("version", [MEW_V04], ids=["mew-v0.4"])
"""For a test of what the older gateway, or those who speak its dialect, do not do."""

# A lost connection is dialled again at once, so that no test waits.
AT_ONCE = Settings(backoff=Backoff(first=0.0, longest=0.0))


def writer(calls: list[str], answer: str = "wrote {}") -> Agent:
    """A tool owner that notes what it is called with."""
    agent = Agent("files")

    @agent.tool
    async def write(path: str) -> str:
        calls.append(path)
        return answer.format(path)

    return agent


def gateway_of(version: Version) -> ExistingGateway:
    return ExistingGateway(
        version,
        tokens={f"{name}-token": name for name in CAPABILITIES},
        capabilities=CAPABILITIES,
        space=SPACE,
    )


@asynccontextmanager
async def joined(
    gateway: ExistingGateway, agent: Agent | str, **options: Any
) -> AsyncGenerator[Space]:
    """An agent in the space, under the agent's name, for a block that may not hang."""
    agent = Agent(agent) if isinstance(agent, str) else agent
    given: dict[str, Any] = {"space": SPACE, "token": f"{agent.name}-token", "settings": AT_ONCE}
    given |= options
    with anyio.fail_after(PATIENCE):
        async with agent.join(given.pop("url", gateway.url), **given) as space:
            yield space


async def patiently(wait: Callable[..., T], *args: Any) -> T:
    """Waits in a thread for something that this loop has to do first."""
    return await to_thread.run_sync(lambda: wait(*args))
