"""A gateway that answers hooks, and somebody who decides."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio

from meup_agent import Agent, Proposal, Space
from meup_agent.cli.up.hook_endpoint import HOOKS_PATH, HookEndpoint
from meup_agent.gateway.config import HttpConfig
from meup_agent.gateway.server import RunningGateway, serve
from meup_agent.transport.base import background_tasks
from tests.gateways import one_space_config, websocket_connector
from tests.interaction.people import EVERYTHING, PROPOSALS
from tests.patience import PATIENCE

PARTICIPANTS = {"coder": PROPOSALS, "ann": EVERYTHING, "deaf": [{"kind": "chat"}]}

Decide = Callable[[Proposal], Any]


@dataclass
class Hooked:
    """A gateway that answers hooks.

    Attributes:
        space: The space, as the one who decides sees it.
        kill: Ends its answers as the death of its process would.
    """

    gateway: RunningGateway
    space: Space
    tokens: dict[str, str]
    kill: Callable[[], None]

    @property
    def url(self) -> str:
        url = self.gateway.http_url
        assert url is not None
        return url


@asynccontextmanager
async def hooked(decide: Decide | None = None, *, mode: str = "enforce") -> AsyncGenerator[Hooked]:
    """A gateway with hooks, for the length of a block; without a decision all calls wait."""
    config = one_space_config("demo", PARTICIPANTS)
    config = replace(config, http=HttpConfig(enabled=True), host="127.0.0.1", port=0)
    (space,) = config.spaces
    tokens = {name: each.tokens[0] for name, each in space.participants.items()}
    endpoint, ann = HookEndpoint(mode), Agent("ann")
    if decide is not None:
        ann.on_proposal(tool="*")(decide)
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(serve(config, routes={HOOKS_PATH: endpoint}))
        tasks = await stack.enter_async_context(background_tasks())
        tasks.start_soon(endpoint.run, running)
        connector = websocket_connector(running.url, space="demo")
        joined = await stack.enter_async_context(ann.join(connector, token=tokens["ann"]))

        def kill() -> None:
            server = running._http  # pyright: ignore[reportPrivateUsage]
            assert server is not None
            server.abort()
            tasks.cancel_scope.cancel()

        yield Hooked(running, joined, tokens, kill)


async def proposed(space: Space, count: int = 1) -> None:
    """Wait until so many calls were proposed."""
    with space.watch() as heard:
        while len(space.proposals) < count:
            await anext(heard)


async def settled(space: Space, nth: int = 0) -> str:
    """Wait until a proposal is decided for good, and reported where it was permitted; its state."""
    with anyio.fail_after(PATIENCE):
        while True:
            record = space.proposals[nth]
            if not record.state.is_pending and record.state != "permitted":
                return str(record.state)
            await anyio.sleep(0.01)
