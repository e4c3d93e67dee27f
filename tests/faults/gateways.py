"""A gateway in a process of its own, with a journal in a file, to be killed and started again."""

import secrets
import socket
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from tests.cli.processes import Running, running


def space_yaml(folder: Path, names: Iterable[str]) -> Path:
    """A gateway's file; its tokens are its participants' names, who may say everything."""
    lines = ["space: {id: demo, dialect: meup/v0.1}", "participants:"]
    lines += [f"  {name}: {{tokens: [{name}], capabilities: [{{kind: '**'}}]}}" for name in names]
    lines += ["gateway: {messages_per_second: 100000, messages_burst: 100000}"]
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
        yield process
