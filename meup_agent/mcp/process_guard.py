"""Program between us and a program that we start: it ends that one, however we end.

A file of its own, run by its path: it needs nothing but the standard library, and starts in a fifth
of a server's time.

    process_guard.py copy BYTES COMMAND...
    process_guard.py report DESCRIPTOR COMMAND...

We hold the writing end of its standard input, which closes when we end, also where we are killed.
Then the program is told to end, and is killed if it does not. The guard does not read
it, so it may be the input of an MCP server. As the subreaper of all that the program starts, it
gets hold of what left the program's process group as well. Linux alone has that: elsewhere what
leaves its group stays, and on Windows a server is told by the end of its input and nothing else.

SIGINT and SIGTERM are passed on to the program's group, SIGUSR1 kills it at once.

With ``copy``, for MCP servers, it copies what the server writes, and stops a server whose message
is longer than a limit: the transport of the SDK keeps a line until it ends. The server has ended
when its output has, too. With ``report`` it writes lines to a descriptor: ``started`` and the
process, ``failed`` and the error's number, ``ended`` and the status. Then it stays for what the
program has left running, as long as we do.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

CHUNK = 65_536
"""Bytes that are copied at once: what a pipe holds."""

END_SECONDS = 5.0
"""A program that was told to end has this long, and a server that has closed its output."""

ALONE_SECONDS = 3.0
"""A server whose input has ended has this long until it is told to end; if we are still there, we
do that sooner."""

STOP_SECONDS = 1.0
"""A server that was stopped for what it wrote has this long to end."""

TERM_SECONDS = 1.0
"""Wait for processes that the program left running to end by SIGTERM, before they are killed."""

KILL_SECONDS = 3.0
"""Seconds after which what cannot be killed is left: the system may hold it, as for a lost disk."""

LOOK_SECONDS = 0.02
"""Seconds between two looks whether what was killed has ended."""

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


class Guard:
    """The guard of a program, on a POSIX system."""

    def __init__(
        self, command: list[str], limit: int | None = None, report: int | None = None
    ) -> None:
        self._command = command
        self._limit = limit
        self._report = report
        self._program: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self._deadline: float | None = None
        self._is_told = False  # to end, by us because it was left alone
        self._is_ending = self._is_killing = False
        self._line = 0  # bytes of the server's line so far
        self._woken, wake = os.pipe()
        for descriptor in (self._woken, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._poll.register(0, 0)  # which tells nothing but that its other end is closed

    def run(self) -> int:
        """Run the program until all of it has ended; its exit status, as a shell has it."""
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGUSR1, lambda _number, _frame: self._kill())
        for number in (signal.SIGINT, signal.SIGTERM):
            # Where it is ignored, the program is to ignore it, too.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, _: self._pass_on(number))
        become_subreaper()
        if not self._start():
            return 127
        while not self._has_ended():
            self._wait()
        return self._end()

    def _start(self) -> bool:
        copies = self._limit is not None
        try:
            # A group of its own, so that signals for the guard are the guard's to pass on.
            self._program = subprocess.Popen(
                self._command,
                stdin=None if copies else subprocess.DEVNULL,
                stdout=subprocess.PIPE if copies else None,
                start_new_session=True,
            )
        except OSError as error:
            if copies:
                say(f"cannot start {self._command[0]!r}: {error.strerror}\n")
            self._tell(f"failed {error.errno}")
            return False
        self._tell(f"started {self._program.pid}")
        if self._program.stdout is not None:
            self._poll.register(self._program.stdout, select.POLLIN)
        return True

    def _tell(self, line: str) -> None:
        if self._report is not None:
            with suppress(OSError):  # we do not read it any more
                os.write(self._report, f"{line}\n".encode())

    def _wait(self) -> None:
        """Wait for what happens next, and see to it."""
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if left is not None and left <= 0:
            self._tell_to_end()
            return
        for descriptor, _ in self._poll.poll(None if left is None else left * 1_000 + 1):
            if descriptor == 0:
                self._poll.unregister(0)
                self._deadline = time.monotonic() + (ALONE_SECONDS if self._is_open else 0)
            elif descriptor == self._woken:
                os.read(self._woken, CHUNK)
                self._reap_orphans()
            elif self._is_open:
                self._copy(descriptor)

    @property
    def _is_open(self) -> bool:
        """True while a server may write."""
        output = None if self._program is None else self._program.stdout
        return output is not None and not output.closed

    def _copy(self, source: int) -> None:
        """Copy what has come to standard output."""
        chunk = os.read(source, CHUNK)
        line, *others = chunk.split(b"\n")
        self._line += len(line)
        if self._limit is not None and self._line > self._limit:
            say(f"stopped: a message is longer than {self._limit} bytes\n")
            self._close_output(0.0)
            return
        if others:
            self._line = len(others[-1])
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[os.write(1, rest) :]
        except OSError:
            chunk = b""  # no reader is left, and the server's input is closed as well
        if not chunk:
            self._close_output(END_SECONDS)

    def _close_output(self, seconds: float) -> None:
        """Copy no more; the server has so long to end by itself."""
        assert self._program is not None
        assert self._program.stdout is not None
        self._poll.unregister(self._program.stdout)
        self._program.stdout.close()
        self._deadline = time.monotonic() + seconds

    def _tell_to_end(self) -> None:
        """Terminate the program, which had its time to end by itself; the next time, kill it."""
        if self._is_told:
            self._deadline = None
            self._kill()
            return
        self._is_told = True
        stopped = self._limit is not None and not self._is_open
        self._deadline = time.monotonic() + (STOP_SECONDS if stopped else END_SECONDS)
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        self._is_ending = True
        self._signal_group(number)

    def _kill(self) -> None:
        self._is_ending = self._is_killing = True
        self._signal_group(signal.SIGKILL)
        if self._limit is not None:
            os.set_blocking(1, False)  # its reader may wait for our end

    def _reap_orphans(self) -> None:
        program = None if self._program is None else self._program.pid
        for child in list_children():
            if child != program:
                reap(child)

    def _signal_group(self, number: int) -> None:
        """Signal the program's group, which is its own until the program is reaped."""
        if self._program is not None and self._program.returncode is None:
            # None may be left; macOS refuses where there are only some that have ended.
            with suppress(OSError):
                os.killpg(self._program.pid, number)

    def _has_ended(self) -> bool:
        """True once the program has ended, and its output, too."""
        assert self._program is not None
        if self._status is None:
            self._status = _status_of(self._program)
        return self._status is not None and (not self._is_open or self._is_ending)

    def _end(self) -> int:
        """End what the program has left running; its exit status."""
        assert self._program is not None
        assert self._status is not None
        self._signal_group(signal.SIGKILL)
        self._program.wait()
        if self._limit is None:
            self._tell(f"ended {self._status}")
            self._stay()
        end_children(TERM_SECONDS if not self._is_killing else 0.0)
        if self._limit is not None:
            say(ended(self._status))
        return self._status if self._status >= 0 else 128 - self._status

    def _stay(self) -> None:
        """Stay while something is left of the program, until we end or say so."""
        for descriptor in (1, 2):
            os.close(descriptor)
        while not self._is_ending:
            self._reap_orphans()
            if not list_children():
                return
            for descriptor, _ in self._poll.poll():
                if descriptor == 0:
                    return
                os.read(self._woken, CHUNK)


def _status_of(program: subprocess.Popen[bytes]) -> int | None:
    """The status of a program that has ended; where the system can tell, it is not reaped yet."""
    if not hasattr(os, "waitid"):
        return program.poll()
    found = os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def become_subreaper(adopt: bool = True) -> bool:
    """Let orphans of what we start become our children, or no longer; ``False`` if none can."""
    if sys.platform != "linux":
        return False
    import ctypes

    try:
        return int(ctypes.CDLL(None).prctl(_SUBREAPER, int(adopt), 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


def list_children() -> list[int]:
    """Our children, of each thread, where the system tells."""
    found: list[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # another system, or a thread that has ended
    return found


def signal_process(process: int, number: int) -> None:
    """Signal a process; one that has ended is no error."""
    with suppress(OSError):
        os.kill(process, number)


def reap(child: int) -> None:
    """Reap a child that has ended."""
    with suppress(OSError):
        os.waitpid(child, os.WNOHANG)


def end_children(term_seconds: float) -> None:
    """Terminate our children, then kill them and those that become ours, until there is none."""
    told = set[int]()
    begun = time.monotonic()
    while children := list_children():
        passed = time.monotonic() - begun
        if passed > term_seconds + KILL_SECONDS:
            return
        for child in children:
            if passed >= term_seconds:
                signal_process(child, signal.SIGKILL)
            elif child not in told:
                signal_process(child, signal.SIGTERM)
            told.add(child)
            reap(child)
        time.sleep(LOOK_SECONDS)


def say(text: str) -> None:
    """Write to standard error, which may have no reader any more."""
    with suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))


def ended(status: int) -> str:
    """A server's end in words."""
    if status >= 0:
        return f"the server ended with exit status {status}\n"
    return f"the server was ended by signal {-status}\n"


def copy_on_windows(command: list[str], limit: int) -> int:
    """Run a server until its output ends, where nothing tells that we have."""
    import shutil  # which takes as long as the rest

    try:
        # A command may be a script, which only its whole path starts.
        path = shutil.which(command[0]) or command[0]
        server = subprocess.Popen([path, *command[1:]], stdout=subprocess.PIPE)
    except OSError as error:
        say(f"cannot start {command[0]!r}: {error.strerror}\n")
        return 127
    assert server.stdout is not None
    source, length = server.stdout.fileno(), 0
    while chunk := os.read(source, CHUNK):
        line, *others = chunk.split(b"\n")
        length = len(others[-1]) if others else length + len(line)
        if length > limit:
            say(f"stopped: a message is longer than {limit} bytes\n")
            server.kill()
            break
        try:
            os.write(1, chunk)
        except OSError:
            break
    try:
        status = server.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        status = server.wait()
    say(ended(status))
    return status


def main(how: str, number: int, command: list[str]) -> int:
    """Run a program; its exit status."""
    if sys.platform == "win32":
        return copy_on_windows(command, number)
    if how == "copy":
        return Guard(command, limit=number).run()
    return Guard(command, report=number).run()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
