"""Files of ``meup up``: who runs what, and the tokens of participants whose file has none.

Each ``meup up`` holds a lock on a file of its own in the user's state folder, named after the file
that it runs. The lock goes with the process; what the file says without one is old.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from meup_agent.cli.dev_state import (
    FILE_MODE,
    FOLDER_MODE,
    MAX_FILE_BYTES,
    DevGateway,
    DevState,
    state_folder,
)
from meup_agent.cli.failures import Failure
from meup_agent.cli.local_socket import SOCKET_SUFFIX
from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.gateway.auth import new_token, renew_token
from meup_agent.transport.unix_socket import socket_url

TOKEN_SUFFIX: Final = ".token"

PINS_NAME: Final = "meup-tools.lock"
"""Name of the file of accepted tools."""

MAX_NAME_BYTES: Final = 200
"""Bytes of a file's name before its ending; file systems take 255."""

MAX_RUNNING: Final = 100
"""Locks that are looked at for the owner of a port."""


class Owner(msgspec.Struct):
    """A ``meup up`` that runs, or is starting and has no port yet."""

    process: int
    file: str
    url: str = ""
    socket: str = ""
    folder: str = ""
    http: str | None = None
    space: str = ""
    # Participant → the file of its token.
    token_files: dict[str, str] = {}

    def __str__(self) -> str:
        """Its process and its address."""
        where = f" at {self.url}" if self.url else ""
        return f"meup up already runs {self.file}{where} (process {self.process})"


def up_folder() -> Path:
    """The folder of the locks, and of the tokens of ``meup up --servers``."""
    return state_folder().parent / "up"


def digest_of(file: Path) -> str:
    """A name for a file's place, which any file system takes."""
    return hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:16]


class UpLock:
    """The lock on a file that is run; others find its owner."""

    def __init__(self, descriptor: int, file: Path, socket: Path) -> None:
        self._descriptor = descriptor
        self.socket = socket
        """The path of the gateway's Unix socket: the same at each start, whatever the port."""
        self._owner = Owner(os.getpid(), str(file), folder=str(file.resolve().parent))

    def publish(
        self,
        url: str,
        http: str | None = None,
        space: str = "",
        token_files: Mapping[str, Path] | None = None,
    ) -> None:
        """Let others know the address, and where the tokens are that they may use."""
        self._owner.url, self._owner.http, self._owner.space = url, http, space
        self._owner.socket = socket_url(str(self.socket)) if url else ""
        self._owner.token_files = {
            name: str(path.absolute()) for name, path in (token_files or {}).items()
        }
        content = msgspec.json.encode(self._owner)
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))


@contextmanager
def up_lock(file: Path) -> Generator[UpLock]:
    """Hold the lock on a file for the length of a block.

    Raises:
        Failure: Another ``meup up`` runs it; the sentence says which, and where.
    """
    import fcntl  # not on every system, and this module is loaded for a help text, too

    name = digest_of(file)
    path = up_folder() / f"{name}.lock"
    make_folder(path.parent)
    with _sentence(path):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, FILE_MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _read(descriptor)
            said = str(owner) if owner else f"meup up already runs {file}"
            raise Failure(f"{said}; stop it with Ctrl-C there, or use it") from None
        lock = UpLock(descriptor, file, up_folder() / f"{name}{SOCKET_SUFFIX}")
        lock.publish("")
        yield lock
    finally:
        os.close(descriptor)


def running_owners() -> Generator[Owner]:
    """Each ``meup up`` of this user that runs or is starting."""
    import fcntl

    with suppress(OSError):
        for path in sorted(up_folder().glob("*.lock"))[:MAX_RUNNING]:
            with suppress(OSError), path.open("rb") as file:
                owner = _read(file.fileno())
                if owner is None:
                    continue
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield owner


def owner_of(port: int) -> Owner | None:
    """The ``meup up`` that listens at a port."""
    return next((each for each in running_owners() if each.url.endswith(f":{port}")), None)


def running_gateways() -> list[DevGateway]:
    """The gateways of this user with tokens to be had: of ``--dev``, and of ``meup up``."""
    found = DevState(state_folder()).find_running()
    for owner in running_owners():
        files = {name: Path(path) for name, path in owner.token_files.items()}
        if owner.url and files:
            tokens = {name: keep_token(path) for name, path in files.items() if path.is_file()}
            found.append(DevGateway(owner.url, owner.socket, owner.http, owner.space, tokens))
    return found


def _read(descriptor: int) -> Owner | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, MAX_FILE_BYTES, 0), type=Owner)
    except (OSError, msgspec.MsgspecError):
        return None


# --- tokens ---


def token_path(folder: Path, participant: str) -> Path:
    """The file that holds a participant's token, beside the file of its space."""
    name = quote(participant, safe=" ")
    if len(name) > MAX_NAME_BYTES or name.startswith("."):
        name = hashlib.sha256(participant.encode()).hexdigest()
    return folder / f"{name}{TOKEN_SUFFIX}"


def pins_path(folder: Path, prefix: str = "") -> Path:
    """The file of the accepted tools of a space's MCP servers, beside the tokens."""
    return folder / f"{quote(prefix, safe='. ')}{PINS_NAME}"


def keep_token(path: Path, *, renew: bool = False) -> str:
    """The token in a file, which is made with a new one if there is none, or if it is renewed.

    Raises:
        ConfigurationError: The file cannot be used, or others than its user can open it.
    """
    if renew:
        return renew_token(path, keep_token)
    with _sentence(path), suppress(FileExistsError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, FILE_MODE), "w", encoding="ascii") as file:
            token = new_token()
            file.write(f"{token}\n")
            return token
    with _sentence(path), os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as held:
        mode = os.fstat(held.fileno()).st_mode
        words = held.read(MAX_FILE_BYTES).split()
    if not stat.S_ISREG(mode) or len(words) != 1 or not words[0].isascii():
        raise ConfigurationError(f"{path} must hold a token and nothing else; remove it")
    if mode & 0o077:
        raise ConfigurationError(
            f"{path} can be opened by other users, and holds a token; run: chmod 600 {path}"
        )
    return words[0].decode()


def make_folder(path: Path) -> None:
    """Make a folder for this user alone, if it is not there."""
    with _sentence(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=FOLDER_MODE)
        if path.stat().st_uid != os.geteuid() or path.stat().st_mode & 0o077:
            raise ConfigurationError(
                f"{path} can be opened by other users, and tokens are kept there; run: chmod 700"
                f" {path}"
            )


@contextmanager
def _sentence(path: Path) -> Generator[None]:
    """Make one of what the system says about a file."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        why = system_reason(error)
        raise ConfigurationError(f"{path} cannot be used ({why})") from None
