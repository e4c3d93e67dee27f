"""Program that bounds the messages of a server on Windows, where the SDK reads it, unbounded.

A file of its own, run by its path, with nothing but the standard library:

    windows_copier.py BYTES COMMAND...
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

CHUNK = 65_536
"""Bytes that are copied at once."""

END_SECONDS = 5.0
"""A server that has closed its output has this long to end."""


def copy_output(limit: int, command: list[str]) -> int:
    """Run a server until its output ends, or has a line longer than a limit; its exit status."""
    try:
        # A command may be a script, which only its whole path starts.
        path = shutil.which(command[0]) or command[0]
        server = subprocess.Popen([path, *command[1:]], stdout=subprocess.PIPE)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]!r}: {error.strerror}\n")
        return 127
    assert server.stdout is not None
    source, length = server.stdout.fileno(), 0
    while chunk := os.read(source, CHUNK):
        line, *others = chunk.split(b"\n")
        length = len(others[-1]) if others else length + len(line)
        if length > limit:
            sys.stderr.write(f"stopped: a message is longer than {limit} bytes\n")
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
    sys.stderr.write(f"the server ended with exit status {status}\n")
    return status


if __name__ == "__main__":
    raise SystemExit(copy_output(int(sys.argv[1]), sys.argv[2:]))
