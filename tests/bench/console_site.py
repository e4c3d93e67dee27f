"""A gateway with a console in a process of its own, and plain clients of its event streams."""

import selectors
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from starlette.types import ASGIApp
from websockets.frames import Frame, Opcode

from meup_agent.approval.reviewer.reviewer import Reviewer
from meup_agent.gateway.auth import Identity, digest_of_token
from meup_agent.gateway.config import one_space_config
from meup_agent.gateway.console import Console
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.gateway.server import Gateway
from meup_agent.protocol.space.owner import SpaceServer
from meup_agent.protocol.wire.membership import numbered
from tests.bench.envelopes import chat, proposal, request, response, withdrawal
from tests.bench.gateway_fanout import SEQ, dial, empty
from tests.bench.processes import UNBOUNDED, answer, ask, on_uvloop, process, usage

SPACE = "demo"
MAY_PROPOSE = [{"kind": "mcp/proposal"}, {"kind": "mcp/withdraw"}, {"kind": "mcp/request"}]
MAY_DECIDE = [{"kind": "mcp/request"}, {"kind": "mcp/reject"}, {"kind": "chat"}]
REVIEWER = "reviewer"
ASKS = "rules:\n  - ask: {tool: '*', name: by hand, ttl: 1h}\nend: true\n"
"""A policy that leaves everything to people."""

CHIEF = "chief"
"""One who has signed in, and may do more than the others."""

OF_A_PROPOSER = 1_000
"""Open proposals that a gateway takes of one participant."""

DRAINED = 1 << 20
IDLE_CPU = 0.1
"""Share of a core below which a gateway counts as idle."""

IDLE_SECONDS = 0.6
"""Seconds for which it has to be."""


class ConsoleAddress(NamedTuple):
    """A gateway's port, its tokens, and the cookies of people who have signed in."""

    port: int
    tokens: dict[str, str]
    cookies: dict[str, str]


def console_gateway(pipe: Connection, people: int, proposers: int) -> None:
    """A gateway with a console: tells its :class:`ConsoleAddress`, then does what it is asked."""
    everyone: dict[str, list[dict[str, Any]]] = {
        "tools": [{"kind": "mcp/response"}],
        "caller": [{"kind": "mcp/request"}, {"kind": "chat"}, *MAY_PROPOSE],
        **{f"bot{number}": MAY_PROPOSE for number in range(proposers)},
        **{f"you{number}": MAY_DECIDE for number in range(people)},
        CHIEF: [*MAY_DECIDE, {"kind": "mcp/withdraw"}],
        REVIEWER: [*MAY_DECIDE, {"kind": "mcp/response"}],
    }
    # As many join at once as do after a restart.
    limits = replace(UNBOUNDED, joins_burst=100_000)
    config = one_space_config(SPACE, everyone, limits)
    console = Console()
    runtimes: list[GatewayRuntime] = []

    @asynccontextmanager
    async def page(runtime: GatewayRuntime) -> AsyncGenerator[ASGIApp]:
        runtimes.append(runtime)
        async with console(runtime) as app:
            yield app

    async def main() -> None:
        async with Gateway(config=config, page=page) as it:
            tokens = {name: it.token(name) for name in everyone}
            cookies: dict[str, str] = {}
            for name in [each for each in everyone if each.startswith(("you", CHIEF))]:
                identity = Identity(SPACE, name)
                value, _ = console.sessions.open(identity, digest_of_token(tokens[name]))
                cookies[name] = f"meup_{it.port}={value}"
            pipe.send(ConsoleAddress(it.port, tokens, cookies))

            def question(asked: Any) -> Any:
                if isinstance(asked, int):
                    seed(runtimes[0].spaces[SPACE], asked)
                return usage(it.counters.delivered)

            await answer(pipe, question)

    on_uvloop(main())


def review(pipe: Connection, address: ConsoleAddress) -> None:
    """A reviewer that leaves everything to people: tells when it is there."""

    async def main(path: Path) -> None:
        url, token = f"ws://127.0.0.1:{address.port}", address.tokens[REVIEWER]
        async with Reviewer(path).join(url, token=token, space=SPACE):
            pipe.send("here")
            await answer(pipe, lambda _: usage())

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy.yaml")
        path.write_text(ASKS, encoding="utf-8")
        on_uvloop(main(path))


def seed(host: SpaceServer, count: int) -> None:
    """Make open proposals of several participants, as if each had sent its own."""
    for number in range(count):
        proposer = f"bot{number // OF_A_PROPOSER}"
        frame = proposal(f"{number:032x}", proposer, 3_600 + number)
        host.owner.receive_as(proposer, frame, "meup/v0.1", lambda _: None)


def mixture(count: int, kind: str = "0") -> Iterator[tuple[str, bytes]]:
    """Senders and frames: a chat, a proposal, a request, its response, the withdrawal."""
    for round_ in range(-(-count // 5)):
        ids = [f"{round_:028x}{kind}00{nth}" for nth in range(5)]
        yield "caller", chat(ids[0], "caller")
        yield "caller", proposal(ids[1], "caller", 3_600)
        yield "caller", request(ids[2], "caller")
        yield "tools", response(ids[3], ids[2], "caller")
        yield "caller", withdrawal(ids[4], "caller", ids[1])


class ConsoleSite:
    """A gateway with a console, members who speak there, and browsers that only listen."""

    def __init__(self, pipe: Connection, patience: float) -> None:
        self.pipe = pipe
        self._patience = patience
        self.address: ConsoleAddress = pipe.recv()
        self._members = {
            name: dial(self.address.port, SPACE, self.address.tokens[name])
            for name in ("caller", "tools")
        }
        ask(pipe, 5)
        for each in self._members.values():
            empty(each)
        self._selector = selectors.DefaultSelector()
        for each in self._members.values():
            self._selector.register(each, selectors.EVENT_READ)
        self._streams: list[socket.socket] = []
        self.heard = 0

    def cpu(self) -> float:
        """CPU seconds of the gateway so far."""
        return ask(self.pipe).cpu

    def seed(self, count: int) -> None:
        """Let there be so many open proposals."""
        self.pipe.send(count)
        self.pipe.recv()

    def say(self, sender: str, frame: bytes) -> None:
        """Send a frame as a member."""
        self._members[sender].sendall(Frame(Opcode.TEXT, frame).serialize(mask=True))

    def listen(self, people: Sequence[str], topics: str) -> None:
        """Open an event stream of each, one after the other."""
        for name in people:
            sock = socket.create_connection(("127.0.0.1", self.address.port))
            sock.sendall(self.get(f"/console/events?topics={topics}", name))
            heard = b""
            while b"event: hello" not in heard:
                came = sock.recv(DRAINED)
                assert came, heard
                heard += came
            self._streams.append(sock)
            self._selector.register(sock, selectors.EVENT_READ)

    def get(self, path: str, person: str, *headers: str) -> bytes:
        """A request of a browser that has signed in."""
        host, cookie = f"127.0.0.1:{self.address.port}", self.address.cookies[person]
        head = [f"GET {path} HTTP/1.1", f"Host: {host}", f"Cookie: {cookie}", *headers, "", ""]
        return "\r\n".join(head).encode()

    def settle(self) -> None:
        """Wait until the gateway has nothing more to do: people join, and look at what there is."""
        idle, used = 0, self.cpu()
        pause = self._patience / 3
        while idle < 3:
            self.read(pause)
            before, used = used, self.cpu()
            idle = idle + 1 if used - before < max(IDLE_CPU * pause, 0.005) else 0

    def read(self, seconds: float) -> None:
        """Read what comes to anybody for so long."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            for key, _ in self._selector.select(left):
                sock: socket.socket = key.fileobj  # type: ignore[assignment]
                self.heard += len(sock.recv(DRAINED))

    def exchange(self, frames: Sequence[bytes]) -> None:
        """Say something at once as the caller, and wait until it has heard it."""
        caller = self._members["caller"]
        caller.sendall(b"".join(Frame(Opcode.TEXT, each).serialize(mask=True) for each in frames))
        # Its own echo, numbered; others hear in the same turn.
        missing = len(frames) * len(
            Frame(Opcode.TEXT, numbered(frames[0], SEQ)).serialize(mask=False)
        )
        while missing:
            for key, _ in self._selector.select():
                sock: socket.socket = key.fileobj  # type: ignore[assignment]
                came = len(sock.recv(missing if sock is caller else DRAINED))
                missing -= came if sock is caller else 0

    def load(self, frames: Iterable[tuple[str, bytes]], rate: float) -> float:
        """Share of a core that the gateway uses while so many frames a second pass."""
        before, begun, sent = self.cpu(), time.perf_counter(), 0
        for sender, frame in frames:
            self.say(sender, frame)
            sent += 1
            self.read(begun + sent / rate - time.perf_counter())
        self.settle()  # what was gathered last, or is late
        # By the time that it should have taken: a machine with other work takes longer.
        return (self.cpu() - before) * rate / sent

    def close(self) -> None:
        """Go away."""
        for each in (*self._members.values(), *self._streams):
            each.close()


@contextmanager
def console_site(
    people: int, proposers: int = 0, patience: float = IDLE_SECONDS
) -> Iterator[ConsoleSite]:
    """A gateway with a console in a process of its own."""
    with process(console_gateway, people, proposers) as pipe:
        with closing(ConsoleSite(pipe, patience)) as site:
            yield site
