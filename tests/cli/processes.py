"""`meup` as a user runs it: real processes, real signals, real pipes."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cli.commands import exit_codes
from tests.forkserver import Forked, is_forkable, start
from tests.patience import PATIENCE
from tests.programs import ROOT, state

PYTHON = (sys.executable, "-W", "error")
"""The command line of programs that may be forked; with other options they start as usual."""

COMMAND = (*PYTHON, "-m", "meup_agent.cli")

RUN_MEUP = "runpy.run_module('meup_agent.cli', run_name='__main__')"
DETACHED = (sys.executable, "-c", f"import os, runpy; os.setsid(); {RUN_MEUP}")
"""Without a controlling terminal, as a service is."""

IN_TERMINAL = (
    sys.executable,
    "-c",
    "import fcntl, os, runpy, termios; os.setsid();"
    f" fcntl.ioctl(os.openpty()[1], termios.TIOCSCTTY, 0); {RUN_MEUP}",
)
"""With a terminal of its own, which tells by SIGHUP that it is closed."""

FITS_A_PIPE = 8_000
"""Characters that a pipe takes whole, before anything reads it."""


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """These variables in an environment without the developer's own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MEUP_")}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        kept.pop(name, None)
    return {
        **kept,
        **state(),
        "PYTHONPATH": str(ROOT),
        "PYTHONIOENCODING": "utf-8",
        "PYTHONFAULTHANDLER": "1",
        **(variables or {}),
    }


def meup(
    *arguments: str,
    command: Iterable[str] = COMMAND,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    given: str | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run `meup` to its end, with a text as its standard input."""
    if _is_forked(command, variables) and len(given or "") <= FITS_A_PIPE:
        with running(
            *arguments, command=command, cwd=cwd, variables=variables, given=given or ""
        ) as process:
            code = process.end()
        out, err = (each.replace("\r\n", "\n") for each in (process.out, process.err))
        return subprocess.CompletedProcess(arguments, code, out, err)
    return subprocess.run(
        [*command, *arguments],
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
        cwd=cwd,
        env=environment(variables),
    )


def _is_forked(command: Iterable[str], variables: Mapping[str, str] | None) -> bool:
    """True for a program that begins with its imports done."""
    return [*command][: len(PYTHON)] == [*PYTHON] and is_forkable(variables or {})


class Running:
    """A process that runs, with its output so far."""

    def __init__(self, process: "Forked | subprocess.Popen[bytes]") -> None:
        self.process = process
        self.patience = PATIENCE
        self._is_late = False
        self.out = ""
        self.err = ""

    def until(self, wanted: str, *, stream: str = "out", after: str = "", count: int = 1) -> str:
        """Read until a text came so often, after another; all of that stream so far."""
        while not (after in getattr(self, stream) and self._count(wanted, stream, after) >= count):
            if not self._read():
                raise AssertionError(f"{wanted!r} did not come; {self}")
        return str(getattr(self, stream))

    def _count(self, wanted: str, stream: str, after: str) -> int:
        said: str = getattr(self, stream)
        return said[said.index(after) + len(after) :].count(wanted)

    def end(self, *signals: int) -> int:
        """Send signals, and wait for the end; the exit code."""
        for number in signals:
            self.process.send_signal(number)
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        """Read what there is, or what comes next; `False` at the end of both streams."""
        streams = [each for each in (self.process.stdout, self.process.stderr) if each is not None]
        open_streams = [each for each in streams if not each.closed]
        if not open_streams:
            return False
        patience = PATIENCE if self._is_late else self.patience
        ready, _, _ = select.select(open_streams, [], [], patience)
        if not ready:
            if not self._is_late:
                self._is_late = True
                self.process.send_signal(signal.SIGABRT)  # its faulthandler tells where it is
                while self._read():
                    pass
            raise AssertionError(f"nothing came for {patience:g} s; {self}")
        for each in ready:
            data = os.read(each.fileno(), 65536)
            if not data:
                each.close()
            elif each is self.process.stdout:
                self.out += data.decode()
            else:
                self.err += data.decode()
        return True

    def __str__(self) -> str:
        return f"output: {self.out!r}, errors: {self.err!r}, code: {self.process.poll()}"


@contextmanager
def running(
    *arguments: str,
    command: Iterable[str] = COMMAND,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    given: str = "",
) -> Generator[Running]:
    """Run `meup` for the length of a block; what is left of it is killed at the end."""
    process: Forked | subprocess.Popen[bytes]
    if _is_forked(command, variables):
        process = _forked([*command, *arguments][1:], environment(variables), cwd, given)
    else:
        assert not given
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=environment(variables),
        )
    try:
        yield Running(process)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def up(
    folder: Path, state: dict[str, str], *arguments: str, command: Iterable[str] = COMMAND
) -> Generator[Running]:
    """`meup up` in a folder for the length of a block, ended by Ctrl-C unless it has ended."""
    with running(
        "up", "--port", "0", *arguments, command=command, cwd=folder, variables=state
    ) as process:
        yield process
        if process.process.poll() is None:
            assert process.end(INTERRUPT) == exit_codes.OK


def _forked(
    arguments: list[str], variables: Mapping[str, str], cwd: Path | None, given: str
) -> Forked:
    if not given:
        return start(arguments, variables, cwd=cwd)
    reading, writing = os.pipe()
    try:
        os.write(writing, given.encode())
        os.close(writing)
        return start(arguments, variables, cwd=cwd, stdin=reading)
    finally:
        os.close(reading)


def is_there(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended, whoever is to reap it.
    status = Path(f"/proc/{number}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


INTERRUPT = signal.SIGINT
TERMINATE = signal.SIGTERM
