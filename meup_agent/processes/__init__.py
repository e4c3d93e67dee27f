"""Programs that we start: MCP servers, and what `meup up` runs beside a gateway.

It owns a program's processes from its start to the end of the last of them (:mod:`.guarded`, below
a :mod:`.guard`), the one rule of starting something again, and the end of what a program writes. In
come commands and environments, out go a program's state and its pipes. It never reads what a
program says to us.

A guard is a process for each program. Nothing less ends a program where we are killed: macOS tells
a program nothing, and the signal that Linux can send then reaches one process, not the server that
`npx` or a shell has started, nor what left its group. One guard for several programs would not know
whose orphan it has adopted.
"""
