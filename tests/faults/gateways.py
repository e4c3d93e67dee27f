"""A gateway in a process of its own, with a journal in a file, to be killed and started again."""

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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@contextmanager
def gateway(file: Path, port: int) -> Generator[Running]:
    with running("gateway", "--config", str(file), "--port", str(port)) as process:
        process.until("listening at", stream="err")
        yield process
