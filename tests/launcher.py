"""Program that stands for one that the server of :mod:`tests.forkserver` forks with its pipes.

    python -IS launcher.py SOCKET ARGUMENTS...

Needs nothing but the standard library: it is started by its path, without the package. A copy of
it beside the socket, `python`, is the interpreter that forked programs know: a module that one of
them starts by it is forked, too. Another, `meup`, is the command.
"""

import json
import os
import signal
import socket
import struct
import sys

_NUMBER = struct.Struct("!i")


def main(address: str, arguments: list[str]) -> None:
    """Ask for the program, and end as it ends."""
    asked = {"arguments": arguments, "environment": dict(os.environ), "cwd": os.getcwd()}
    encoded = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [_NUMBER.pack(len(encoded))], [0, 1, 2])
        server.sendall(encoded)
        (pid,) = _NUMBER.unpack(server.recv(_NUMBER.size, socket.MSG_WAITALL))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        # The program alone holds the pipes: one that it closes is closed.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        (code,) = _NUMBER.unpack(server.recv(_NUMBER.size, socket.MSG_WAITALL))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


folder, name = os.path.split(__file__)
if name == "meup":
    main(os.path.join(folder, "socket"), ["-m", "meup_agent.cli", *sys.argv[1:]])
elif name != "python":
    main(sys.argv[1], sys.argv[2:])
elif sys.argv[1:2] == ["-m"]:
    main(os.path.join(folder, "socket"), sys.argv[1:])
else:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
