"""A NATS server with JetStream: one for all tests of a process, or one to be killed."""

import atexit
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

COMMAND = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"

LISTENS_SECONDS = 60.0


class NatsServer:
    """A server, whose streams outlive its process.

    Args:
        max_payload: Its largest message.
        settings: Further lines of its configuration.
    """

    def __init__(self, max_payload: str = "8MB", settings: str = "") -> None:
        self._max_payload = max_payload
        self._folder = tempfile.TemporaryDirectory(prefix="meup-nats-")
        self.folder = Path(self._folder.name)
        self.settings = settings
        self._port = -1
        self.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, at the same port as before, and wait until it listens."""
        for written in self.folder.glob("*.ports"):
            written.unlink()
        config = self.folder / "nats.conf"
        config.write_text(
            f"host: 127.0.0.1\nport: {self._port}\nports_file_dir: '{self.folder}'\n"
            f"max_payload: {self._max_payload}\n"
            f"jetstream {{ store_dir: '{self.folder}', sync_interval: always }}\n{self.settings}\n"
        )
        with (self.folder / "log").open("ab") as told:
            self.process = subprocess.Popen([COMMAND, "--config", config], stderr=told)
        deadline = time.monotonic() + LISTENS_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            for written in self.folder.glob("*.ports"):
                with suppress(ValueError):  # not written to its end yet
                    address: str = json.loads(written.read_text())["nats"][0]
                    self._port = int(address.rpartition(":")[2])
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
        self._folder.cleanup()


@cache
def shared_server() -> NatsServer:
    """The server of all tests of this process, which give each their own prefix."""
    server = NatsServer()
    atexit.register(server.close)
    return server
