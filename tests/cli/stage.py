"""A space for commands that take part, with tools, a reviewer, and one that refuses.

The agents run in a thread of their own, on a gateway of their own.
"""

import json
import queue
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Annotated, Any, Literal

import anyio
from anyio.from_thread import start_blocking_portal
from pydantic import Field
from websockets.sync.client import connect

from meup_agent import Agent, Context, Expiry, Proposal, Space, Withdrawal
from meup_agent.gateway import Gateway, ThreadedGateway
from tests.cli.participants import T, act_as, variables_of
from tests.patience import PATIENCE
from tests.wire import kinds, payloads

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202egnp.exe\r\x9b31m[red]\u200b"
ESCAPED = "\\e[2J\\e]0;owned\\x07\\u202egnp.exe\\r\\x9b31m[red]\\u200b"
ON_ONE_LINE = ESCAPED.replace("\\r", " ")
"""The same text where white space is of no importance."""


CALL = {"kind": "mcp.request", "payload": {"method": "tools/call", "params": {"name": "read_*"}}}
LIST = {"kind": "mcp.request", "payload": {"method": "tools/list"}}

PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "files": [],
    "reviewer": [{"kind": "*"}],
    "mute": [],
    "alice": [{"kind": "*"}],
    "paula": [{"kind": "mcp.proposal"}, {"kind": "chat"}, LIST, CALL],
    "nobody": [],
}


class Stage:
    """The space as tests see it.

    Attributes:
        gateway: The gateway.
        calls: The arguments of every call of `write_file`, in order.
    """

    def __init__(self, gateway: ThreadedGateway) -> None:
        self.gateway = gateway
        self.calls: list[dict[str, str]] = []
        self._events: queue.Queue[tuple[str, str]] = queue.Queue()

    def variables(self, participant: str = "alice", **more: str) -> dict[str, str]:
        return variables_of(self.gateway, participant, **more)

    def tell(self, what: str, about: str = "") -> None:
        self._events.put((what, about))

    def forget(self) -> None:
        self.calls.clear()
        while not self._events.empty():
            self._events.get()

    def wait_for(self, what: str) -> str:
        """Wait for the next thing that happens, which must be this; what it is about."""
        happened, about = self._events.get(timeout=PATIENCE)
        assert happened == what
        return about

    def wait_for_all(self, *what: str) -> None:
        """Wait for the next things that happen, which must be these, in whatever order."""
        assert sorted(self._events.get(timeout=PATIENCE)[0] for _ in what) == sorted(what)

    def as_somebody(self, participant: str, act: Callable[[Space], Awaitable[T]]) -> T:
        """Do something in the space, here and now."""
        return act_as(self.gateway, participant, act)


@contextmanager
def staged() -> Generator[Stage]:
    """Set the stage for the length of a block."""
    with Gateway("demo", PARTICIPANTS).in_thread() as gateway, on_stage(gateway) as stage:
        yield stage


@contextmanager
def on_stage(gateway: ThreadedGateway) -> Generator[Stage]:
    """Set the stage at a gateway for the length of a block."""
    stage = Stage(gateway)
    agents = {"files": _files(stage), "reviewer": _reviewer(stage)}
    with _mute(gateway), start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(_joined(gateway, agents)):
            yield stage


@asynccontextmanager
async def _joined(gateway: ThreadedGateway, agents: dict[str, Agent]) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for name, agent in agents.items():
            joined = agent.join(gateway.url, space="demo", token=gateway.token(name), grace=0.0)
            await stack.enter_async_context(joined)
        yield


@contextmanager
def _mute(gateway: ThreadedGateway) -> Generator[None]:
    """A participant that refuses every request, tool lists too."""
    header = {"Authorization": f"Bearer {gateway.token('mute')}"}
    with connect(
        f"{gateway.url}/ws?space=demo", additional_headers=header, open_timeout=PATIENCE
    ) as socket:

        def refuse() -> None:
            for frame in socket:
                asked = json.loads(frame)
                if asked["kind"] != "mcp.request" or asked.get("to") != ["mute"]:
                    continue
                error = {"code": -32601, "message": f"not me {HOSTILE}"}
                answer = {
                    "protocol": "meup/v0.1",
                    "id": f"answer to {asked['id']}",
                    "from": "mute",
                    "to": [asked["from"]],
                    "kind": "mcp.response",
                    "correlationId": asked["id"],
                    "payload": {"jsonrpc": "2.0", "id": asked["payload"]["id"], "error": error},
                }
                socket.send(json.dumps(answer))

        thread = threading.Thread(target=refuse)
        thread.start()
        yield
    thread.join()


def _files(stage: Stage) -> Agent:
    files = Agent("files")

    @files.tool
    async def write_file(
        path: Annotated[str, Field(description="Where, below the workspace.")],
        text: str,
        mode: Literal["new", "append"] = "new",
        tags: list[str] | None = None,
        size: int = 0,
    ) -> str:
        """Write a text file."""
        stage.calls.append({"path": path, "text": text, "mode": mode})
        return f"{path!r} has {text!r}"

    @files.tool(description=f"Read it. {HOSTILE}")
    async def read_hostile() -> str:
        return f"{HOSTILE}\nsecond line\tends"

    @files.tool
    async def read_report(lines: int = 2) -> dict[str, Any]:
        return {"lines": lines, "ok": True}

    @files.tool
    async def nothing() -> None: ...

    @files.tool
    async def fail() -> None:
        raise ValueError(f"no such file {HOSTILE}")

    @files.tool
    async def read_long(ctx: Context) -> None:
        """Tell of progress, and never end."""
        stage.tell("started")
        await ctx.progress(1, 3, "first of three")
        try:
            await anyio.sleep_forever()
        finally:
            stage.tell("stopped", "" if ctx.reason is None else ctx.reason.code)

    return files


def _reviewer(stage: Stage) -> Agent:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal(tool="write_file")
    async def review(proposal: Proposal, space: Space) -> None:
        path = proposal.arguments["path"]
        if path == "bad":
            await proposal.reject("unsafe", explain=f"never there {HOSTILE}")
        elif path == "edited":
            await proposal.fulfill({**proposal.arguments, "path": "elsewhere"})
        elif path == "told":
            # As some do: an answer to the proposal, whatever was done for it.
            result = {"content": [{"type": "text", "text": "'told' has 't'"}]}
            await space.send(
                kinds.MCP_RESPONSE,
                payloads.result(proposal.id, result),
                to=proposal.proposer,
                correlation=proposal.id,
            )
        elif path == "later":
            stage.tell("proposed", proposal.id)
        else:
            await proposal.fulfill()

    @reviewer.on_proposal(tool=["fail", "read_long"])
    async def carry_out(proposal: Proposal) -> None:
        await proposal.fulfill()

    @reviewer.on_proposal(tool="nothing")
    async def ponder(proposal: Proposal) -> None:
        stage.tell("proposed", proposal.id)
        await anyio.sleep_forever()

    @reviewer.on_withdraw
    async def withdrawn(withdrawal: Withdrawal) -> None:
        stage.tell("withdrawn", withdrawal.proposal_id)

    @reviewer.on_expire
    async def expired(expiry: Expiry) -> None:
        stage.tell("expired", expiry.proposal_id)

    return reviewer
