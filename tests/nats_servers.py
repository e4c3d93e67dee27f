"""A NATS server with JetStream: one for all tests of a process, or one to be killed."""

import atexit
import signal
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

from meup_agent.cli.cluster.programs import find_nats_server, held_port

__all__ = ["NatsServer", "held_port", "shared_server"]

COMMAND = find_nats_server()

LISTENS_SECONDS = 60.0


class NatsServer:
    """A server, whose streams outlive its process.

    Args:
        max_payload: Its largest message.
        settings: Further lines of its configuration.
        sync_interval: How often it asks its disk to keep what is written.
    """

    def __init__(
        self, max_payload: str = "8MB", settings: str = "", sync_interval: str = "always"
    ) -> None:
        self._max_payload = max_payload
        self._folder = tempfile.TemporaryDirectory(prefix="meup-nats-")
        self.folder = Path(self._folder.name)
        self.settings = settings
        self.sync_interval = sync_interval
        self._held, self._port = held_port()
        self.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, at its port, and wait until it listens."""
        for written in self.folder.glob("*.ports"):
            written.unlink()
        config = self.folder / "nats.conf"
        config.write_text(
            f"host: 127.0.0.1\nport: {self._port}\nports_file_dir: '{self.folder}'\n"
            f"max_payload: {self._max_payload}\n"
            f"jetstream {{ store_dir: '{self.folder}', sync_interval: {self.sync_interval} }}\n"
            f"{self.settings}\n"
        )
        with (self.folder / "log").open("ab") as told:
            self.process = subprocess.Popen([COMMAND, "--config", config], stderr=told)
        deadline = time.monotonic() + LISTENS_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            if any(self.folder.glob("*.ports")):
                return
            time.sleep(0.01)
        raise RuntimeError("the NATS server does not listen: " + (self.folder / "log").read_text())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._held.close()
        self._folder.cleanup()


@cache
def shared_server() -> NatsServer:
    """The server of all tests of this process, which give each their own prefix."""
    server = NatsServer()
    atexit.register(server.close)
    return server
