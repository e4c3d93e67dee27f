"""Programs run as a reader of the docs runs them: as processes, told apart by their output."""

import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.forkserver import Forked, is_forkable, start
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent

# Removed when this process ends.
_STATE = tempfile.TemporaryDirectory(prefix="meup-state-")


def state(whose: str = "programs") -> dict[str, str]:
    """The variable for the folder of `meup gateway --dev`: not among the developer's own.

    One for each process of the tests: a command that finds two such gateways asks which is meant.
    """
    folder = Path(_STATE.name, f"{whose}-{os.getpid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return {"MEUP_STATE_DIR": str(folder)}


class Program:
    """A process whose output is read as it comes."""

    def __init__(self, process: "Forked | subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self.patience = PATIENCE
        self._process = process
        self._told = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(process.stdout, self.stdout)),
            threading.Thread(target=self._read, args=(process.stderr, self.stderr)),
        ]
        for reader in self._readers:
            reader.start()

    def wait_for(self, text: str, count: int = 1) -> list[str]:
        """The first lines, of both streams, that contain a text, once there are so many."""

        def found() -> list[str]:
            return [line for line in [*self.stdout, *self.stderr] if text in line][:count]

        with self._told:
            self._told.wait_for(lambda: len(found()) == count or not self._is_read, PATIENCE)
            lines = found()
        assert len(lines) == count, f"{text!r} is not in the output {count} times:\n{self}"
        return lines

    def wait(self) -> int:
        """The exit code, once the program has ended by itself."""
        code = self._process.wait(self.patience)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def stop(self) -> int:
        """Press Ctrl-C; the exit code."""
        self.interrupt()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # its faulthandler tells where it is
            self.patience = PATIENCE
            self.wait()
            raise AssertionError(f"it does not end:\n{self}") from None

    @property
    def _is_read(self) -> bool:
        return any(reader.is_alive() for reader in self._readers)

    def _read(self, stream: IO[bytes], lines: list[str]) -> None:
        with io.TextIOWrapper(stream, encoding="utf-8") as text:
            for line in text:
                with self._told:
                    lines.append(line.rstrip("\n"))
                    self._told.notify_all()
        with self._told:
            self._told.notify_all()

    def __str__(self) -> str:
        return "\n".join([*self.stdout, *self.stderr])


@contextmanager
def program(
    arguments: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    *,
    cwd: Path = ROOT,
    fork: bool = True,
) -> Generator[Program]:
    """A Python program for the length of a block; what still runs at its end is stopped.

    Args:
        arguments: What follows `python` on the command line.
        environment: What is set beyond this process's own environment.
        cwd: The folder that it runs in.
        fork: Let it begin with its imports done.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("MEUP_")}
    fixed = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "error"}
    everything = {**own, **state(), **fixed, **(environment or {})}
    process: Forked | subprocess.Popen[bytes]
    # pytest wants to load the libraries itself.
    if fork and "pytest" not in arguments and is_forkable(environment or {}):
        process = start([str(each) for each in arguments], everything, cwd=cwd)
    else:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**everything, "PYTHONFAULTHANDLER": "1"},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    running = Program(process)
    try:
        yield running
    finally:
        running.stop()
