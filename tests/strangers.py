"""Another user of this machine, who listens where a gateway is expected."""

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

STRANGER: Final = 54321
"""A user who owns nothing here."""

LISTENS = r"""
import os, socket, ssl, sys
family, where, user, certificate = sys.argv[1:]
"".encode("idna")  # whose module this user may not be able to read
tls = None
if certificate:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
os.setgroups([])
os.setgid(int(user))
os.setuid(int(user))
listening = socket.socket(getattr(socket, family))
if family == "AF_UNIX":
    listening.bind(where)
    os.chmod(where, 0o777)
else:
    host, port = where.rsplit("|", 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == "AF_INET6":
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listening.bind((host, int(port)))
listening.listen()
print("" if family == "AF_UNIX" else listening.getsockname()[1], flush=True)
taken, heard = [], b""
for line in sys.stdin:
    if line == "take\n":
        taken.append(listening.accept()[0])
        try:
            if tls:
                with tls.wrap_socket(taken.pop(), server_side=True) as connection:
                    while b"\r\n\r\n" not in heard and (more := connection.recv(65536)):
                        heard += more
        except OSError:
            pass  # hung up on
    elif line == "leave\n":
        listening.close()
    elif line == "hear\n":
        listening.setblocking(False)
        try:
            while True:
                taken.append(listening.accept()[0])
        except BlockingIOError:
            pass
        for each in taken:
            each.settimeout(60)
            try:
                while more := each.recv(65536):
                    heard += more
            except ConnectionError:
                pass
        print(len(taken), heard, flush=True)
    print("done", flush=True)
"""


class Stranger:
    """Listens as another user, and takes connections when it is told to."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.port = int(self._read() or 0)

    def take(self) -> None:
        """Accept a connection; with TLS also a request, which gets no answer."""
        self._tell("take")
        assert self._read() == "done"

    def leave(self) -> None:
        """Stop listening; what was accepted stays."""
        self._tell("leave")
        assert self._read() == "done"

    def hear(self) -> tuple[int, str]:
        """The number of connections that came, and all that was sent over them to their ends."""
        self._tell("hear")
        number, heard = self._read().split(" ", 1)
        assert self._read() == "done"
        return int(number), heard

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


def require_other_user() -> None:
    """Fail where no process of another user can be started."""
    if os.geteuid():
        pytest.fail("this test needs a second user; run it as root, for example in a container")


@contextmanager
def stranger(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    path: Path | None = None,
    certificate: Path | None = None,
) -> Generator[Stranger]:
    """Another user who listens, at a port or at a path."""
    require_other_user()
    family = "AF_UNIX" if path is not None else "AF_INET6" if ":" in host else "AF_INET"
    where = f"{host}|{port}" if path is None else str(path)
    with subprocess.Popen(
        [
            sys.executable,
            "-IS",
            "-c",
            LISTENS,
            family,
            where,
            str(STRANGER),
            str(certificate or ""),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Stranger(process)
        finally:
            process.kill()


def tell_by_tables(monkeypatch: pytest.MonkeyPatch, folder: Path | None = None) -> None:
    """Have a kernel that answers nothing about sockets, and its tables, or those of a folder."""
    monkeypatch.setattr(socket, "AF_NETLINK", 99)
    if folder is not None:
        monkeypatch.setattr("meup_agent.transport.listener_owner.TABLES", folder)
