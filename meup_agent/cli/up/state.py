"""Files of the gateways that this user runs: where each listens, and where its tokens are.

``meup gateway --dev`` and each ``meup up`` hold a lock on a file of their own, in the folder
``dev`` or ``up`` of the user's state, and write their addresses into it; the Unix socket is beside
it. ``meup gateway --config`` does so in the folder ``gateway``, for ``meup gateway reload`` alone.
The lock goes with the process: after a crash the file stays and the lock does not, so ``meup env``
never hands out the address of a dead gateway, where a stranger may listen by now.

Only the user's own folders (mode 700) and files (mode 600) are used, and no symbolic link is
followed: another user of the machine could have put one there.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from meup_agent.atomic_file import write_new_file
from meup_agent.cli import exit_codes
from meup_agent.cli.failures import Failure
from meup_agent.errors import ConfigurationError, explain_os_error, system_reason
from meup_agent.gateway.auth import new_token, renew_token
from meup_agent.transport.urls import (
    short_path,
    socket_path,
    socket_url,
)

if TYPE_CHECKING:
    from meup_agent.gateway.config import NotifyTarget

# --- local socket ---
# The Unix socket of a gateway, in its user's own folder: where no other user can listen.

SOCKET_SUFFIX: Final = ".sock"
SOCKET_MODE: Final = 0o600


@contextmanager
def bind_socket(path: Path) -> Generator[socket.socket]:
    """Listen at a path for the length of a block, in place of what a killed gateway left there.

    The caller holds the lock that goes with the path, and has checked that its folder is the user's
    alone.

    Raises:
        ConfigurationError: There can be no socket.
    """
    with short_path(str(path)) as short, socket.socket(socket.AF_UNIX) as listening:
        advice = f"{_OTHER_FOLDER} on a local disk"
        with explain_os_error(f"the socket {path} cannot be made", advice):
            path.unlink(missing_ok=True)
            listening.bind(short)
            os.chmod(short, SOCKET_MODE)
            listening.listen()
        try:
            yield listening
        finally:
            with suppress(OSError):
                path.unlink()


# --- files of the gateways that this user runs ---

STATE_VARIABLE: Final = "MEUP_STATE_DIR"  # the folder in place of the system's for programs' state

_OTHER_FOLDER: Final = f"; set {STATE_VARIABLE} to a folder of your own"
TOKEN_SUFFIX: Final = ".token"
LOCK_SUFFIX: Final = ".lock"
CONTROL_SUFFIX: Final = ".control"

FOLDER_LOCK: Final = "lock"
"""The file whose lock keeps other commands from a folder: not every network locks folders."""

PINS_NAME: Final = "meup-tools.lock"
"""Name of the file of accepted tools."""

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
MAX_FILE_BYTES: Final = 65_536  # bytes of a file that is read: ours have less than 2,000

MAX_NAME_BYTES: Final = 200
"""Bytes of a file's name before its ending; file systems take 255."""

MAX_RUNNING: Final = 100
"""Locks of a folder that are looked at."""


class Owner(msgspec.Struct):
    """A gateway that runs, or is starting and has no address yet."""

    process: int
    file: str = ""  # that `meup up` runs; empty: it is one of `meup gateway --dev`
    folder: str = ""
    url: str = ""
    socket: str = ""
    control: str = ""  # the path of the socket for `meup gateway reload`; empty: it has none
    http: str | None = None
    space: str = ""
    # Participant → the file of its token.
    token_files: dict[str, str] = {}

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def check_name(self, name: str | None) -> str:
        """The name of a participant whose token is known.

        Raises:
            ConfigurationError: It is none, or none is given.
        """
        names = ", ".join(self.token_files)
        if name is None:
            raise ConfigurationError(f"which participant? give one of: {names}")
        if name not in self.token_files:
            raise ConfigurationError(
                f"the gateway at {self.url} has no participant {name!r}; give one of: {names}"
            )
        return name

    def token(self, participant: str) -> str:
        """The token of one of those whose files are known."""
        return _read_token(Path(self.token_files[participant]))

    def __str__(self) -> str:
        where = f" at {self.url}" if self.url else ""
        what = f"meup up already runs {self.file}" if self.file else "meup gateway --dev runs"
        return f"{what}{where} (process {self.process})"


def dev_folder() -> Path:
    """The folder of ``meup gateway --dev``, with the tokens of all of them."""
    return _state_folder("dev")


def up_folder() -> Path:
    """The folder of ``meup up``, and of the tokens of ``meup up --servers``."""
    return _state_folder("up")


def gateway_folder() -> Path:
    """The folder of the locks of ``meup gateway --config``."""
    return _state_folder("gateway")


def guard_folder() -> Path:
    """The folder of what ``meup guard`` has set up."""
    return _state_folder("guard")


def sign_in_folder() -> Path:
    """The folder of what MCP servers gave for a sign-in."""
    return _state_folder("sign-in")


def older_folder() -> Path:
    """The folder of which programs of MCP servers are older ones."""
    return _state_folder("older-servers")


def _state_folder(name: str) -> Path:
    """A folder in MEUP_STATE_DIR, or where the system keeps programs' state."""
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        return Path(chosen).absolute() / name
    from platformdirs import user_state_path

    return user_state_path("meup", appauthor=False) / name


def digest_of(file: Path) -> str:
    """A name for a file's place, which any file system takes."""
    return _digest(os.fsencode(file.resolve()))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


class GatewayLock:
    """The lock of a gateway; others find its owner."""

    def __init__(self, file: IO[bytes], owner: Owner, socket: Path) -> None:
        self._file = file
        self._owner = owner
        self.socket = socket
        """The path of the gateway's Unix socket."""
        self.control = socket.with_suffix(CONTROL_SUFFIX)
        """The path of the socket for ``meup gateway reload``."""
        self._write()

    def publish(
        self, url: str, http: str | None, space: str, token_files: Mapping[str, Path]
    ) -> None:
        """Let others know the address, and where the tokens are that they may use."""
        owner = self._owner
        owner.url, owner.http, owner.space = url, http, space
        owner.socket = socket_url(str(self.socket))
        owner.token_files = {name: str(path.absolute()) for name, path in token_files.items()}
        self._write()

    def take_commands(self, url: str) -> None:
        """Let ``meup gateway reload`` know where the gateway takes it, and its address."""
        self._owner.url = self._owner.url or url
        self._owner.control = str(self.control)
        self._write()

    def _write(self) -> None:
        content = msgspec.json.encode(self._owner)
        os.pwrite(self._file.fileno(), content, 0)
        os.ftruncate(self._file.fileno(), len(content))


def dev_lock(url: str) -> AbstractContextManager[GatewayLock]:
    """Hold the lock of a gateway of ``--dev`` for the length of a block.

    Raises:
        ConfigurationError: Another one has its address.
    """
    folder = dev_folder()
    if url in [each.url for each in list_running(folder)]:
        raise ConfigurationError(
            f"a gateway of yours runs at {url}, perhaps in a container; choose another port, or"
            f" set {STATE_VARIABLE} to another folder"
        )
    place = url.split("//")[1]
    name = "".join(each if each.isalnum() or each in ".-" else "-" for each in place)
    return _hold_lock(folder, name, Owner(os.getpid()))


def up_lock(file: Path) -> AbstractContextManager[GatewayLock]:
    """Hold the lock on a file that ``meup up`` runs for the length of a block.

    Its socket is the same at each start, whatever the port.

    Raises:
        Failure: Another ``meup up`` runs it; the sentence says which, and where.
    """
    owner = Owner(os.getpid(), str(file), str(file.resolve().parent))
    return _hold_lock(up_folder(), digest_of(file), owner)


def gateway_lock(file: Path, url: str) -> AbstractContextManager[GatewayLock]:
    """Hold the lock of a gateway that serves a file for the length of a block.

    Raises:
        Failure: Another process has it.
        ConfigurationError: There can be none.
    """
    place = _digest(f"{file.resolve()} {url}".encode(errors="surrogateescape"))
    owner = Owner(os.getpid(), folder=str(file.resolve().parent))
    return _hold_lock(gateway_folder(), place, owner)


@contextmanager
def _hold_lock(folder: Path, name: str, owner: Owner) -> Generator[GatewayLock]:
    make_folder(folder)
    path = folder / f"{name}{LOCK_SUFFIX}"
    with ExitStack() as held:
        with _alone_in(folder):
            file = held.enter_context(_open_to_lock(path, os.O_CREAT))
            if not _lock(file):
                said = _read_owner(file) or owner
                raise Failure(f"{said}; stop it with Ctrl-C there, or use it")
            with explain_os_error(f"{path} cannot be written"):
                lock = GatewayLock(file, owner, folder / f"{name}{SOCKET_SUFFIX}")
        try:
            yield lock
        finally:
            # The user may have removed the folder meanwhile; then nothing is left to remove.
            with suppress(ConfigurationError, OSError), _alone_in(folder):
                path.unlink()


def list_running(folder: Path) -> list[Owner]:
    """The gateways that run or are starting, by one of the two folders.

    Raises:
        ConfigurationError: The folder is not this user's alone.
    """
    if not os.path.lexists(folder):
        return []
    make_folder(folder)
    with _alone_in(folder):
        return _list_owners(folder)


def running_gateways() -> list[Owner]:
    """The gateways of this user with tokens to be had: of ``--dev``, and of ``meup up``."""
    found = [*list_running(dev_folder()), *list_running(up_folder())]
    named = (each for each in found if each.url and each.token_files)
    return sorted(named, key=lambda each: each.port)


def find_gateway(port: int | None) -> Owner:
    """The gateway of this user that is meant, by its port where several run.

    Raises:
        Failure: None runs there.
        ConfigurationError: Several run.
    """
    return _choose(
        running_gateways(),
        port,
        "no gateway of meup up or meup gateway --dev runs",
        "here; start one in another terminal, for example: meup up --servers mcp.json",
    )


def find_reloadable(port: int | None) -> Owner:
    """The gateway of this user that ``meup gateway reload`` is to reach, likewise."""
    found = [*list_running(gateway_folder()), *list_running(up_folder())]
    return _choose(
        sorted((each for each in found if each.control), key=lambda each: each.port),
        port,
        "no gateway of meup gateway --config or meup up runs",
        "here, under this user; one reads its files as it starts: meup up --servers mcp.json, or"
        " meup gateway --config space.yaml",
    )


def _choose(running: list[Owner], port: int | None, none: str, start: str) -> Owner:
    found = [each for each in running if port in (None, each.port)]
    ports = ", ".join(str(each.port) for each in running)
    if not found:
        where = f"at port {port}; give one of: {ports}" if running else start
        raise Failure(f"{none} {where}", exit_codes.NO_CONNECTION)
    if len(found) > 1:
        raise ConfigurationError(f"several gateways run; give --port with one of: {ports}")
    return found[0]


def _list_owners(folder: Path) -> list[Owner]:
    """The owners that hold their locks; what the others have left is removed."""
    found: list[Owner] = []
    for path in sorted(folder.glob(f"*{LOCK_SUFFIX}"))[:MAX_RUNNING]:
        with suppress(ConfigurationError), _open_to_lock(path) as file:
            if _lock(file):
                for left in (SOCKET_SUFFIX, CONTROL_SUFFIX):
                    path.with_suffix(left).unlink(missing_ok=True)
                path.unlink()
            elif owner := _read_owner(file):
                found.append(owner)
    return found


@contextmanager
def _alone_in(folder: Path) -> Generator[None]:
    """Keep other commands from a folder of locks for the length of a block."""
    with _open_to_lock(folder / FOLDER_LOCK, os.O_CREAT) as file:
        _lock(file, wait=True)
        yield


@contextmanager
def guard_lock() -> Generator[None]:
    """Keep another `meup guard` from the settings and the record for the length of a block.

    Raises:
        ConfigurationError: One is at work.
    """
    make_folder(guard_folder())
    with _open_to_lock(guard_folder() / FOLDER_LOCK, os.O_CREAT) as file:
        if not _lock(file):
            raise ConfigurationError("another meup guard is at work; run this when it has ended")
        yield


@contextmanager
def _open_to_lock(path: Path, flags: int = 0) -> Generator[IO[bytes]]:
    # For writing, too: network file systems lock no other files. Non-blocking: a named pipe in
    # place of the file would be waited for.
    flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    with ExitStack() as held:
        with explain_os_error(f"{path} cannot be used"):
            file = held.enter_context(os.fdopen(os.open(path, flags, FILE_MODE), "r+b", 0))
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"{path} is not a file; remove it")
        _check_private(status, path, "chmod 600")
        yield file


def _lock(file: IO[bytes], *, wait: bool = False) -> bool:
    """Lock a file as long as it is open; ``False`` if another process has it locked."""
    import fcntl  # not on every system, and this module is loaded for a help text, too

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _read_owner(file: IO[bytes]) -> Owner | None:
    try:
        return msgspec.json.decode(os.pread(file.fileno(), MAX_FILE_BYTES, 0), type=Owner)
    except (OSError, msgspec.MsgspecError):
        return None


# --- journals ---

JOURNAL_SUFFIX: Final = ".journal.db"

MAX_LISTED: Final = 8
"""Journals that a sentence names."""


def journal_path(file: Path) -> Path:
    """The journal that ``meup up`` keeps for a file that names none."""
    return up_folder() / f"{digest_of(file)}{JOURNAL_SUFFIX}"


def journal_of_ended(address: str) -> Path | None:
    """The journal that the ``meup up`` has kept whose socket this address was, and is gone."""
    path = socket_path(address)
    if path is None or os.path.exists(path) or Path(path).parent != up_folder():
        return None
    kept = Path(path).with_suffix(JOURNAL_SUFFIX)
    return kept if kept.is_file() else None


def find_journal() -> Path | None:
    """The journal that ``meup up`` has kept: of the space's file here, else the only one.

    Of several it is that of the only ``meup up`` that runs.

    Raises:
        ConfigurationError: There are several, and none is of this folder or of what runs.
    """
    from meup_agent.gateway.config_file import find_space_file

    here = find_space_file()
    if here is not None and journal_path(here).is_file():
        return journal_path(here)
    if not up_folder().is_dir():
        return None
    written = [(each.stat().st_mtime, each) for each in up_folder().glob(f"*{JOURNAL_SUFFIX}")]
    if len(written) > 1:
        match [journal_path(Path(each.folder, each.file)) for each in list_running(up_folder())]:
            case [path] if path.is_file():
                return path
            case _:
                pass
        newest = [str(each) for _, each in sorted(written, reverse=True)[:MAX_LISTED]]
        raise ConfigurationError(
            "`meup up` has kept several journals; give --journal with one of them, the newest"
            f" first: {', '.join(newest)}"
        )
    return written[0][1] if written else None


# --- tokens ---


def keep_dev_tokens(names: Iterable[str], *, renew: bool = False) -> dict[str, str]:
    """The token of each participant of ``meup gateway --dev``, which is kept over a restart.

    Raises:
        ConfigurationError: They cannot be kept, or a gateway uses those that are to be renewed.
    """
    folder = dev_folder()
    make_folder(folder)
    with _alone_in(folder):
        if renew and (running := _list_owners(folder)):
            raise ConfigurationError(
                f"the gateway at {running[0].url} uses the tokens; stop it, then make new ones"
            )
        return {name: keep_token(token_path(folder, name), renew=renew) for name in names}


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
    with explain_os_error(f"{path} cannot be used"), suppress(FileExistsError):
        token = new_token()
        write_new_file(path, f"{token}\n".encode(), FILE_MODE)
        return token
    return _read_token(path)


def _read_token(path: Path) -> str:
    # Non-blocking: a named pipe in place of the file would be waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with explain_os_error(f"{path} cannot be used"), os.fdopen(os.open(path, flags), "rb") as held:
        status = os.fstat(held.fileno())
        words = held.read(MAX_FILE_BYTES).split() if stat.S_ISREG(status.st_mode) else []
    if len(words) != 1 or not words[0].isascii():
        raise ConfigurationError(f"{path} must hold a token and nothing else; remove it")
    _check_private(status, path, "chmod 600")
    return words[0].decode()


# --- services that are told what waits ---

PUSH: Final = "push"
"""The word for browsers that subscribe in the console."""

MAX_NOTIFY_BYTES: Final = 65_536
"""Bytes of a file of services."""


def notify_targets(
    given: Iterable[str], port: int, *, allow_private: bool
) -> Iterator[NotifyTarget]:
    """The services of a command line: each an address, ``push``, or a file with one a line.

    What signs a webhook is kept in a file of its own, with which it is the same at each start; so
    are the browsers of the gateway at a port.

    Raises:
        ConfigurationError: A file cannot be read.
    """
    from meup_agent.gateway.config import NotifyTarget

    folder = _state_folder("notify")
    for each in given:
        for url in [each] if "://" in each or each == PUSH else _read_lines(Path(each)):
            kept = None
            if url == PUSH:
                # A browser subscribes by the address of the gateway.
                kept = folder / f"push-{port}.json"
            elif url.startswith(("https://", "http://")):
                kept = folder / f"{_digest(url.encode())}.secret"
            yield NotifyTarget(url=url, secret_file=kept, allow_private=allow_private)


def _read_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_NOTIFY_BYTES + 1)
        lines = [each.strip() for each in content.decode().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = system_reason(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(
            f"--notify takes an address such as https://…, or a file of them;"
            f" {path} cannot be read ({why})"
        ) from None
    return [each for each in lines if each and not each.startswith("#")]


def make_folder(path: Path) -> None:
    """Make a folder for this user alone, if it is not there."""
    with explain_os_error(f"{path} cannot be used", _OTHER_FOLDER):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=FOLDER_MODE)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        status = os.fstat(folder)
        os.close(folder)
    _check_private(status, path, "chmod 700")


def _check_private(status: os.stat_result, path: Path, command: str) -> None:
    """Check that a folder or file is this user's, and that no other user can open it."""
    if status.st_uid != os.geteuid():
        raise ConfigurationError(f"{path} belongs to another user{_OTHER_FOLDER}")
    if status.st_mode & 0o077:
        raise ConfigurationError(
            f"{path} can be opened by other users, and tokens are kept there; run: {command} {path}"
        )
