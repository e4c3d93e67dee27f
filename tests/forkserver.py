"""Processes forked from one that has done the imports: real ones, most of a second sooner.

On two cores the suite takes 154 to 169 s with them, and 246 to 249 s where each program starts by
itself; nothing of pytest or its plugins starts programs.

Of what a Python program does before its first line, nearly all are the imports of pydantic, rich,
anyio and the like, and of the package. A server does these once, for all processes of pytest; a
program begins as its fork, and ends, is killed and exits as any other. Programs to which the
environment tells how Python itself begins are started as usual: see :func:`is_forkable`. So are
those of the tests that look at what is imported, and when. What another program starts, such as the
bridge its MCP server or `meup up` its reviewer, is asked for by a launcher: see :func:`launched`.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import ModuleType
from typing import IO, Any

ROOT = Path(__file__).parent.parent

LIBRARIES = (
    "acp",
    *("anyio", "anyio.from_thread", "anyio.to_thread", "anyio._backends._asyncio"),
    *("anyio._backends._trio", "asyncio"),
    *("httpx", "jsonschema", "mcp", "mcp.client.sse", "mcp.client.stdio"),
    *(
        "mcp.client.streamable_http",
        "mcp.server.lowlevel",
        "mcp.server.mcpserver",
        "mcp.server.sse",
    ),
    *("mcp.server.stdio", "mcp.server.streamable_http_manager"),
    *("msgspec", "picows", "platformdirs", "prometheus_client", "pydantic"),
    *("re2", "referencing", "rfc8785", "rich.console", "rich.live"),
    *("rich.markdown", "rich.table", "starlette.applications", "starlette.responses"),
    *("starlette.routing", "tenacity", "trio", "typer", "typer.rich_utils", "uvicorn", "uvloop"),
    *("websockets.asyncio.client", "websockets.exceptions", "yaml"),
)

LEFT_OUT = ("meup_agent.adapters.", "meup_agent.transport.websocket_trio")
"""Beginnings of the names of modules that need what is not here, or that few programs need."""

LAUNCHER = Path(__file__).with_name("launcher.py")

FOR_THE_SCREEN = ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TERMINAL_WIDTH", "_TYPER")
"""Beginnings of the names of variables that typer looks at when it is imported."""

SHARED = "MEUP_FORK_SERVER_OF_TESTS"
"""Environment variable with the address of the server that another process has started."""

FAILED = "failed"
"""File beside the server's socket that says which module it could not import."""

_NUMBER = struct.Struct("!i")


def is_forkable(variables: Mapping[str, str]) -> bool:
    """True for a program that begins as a fork does, though it sets these variables."""
    early = (*FOR_THE_SCREEN, "LANG", "LC_", "PYTHON")
    return hasattr(os, "fork") and not any(
        name.startswith(early) and name != "PYTHONIOENCODING" for name in variables
    )


class Forked:
    """A running program; its attributes are those of :class:`subprocess.Popen`."""

    def __init__(self, told: socket.socket, stdout: IO[bytes] | None, stderr: IO[bytes] | None):
        self._told = told
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self.pid = self._read()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ready, _, _ = select.select([self._told], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired("a forked program", timeout or 0)
            self.returncode = self._read()
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        # It is reaped only when its end has been told, so this is no other process's id.
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read(self) -> int:
        data = b""
        with contextlib.suppress(ConnectionError):
            data = self._told.recv(_NUMBER.size, socket.MSG_WAITALL)
        if len(data) < _NUMBER.size:
            raise AssertionError(_server.why_it_ended())
        (number,) = _NUMBER.unpack(data)
        return int(number)


class _Server:
    """The server of all processes of pytest, or of this one, started with its first program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._address = ""

    def share(self) -> None:
        """Let the processes that this one starts use its server."""
        os.environ[SHARED] = self.address()

    def address(self) -> str:
        """The path of the socket at which it is asked."""
        with self._lock:
            if not self._address:
                self._address = os.environ.get(SHARED) or self._started()
        return self._address

    def ask(self, asked: bytes, descriptors: Sequence[int]) -> socket.socket:
        """Ask for a program; the connection over which it is told of."""
        told = socket.socket(socket.AF_UNIX)
        try:
            told.connect(self.address())
            socket.send_fds(told, [_NUMBER.pack(len(asked))], descriptors)
            told.sendall(asked)
        except ConnectionError as gone:
            told.close()
            raise AssertionError(self.why_it_ended()) from gone
        return told

    def why_it_ended(self) -> str:
        """The module that could not be imported, if that ended the server."""
        with contextlib.suppress(OSError):
            return Path(self.address()).with_name(FAILED).read_text(encoding="utf-8")
        return "the server that forks programs has ended"

    def _started(self) -> str:
        ours, theirs = socket.socketpair()
        own = {
            name: each for name, each in os.environ.items() if not name.startswith(FOR_THE_SCREEN)
        }
        folder = tempfile.mkdtemp(prefix="meup-fork-")
        atexit.register(shutil.rmtree, folder)
        address = str(Path(folder) / "socket")
        for name in ("python", "meup"):
            path = Path(folder, name)
            path.write_text(f"#!{sys.executable} -IS\n{LAUNCHER.read_text()}")
            path.chmod(0o700)
        with theirs, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            numbers = [theirs.fileno(), listener.fileno()]
            process = subprocess.Popen(
                [sys.executable, "-W", "error", __file__, *map(str, numbers)],
                env={**own, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
            )
        atexit.register(process.wait)
        atexit.register(ours.close)  # which ends it; runs before the wait
        return address


_server = _Server()
share = _server.share


def start(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    cwd: Path | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Forked:
    """Start what follows `python` on a command line: `-m` and a module, `-c` and code, or a script.

    Args:
        arguments: The module, code or script, and its arguments.
        environment: All of the program's environment.
        cwd: The folder that it runs in; this process's own by default.
        stdin: A descriptor to read from; nothing by default.
        stdout: A descriptor to write to; a new pipe by default.
        stderr: The same.
    """
    asked = {
        "arguments": [str(each) for each in arguments],
        "environment": dict(environment),
        "cwd": str(cwd or Path.cwd()),
    }
    with contextlib.ExitStack() as theirs:

        def pipe() -> tuple[IO[bytes], int]:
            reading, writing = os.pipe()
            theirs.callback(os.close, writing)
            return open(reading, "rb"), writing

        def null() -> int:
            found = os.open(os.devnull, os.O_RDONLY)
            theirs.callback(os.close, found)
            return found

        out, stdout = (None, stdout) if stdout is not None else pipe()
        err, stderr = (None, stderr) if stderr is not None else pipe()
        streams = [null() if stdin is None else stdin, stdout, stderr]
        told = _server.ask(json.dumps(asked).encode(), streams)
    return Forked(told, out, err)


def launched(*arguments: str) -> list[str]:
    """The command that another program may start in place of `python` with these arguments.

    The launcher is told the end of the program, passes on what asks it to end, and its own end,
    however it comes, ends the program.
    """
    if not hasattr(os, "pidfd_open"):
        return [sys.executable, *arguments]
    return [sys.executable, "-IS", str(LAUNCHER), _server.address(), *arguments]


# --- in the server ---


def serve(living: socket.socket, listener: socket.socket) -> dict[str, Any]:
    """Fork for each request; returns, in a fork, the request that it is for."""
    gc.disable()  # what is imported stays
    folder = Path(listener.getsockname()).parent
    _import_all(folder / FAILED)
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C of a terminal is for pytest
    ended, waking = socket.socketpair()
    waking.setblocking(False)
    ended.setblocking(False)
    signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    askers: dict[int, socket.socket] = {}
    """By the id of a running program: who has asked for it, and is told its end."""
    while True:
        by_socket = {asker: pid for pid, asker in askers.items()}
        ready, _, _ = select.select([living, listener, ended, *by_socket], [], [])
        if living in ready:  # who has started this has ended
            for pid in askers:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        for asker in by_socket.keys() & set(ready):  # who asked has gone
            os.kill(by_socket[asker], signal.SIGKILL)
            askers.pop(by_socket[asker]).close()
        if ended in ready:
            with contextlib.suppress(BlockingIOError):
                ended.recv(1024)
            _tell_ends(askers)
        if listener not in ready:
            continue
        asker, _ = listener.accept()
        head, descriptors, _, _ = socket.recv_fds(asker, _NUMBER.size, 3)
        if not head:
            asker.close()
            continue
        (size,) = _NUMBER.unpack(head)
        asked: dict[str, Any] = json.loads(asker.recv(size, socket.MSG_WAITALL))
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (living, listener, ended, waking, asker, *askers.values()):
                each.close()
            _begin(asked, descriptors)
            sys.executable = str(folder / "python")
            return asked
        for number in descriptors:
            os.close(number)
        askers[pid] = asker
        with contextlib.suppress(OSError):  # a launcher that was killed
            asker.sendall(_NUMBER.pack(pid))


def _tell_ends(askers: dict[int, socket.socket]) -> None:
    """Tell how programs have ended, and reap each only then: before, its id is no other's."""
    with contextlib.suppress(ChildProcessError):  # none is left
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            if asker := askers.pop(ended.si_pid, None):
                with contextlib.suppress(OSError):  # pytest itself may have gone
                    asker.sendall(_NUMBER.pack(code))
                asker.close()
            os.waitpid(ended.si_pid, 0)


def _import(name: str, failed: Path) -> ModuleType:
    """Import a module; if that fails, the server ends, and tells those who ask for programs why."""
    try:
        return importlib.import_module(name)
    except BaseException as error:
        failed.write_text(f"no program can be forked: cannot import {name}: {error!r}")
        raise


def _import_all(failed: Path) -> None:
    """Import what programs need; the package is that of a program's own PYTHONPATH."""
    sys.path[0] = str(ROOT)  # this folder, in which `mcp` is another
    modules: set[str] = set()
    atexit.register(_take_apart, modules)  # the first, which runs last
    for name in LIBRARIES:
        if importlib.util.find_spec(name.partition(".")[0]):  # some are the tests' own
            _import(name, failed)
    public = _import("meup_agent", failed)
    for name in public.__all__:
        getattr(public, name)
    for module in pkgutil.walk_packages(public.__path__, f"{public.__name__}."):
        if not module.name.startswith(LEFT_OUT) and not module.name.endswith("__main__"):
            _import(module.name, failed)
    # Nor does each gateway build the forms of its file, or compile the pages of its console.
    config = sys.modules["meup_agent.gateway.config"]
    for form in (config.OurFile, config.ReferenceFile, config.Sections):
        sys.modules["meup_agent.gateway.config_file"].form_of(form)
    pages = sys.modules["meup_agent.gateway.console.templating"].make_environment()
    for name in pages.list_templates():
        pages.get_template(name)
    modules.update(sys.modules)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(gc.get_objects()))  # they outlive every fork


def _take_apart(shared: Set[str]) -> None:
    """Take apart, when a program ends, what is its own, and end it.

    Python would take all apart, and so copy the memory that a fork shares with the server: nine
    tenths of what a program cost that does nothing. It does so with all but the modules where the
    program ends by an exception, or cannot write what is left to write.
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        _exit_code.clear()
    if not _exit_code:
        for name in shared:
            sys.modules.pop(name, None)
        return
    own = list[ModuleType]()
    while next(reversed(sys.modules)) not in shared:  # to look at all of them copies, too
        own.append(sys.modules.popitem()[1])
    gc.collect()
    while own:
        if isinstance(module := own.pop(0), ModuleType):
            vars(module).clear()
    gc.collect()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(_exit_code[0])


_exit_code: list[int] = []
"""In a program, the code with which it is about to end."""


def _begin(asked: dict[str, Any], streams: Sequence[int]) -> None:
    """Give a fork what a program begins with."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    _open_streams()


def _open_streams() -> None:
    """Make what Python makes of the first three descriptors when it begins."""
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    options: dict[str, Any] = {"encoding": encoding, "closefd": False}
    sys.stdin = open(0, **options)  # noqa: SIM115 - they are open until the end
    sys.stdout = open(1, "w", **options)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", **options)  # noqa: SIM115
    if "PYTHONUNBUFFERED" in os.environ:
        sys.stdout.reconfigure(line_buffering=True)
    # One that does not end is asked where it is: see tests/programs.py.
    faulthandler.enable()


def run(asked: dict[str, Any]) -> None:
    """Run a program in this process, as the command line would."""
    first, *rest = asked["arguments"]
    if first == "-W":
        warnings.simplefilter(rest[0])
        first, *rest = rest[1:]
    if first == "-m":
        sys.path[0] = asked["cwd"]
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        code, *sys.argv[1:] = rest
        sys.argv[0] = first
        sys.path[0] = ""
        main: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        exec(compile(code, "<string>", "exec"), main)
    else:
        sys.path[0] = str(Path(first).absolute().parent)
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def _run_to_its_end(asked: dict[str, Any]) -> None:
    """Run a program, and note the code with which it ends."""
    try:
        run(asked)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            _exit_code.append((end.code or 0) & 0xFF)
        raise
    _exit_code.append(0)


if __name__ == "__main__":
    _run_to_its_end(serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:])))
