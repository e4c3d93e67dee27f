"""A gateway in a process of its own, with a journal, to be killed and started again."""

import secrets
import socket
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.cli.processes import Running, running
from tests.nats_servers import shared_server
from tests.patience import PATIENCE

JOURNALS = ("file", "nats")


def space_yaml(folder: Path, names: Iterable[str], journal: str = "file") -> Path:
    """A gateway's file; its tokens are its participants' names, who may say everything.

    Its journal is in a file, or on NATS.
    """
    lines = ["space: {id: demo, dialect: meup/v0.1}", "participants:"]
    lines += [f"  {name}: {{tokens: [{name}], capabilities: [{{kind: '**'}}]}}" for name in names]
    lines += ["gateway: {messages_per_second: 100000, messages_burst: 100000}"]
    if journal == "nats":
        prefix = secrets.token_hex(8)
        place = f"{{servers: ['{shared_server().url}'], prefix: {prefix}, replicas: 1}}"
        lines += [f"journal: {{nats: {place}}}"]
    else:
        lines += ["journal: {path: journal.db}"]
    file = folder / "space.yaml"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


PORTS = range(20_000, 30_000)
"""Below those that systems give to who asks for any, which would go to others while a gateway is
down."""


def free_port() -> int:
    """A port that stays free for the gateways of this process, one after the other."""
    while True:
        port = PORTS[secrets.randbelow(len(PORTS))]
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            # Datagrams have ports of their own: this one tells the other processes of the tests.
            claim.bind(("127.0.0.1", port))
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            claim.close()
        else:
            claim.detach()  # for as long as the process runs
            return port


@contextmanager
def gateway(file: Path, port: int) -> Generator[Running]:
    with running("gateway", "--config", str(file), "--port", str(port)) as process:
        process.until("listening at", stream="err")
        _wait_ready(port)
        yield process


def _wait_ready(port: int) -> None:
    """Wait until it has its spaces: on NATS it listens before that."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE):
                return
        except HTTPError as error:
            error.close()  # 503: not yet
        time.sleep(0.02)
    raise AssertionError(f"the gateway at port {port} does not get ready")
