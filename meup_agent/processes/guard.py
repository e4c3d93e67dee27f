"""Program between us and a program that we start: it ends that one, however we end.

A file of its own, run by its path: it needs nothing but the standard library, and imports little of
that, as it stays for as long as the program does.

    guard.py DESCRIPTOR SECONDS COMMAND...

The descriptor is our socket to it, which closes when we end, also where we are killed. Then the
program has so many seconds until it is told to end, and is killed if it does not. As the
subreaper of all that the program starts, the guard gets hold of what left the program's process
group as well. Linux alone has that: elsewhere what leaves its group stays.

The program has the guard's standard input, output and error, which the guard closes for itself.
SIGINT and SIGTERM are passed on to the program's group, SIGUSR1 kills it at once.

The guard writes lines to the socket: ``started`` and the process, ``failed`` and the error's
number, ``ended`` and the status. Then it stays for what the program has left running, as long as
we do.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

END_SECONDS = 5.0
"""A program that was told to end has this long until it is killed."""

TERM_SECONDS = 1.0
"""Wait for processes that the program left running to end by SIGTERM, before they are killed."""

KILL_SECONDS = 3.0
"""Seconds after which what cannot be killed is left: the system may hold it, as for a lost disk."""

LOOK_SECONDS = 0.02
"""Interval of polling for children: no signal tells of a descendant that becomes our child."""

CANNOT_START = 127
"""The exit status of a guard whose program cannot be started, as a shell has it."""

_WOKEN_BYTES = 4_096

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


class Guard:
    """The guard of a program, on a POSIX system."""

    def __init__(self, owner: int, alone_seconds: float) -> None:
        self._owner = owner
        self._alone_seconds = alone_seconds
        self._program = 0
        self._is_reaped = False
        self._deadline: float | None = None
        self._is_told = False  # to end, by us because it was left alone
        self._is_alone = self._is_ending = self._is_killing = False
        os.set_inheritable(owner, False)
        self._woken, wake = os.pipe()
        for descriptor in (self._woken, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._poll.register(owner, select.POLLIN)

    def run(self, command: list[str]) -> int:
        """Run the program until all of it has ended; the guard's exit status."""
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGUSR1, lambda _number, _frame: self._kill())
        for number in (signal.SIGINT, signal.SIGTERM):
            # Where it is ignored, the program is to ignore it, too.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda number, _: self._pass_on(number))
        become_subreaper()
        try:
            # A group of its own, so that signals for the guard are the guard's to pass on.
            # Python ignores the two signals, which the program is not to inherit.
            self._program = os.posix_spawnp(
                command[0],
                command,
                os.environ,
                setpgroup=0,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        except OSError as error:
            self._report("failed", error.errno or 0)
            return CANNOT_START
        if self._is_ending:  # by a signal that came before there was a program
            self._signal_group(signal.SIGKILL if self._is_killing else signal.SIGTERM)
        self._report("started", self._program)
        # The program's pipes have ended when the program has.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        while (status := self._find_status()) is None:
            self._wait()
        self._signal_group(signal.SIGKILL)
        reap(self._program)
        self._is_reaped = True
        self._report("ended", status)
        while not self._is_alone and not self._is_ending and list_children():
            self._wait()
        end_children(TERM_SECONDS if not self._is_killing else 0.0)
        return 0

    def _report(self, fact: str, number: int) -> None:
        with suppress(OSError):  # we do not read it any more
            os.write(self._owner, f"{fact} {number}\n".encode())

    def _wait(self) -> None:
        """Wait for what happens next, and see to it."""
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if left is not None and left <= 0:
            self._tell_to_end()
            return
        for descriptor, _ in self._poll.poll(None if left is None else left * 1_000 + 1):
            if descriptor == self._woken:
                os.read(self._woken, _WOKEN_BYTES)
                for child in list_children():
                    if child != self._program:
                        reap(child)
            else:  # we have ended, since we write nothing
                self._poll.unregister(self._owner)
                self._deadline = time.monotonic() + self._alone_seconds
                self._is_alone = True

    def _tell_to_end(self) -> None:
        """Terminate the program, which had its time to end by itself; the next time, kill it."""
        if self._is_told:
            self._deadline = None
            self._kill()
            return
        self._is_told = True
        self._deadline = time.monotonic() + END_SECONDS
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        self._is_ending = True
        self._signal_group(number)

    def _kill(self) -> None:
        self._is_killing = True
        self._pass_on(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        """Signal the program's group, which is its own until the program is reaped."""
        if self._program and not self._is_reaped:
            # None may be left; macOS refuses where there are only some that have ended.
            with suppress(OSError):
                os.killpg(self._program, number)

    def _find_status(self) -> int | None:
        """The status of a program that has ended; where the system can tell, it is not reaped."""
        if not hasattr(os, "waitid"):
            ended, status = os.waitpid(self._program, os.WNOHANG)
            self._is_reaped = bool(ended)
            return os.waitstatus_to_exitcode(status) if ended else None
        found = os.waitid(os.P_PID, self._program, os.WEXITED | os.WNOHANG | os.WNOWAIT)
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


def reap(child: int) -> None:
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
            with suppress(OSError):
                if passed >= term_seconds:
                    os.kill(child, signal.SIGKILL)
                elif child not in told:
                    os.kill(child, signal.SIGTERM)
            told.add(child)
            reap(child)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    raise SystemExit(Guard(int(sys.argv[1]), float(sys.argv[2])).run(sys.argv[3:]))
