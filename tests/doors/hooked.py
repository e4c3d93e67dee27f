"""A gateway that answers hooks, and somebody who decides."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import httpx
from anyio.abc import ByteStream, SocketAttribute, TaskGroup, TaskStatus

from meup_agent import Agent, Proposal, Space
from meup_agent.cli.up.endpoints import HOOKS_PATH, HookEndpoint
from meup_agent.gateway.config import Config, HttpConfig, JournalConfig
from meup_agent.gateway.server import RunningGateway, serve
from meup_agent.transport.base import background_tasks
from tests.gateways import one_space_config, websocket_connector
from tests.interaction.people import EVERYTHING, PROPOSALS
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE

PARTICIPANTS = {
    "coder": PROPOSALS,
    "mallory": PROPOSALS,
    "ann": EVERYTHING,
    "deaf": [{"kind": "chat"}],
}

Decide = Callable[[Proposal], Any]


class Hooked:
    """A gateway that answers hooks.

    Attributes:
        space: The space, as the one who decides sees it.
        door_url: Its address for a door that has a connection of its own.
    """

    gateway: RunningGateway
    space: Space
    door_url: str

    def __init__(self, tasks: TaskGroup, config: Config, decide: Decide | None, mode: str) -> None:
        self._tasks = tasks
        self._config = config
        self._decide = decide
        self._mode = mode
        self._port = 0
        (space,) = config.spaces
        self.tokens = {name: each.tokens[0] for name, each in space.participants.items()}

    @property
    def url(self) -> str:
        url = self.gateway.http_url
        assert url is not None
        return url

    @property
    def waiting(self) -> int:
        """The hosts that wait: nothing tells that one has joined another's call."""
        app: Any = self._endpoint._app  # pyright: ignore[reportPrivateUsage]
        return sum(each.waiting for each in app._members.values())

    async def start(self) -> None:
        """Serve, at the port of before where it did already."""
        # In a task of its own, since a test may let it die within scopes of its own.
        self._dying, self._dead = anyio.Event(), anyio.Event()
        await self._tasks.start(self._live)

    async def _live(self, *, task_status: TaskStatus[None]) -> None:
        async with AsyncExitStack() as stack:
            await self._enter(stack)
            task_status.started()
            await self._dying.wait()
        self._dead.set()

    async def _enter(self, stack: AsyncExitStack) -> None:
        endpoint, ann = HookEndpoint(self._mode), Agent("ann")
        self._endpoint = endpoint
        if self._decide is not None:
            ann.on_proposal(tool="*")(self._decide)
        served = serve(self._config, port=self._port, routes={HOOKS_PATH: endpoint})
        self.gateway = await stack.enter_async_context(served)
        self._port = int(self.url.rpartition(":")[2])
        tasks = await stack.enter_async_context(background_tasks())
        self._answering = anyio.CancelScope()  # alone: the group's would end the caller, too
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

        async def answer() -> None:
            with self._answering:
                async with listener, anyio.create_task_group() as answers:
                    answers.start_soon(endpoint.run, self.gateway)
                    await listener.serve(partial(_relay, self.gateway))

        tasks.start_soon(answer)
        self.door_url = f"ws://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        connector = websocket_connector(self.gateway.url, space="demo")
        self.space = await stack.enter_async_context(ann.join(connector, token=self.tokens["ann"]))

    def kill(self) -> None:
        """End its answers as the death of its process would, for all but the space here."""
        server = self.gateway._http  # pyright: ignore[reportPrivateUsage]
        assert server is not None
        server.abort()
        self._answering.cancel()

    async def restart(self) -> None:
        """Let it die, and start it again."""
        self.kill()
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        self._dying.set()
        await self._dead.wait()


@asynccontextmanager
async def hooked(
    decide: Decide | None = None,
    *,
    mode: str = "enforce",
    journal: Path | None = None,
    more: Mapping[str, list[dict[str, Any]]] = MappingProxyType({}),
) -> AsyncGenerator[Hooked]:
    """A gateway with hooks, for the length of a block; without a decision all calls wait.

    There may be more participants, with their capabilities.
    """
    config = one_space_config("demo", {**PARTICIPANTS, **more})
    config = replace(
        config,
        http=HttpConfig(enabled=True),
        host="127.0.0.1",
        port=0,
        journal=JournalConfig(journal),
    )
    async with background_tasks() as tasks:
        at = Hooked(tasks, config, decide, mode)
        await at.start()
        yield at
        await at.stop()


async def _relay(gateway: RunningGateway, client: ByteStream) -> None:
    """Carry the bytes of a connection to the gateway and back."""
    port = int(gateway.url.rpartition(":")[2])
    async with (
        client,
        await anyio.connect_tcp("127.0.0.1", port) as server,
        anyio.create_task_group() as tasks,
    ):

        async def carry(source: ByteStream, sink: ByteStream) -> None:
            with suppress(anyio.BrokenResourceError):  # a program may be killed
                async for piece in source:
                    await sink.send(piece)
            tasks.cancel_scope.cancel()

        tasks.start_soon(carry, client, server)
        tasks.start_soon(carry, server, client)


@asynccontextmanager
async def client(at: Hooked, who: str = "coder") -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=at.url,
        headers={"Authorization": f"Bearer {at.tokens.get(who, who)}"},
        timeout=PATIENCE,
        trust_env=False,
        verify=NO_TLS,
    ) as made:
        yield made


@asynccontextmanager
async def asked(
    decide: Decide | None = None, **more: Any
) -> AsyncGenerator[tuple[Hooked, httpx.AsyncClient]]:
    """A gateway with hooks, and the client of a host, for a block that may not hang."""
    with anyio.fail_after(PATIENCE):
        async with hooked(decide, **more) as at, client(at) as http:
            yield at, http


async def proposed(space: Space, count: int = 1) -> None:
    """Wait until so many calls were proposed."""
    with space.watch() as heard:
        while len(space.proposals) < count:
            await anext(heard)


async def permitted_after_a_restart(at: Hooked) -> None:
    """Wait for a call, start the gateway again, and let the call run once its door is back."""
    await proposed(at.space)
    await at.restart()
    with at.space.watch() as heard:
        while "coder" not in [each.id for each in at.space.participants]:
            await anext(heard)
    await proposed(at.space)
    await at.space.proposals.get(at.space.proposals[0]).fulfill()


async def settled(space: Space, nth: int = 0) -> str:
    """Wait until a proposal is decided for good, and reported where it was permitted; its state."""
    with anyio.fail_after(PATIENCE):
        while True:
            record = space.proposals[nth]
            if not record.state.is_pending and record.state != "permitted":
                return str(record.state)
            await anyio.sleep(0.01)
