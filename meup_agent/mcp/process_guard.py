"""Program between the bridge and a server's standard output; a file of its own, run by its path.

It copies what the server writes, and stops a server whose message is longer than a limit: the
transport of the SDK keeps a line until it ends. The server has the bridge's pipes for its standard
input and error. Needs nothing but the standard library, and starts in a fifth of a server's time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

CHUNK = 65_536
"""Bytes that are copied at once: what a pipe holds."""

END_SECONDS = 5.0
"""A server that has closed its standard output has this long to end."""


def run(limit: int, command: list[str]) -> int:
    """Run the server until its output ends; its exit status, as a shell has it."""
    try:
        # On Windows a command may be a script, which only its whole path starts.
        path = shutil.which(command[0]) or command[0]
        server = subprocess.Popen([path, *command[1:]], stdout=subprocess.PIPE)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]!r}: {error.strerror}\n")
        return 127
    assert server.stdout is not None
    if not copy(server.stdout.fileno(), limit):
        sys.stderr.write(f"stopped: a message is longer than {limit} bytes\n")
        stop(server)
    try:
        status = server.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        stop(server)
        status = server.wait()
    sys.stderr.write(ended(status))
    return status if status >= 0 else 128 - status


def copy(source: int, limit: int) -> bool:
    """Copy a descriptor to standard output; ``False`` if a line is longer than the limit."""
    length = 0
    while chunk := os.read(source, CHUNK):
        line, *others = chunk.split(b"\n")
        length += len(line)
        if length > limit:
            return False
        if others:
            length = len(others[-1])
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[os.write(1, rest) :]
        except OSError:
            return True  # the bridge has gone, and closes the server's standard input as well
    return True


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and what it has started, which are in this program's group."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        try:
            server.wait(1.0)
        except subprocess.TimeoutExpired:
            server.kill()
    else:
        server.kill()


def ended(status: int) -> str:
    """A server's end in words."""
    if status >= 0:
        return f"the server ended with exit status {status}\n"
    return f"the server was ended by signal {-status}\n"


if __name__ == "__main__":
    raise SystemExit(run(int(sys.argv[1]), sys.argv[2:]))
