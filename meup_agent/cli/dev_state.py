"""The folder in which ``meup gateway --dev`` keeps its tokens and says where it listens.

One file holds the tokens, so that they outlive a restart. Each gateway that runs has a file of its
own beside it, with its addresses and its tokens, and holds a lock on that file: after a crash the
file stays and the lock does not, so ``meup env`` never hands out the address of a dead gateway,
where a stranger may listen by now. A gateway's Unix socket is there, too, under the same lock.

Only the user's own folder (mode 700) and files (mode 600) are used, and no symbolic link is
followed: another user of the machine could have put one there.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from meup_agent.cli.local_socket import SOCKET_SUFFIX, bind_socket, remove_socket
from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.gateway.auth import new_token

T = TypeVar("T")
STATE_VARIABLE: Final = "MEUP_STATE_DIR"  # the folder in place of the system's for programs' state
TOKENS_FILE: Final = "tokens.json"
LOCK_FILE: Final = "lock"
RUNNING_PREFIX: Final = "running-"
RUNNING_SUFFIX: Final = ".json"
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
MAX_FILE_BYTES: Final = 65_536  # bytes of a file that is read: ours have less than 2,000
MAX_RUNNING: Final = 100  # gateways that are looked at: more than anyone runs to try something out


class DevGateway(msgspec.Struct, frozen=True):
    """A gateway of this user, with the address of its port, and that of its Unix socket."""

    url: str
    socket: str
    http: str | None
    space: str
    tokens: dict[str, str]

    @property
    def port(self) -> int:
        """The port for members."""
        return int(self.url.rpartition(":")[2])


def state_folder() -> Path:
    """The folder of the tokens: in MEUP_STATE_DIR, or where the system keeps programs' state."""
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        return Path(chosen).absolute() / "dev"
    from platformdirs import user_state_path

    return user_state_path("meup", appauthor=False) / "dev"


class DevState:
    """The tokens and the running gateways that a folder knows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tokens(self, names: Iterable[str], *, renew: bool = False) -> dict[str, str]:
        """The kept token of each participant; one that has none gets a new one, which is kept."""
        with self._open(create=True) as folder:
            running = self._find_running(folder) if renew else []
            if running:
                raise ConfigurationError(
                    f"the gateway at {running[0].url} uses the tokens; stop it, then make new ones"
                )
            kept = dict[str, str]() if renew else self._read_tokens(folder)
            tokens = {name: kept.get(name) or new_token() for name in names}
            if tokens != kept:
                self._replace(folder, TOKENS_FILE, msgspec.json.encode(tokens))
            return tokens

    def socket_of(self, url: str) -> Path:
        """The Unix socket of the gateway whose port is at an address."""
        return self.path / f"{_file_name(url)}{SOCKET_SUFFIX}"

    @contextmanager
    def announce(self, gateway: DevGateway) -> Generator[socket.socket]:
        """Let :meth:`find_running` find a gateway for the length of a block; its Unix socket."""
        name = f"{RUNNING_PREFIX}{_file_name(gateway.url)}{RUNNING_SUFFIX}"
        with ExitStack() as held:
            with self._open(create=True) as folder:
                # This removes what a killed gateway left, perhaps under this name.
                if gateway.url in [each.url for each in self._find_running(folder)]:
                    raise ConfigurationError(
                        f"a gateway of yours runs at {gateway.url}, perhaps in a container; choose"
                        f" another port, or set {STATE_VARIABLE} to another folder"
                    )
                bound = held.enter_context(bind_socket(self.socket_of(gateway.url)))
                file = self._create(folder, name, msgspec.json.encode(gateway))
                _lock(file)
            try:
                yield bound
            finally:
                # The user may have removed the folder meanwhile; then nothing is left to remove.
                with suppress(ConfigurationError, OSError), self._open() as folder:
                    held.close()
                    os.unlink(name, dir_fd=folder)
                os.close(file)

    def find_running(self) -> list[DevGateway]:
        """The gateways that run now."""
        try:
            with self._open() as folder:
                return self._find_running(folder)
        except FileNotFoundError:
            return []

    @contextmanager
    def _open(self, *, create: bool = False) -> Generator[int]:
        """The folder as a descriptor, locked against other commands for the length of a block."""
        with self._usable(self.path):
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):
                    self.path.mkdir(mode=FOLDER_MODE)
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        with _closing(folder), self._usable(self.path):
            _check_private(os.fstat(folder), self.path, "chmod 700")
            # A file beside the others: a folder cannot be locked on every network's file system.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            with _closing(os.open(LOCK_FILE, flags, FILE_MODE, dir_fd=folder)) as lock:
                _lock(lock, wait=True)
                yield folder

    def _find_running(self, folder: int) -> list[DevGateway]:
        """The gateways that hold their locks, by port; the files of others are removed."""
        names = sorted(name for name in os.listdir(folder) if name.startswith(RUNNING_PREFIX))
        found: list[DevGateway] = []
        for name in names[:MAX_RUNNING]:
            with self._open_file(folder, name) as file:
                if _lock(file):
                    place = name.removeprefix(RUNNING_PREFIX).removesuffix(RUNNING_SUFFIX)
                    remove_socket(self.path / f"{place}{SOCKET_SUFFIX}")
                    os.unlink(name, dir_fd=folder)
                else:
                    found.append(self._decode(file, name, DevGateway))
        return sorted(found, key=lambda each: each.port)

    def _read_tokens(self, folder: int) -> Mapping[str, str]:
        try:
            with self._open_file(folder, TOKENS_FILE) as file:
                return self._decode(file, TOKENS_FILE, dict[str, str])
        except FileNotFoundError:
            return {}

    @contextmanager
    def _open_file(self, folder: int, name: str) -> Generator[int]:
        """A file of the folder to read, checked."""
        path = self.path / name
        with self._usable(path):
            # Non-blocking: a named pipe in place of the file would be waited for. For writing, too:
            # network file systems lock no other files.
            file = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with _closing(file):
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigurationError(f"{path} is no file; remove it")
            _check_private(status, path, "chmod 600")
            yield file

    def _decode(self, file: int, name: str, kind: type[T]) -> T:
        content = os.read(file, MAX_FILE_BYTES)
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError:
            # Without the decoder's words, which may quote a token.
            raise ConfigurationError(
                f"{self.path / name} is damaged; remove it, or make new tokens:"
                " meup gateway --dev --new-tokens"
            ) from None

    def _replace(self, folder: int, name: str, content: bytes) -> None:
        """Write a file so that a reader finds the old content or the new, never a part."""
        temporary = f"{name}.new"
        os.close(self._create(folder, temporary, content))
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _create(self, folder: int, name: str, content: bytes) -> int:
        """A new file with a content, open; what had its name is removed and never written to."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = os.open(name, flags, FILE_MODE, dir_fd=folder)
        os.write(file, content)
        return file

    @contextmanager
    def _usable(self, path: Path) -> Generator[None]:
        """Say of a folder or file that cannot be used what to do; one that is missing is none."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            why = system_reason(error)
            raise ConfigurationError(
                f"{path} cannot be used ({why}); set {STATE_VARIABLE} to a folder of your own"
            ) from None


@contextmanager
def _closing(file: int) -> Generator[int]:
    try:
        yield file
    finally:
        os.close(file)


def _check_private(status: os.stat_result, path: Path, command: str) -> None:
    """Check that a folder or file is this user's, and no other user may open it."""
    if status.st_uid != os.geteuid():
        raise ConfigurationError(
            f"{path} belongs to another user; set {STATE_VARIABLE} to a folder of your own"
        )
    if status.st_mode & 0o077:
        raise ConfigurationError(
            f"{path} can be opened by other users, and tokens are kept there; run: {command} {path}"
        )


def _lock(file: int, *, wait: bool = False) -> bool:
    """Lock a file as long as it is open; ``False`` if another process has it locked."""
    import fcntl  # not on every system, and this module is loaded for a help text, too

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _file_name(url: str) -> str:
    """The host and port of an address, as a part of a file's name."""
    return "".join(each if each.isalnum() or each in ".-" else "-" for each in url.split("//")[1])
