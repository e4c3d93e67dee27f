"""The exit codes of ``meup``, all of them."""

from __future__ import annotations

from typing import Final

OK: Final = 0
"""It did what it was asked; ``gateway`` and ``run`` also after Ctrl-C or SIGTERM, since that is how
they are meant to end, and ``tail`` when the reader of its output has gone."""

FAILED: Final = 1
"""It could not do it, ``demo`` saw something else than what it expected, or ``doctor`` found
something wrong."""

USAGE: Final = 2
"""The command, an option, an argument, a setting or a configuration file is wrong."""

NO_CONNECTION: Final = 3
"""No gateway answered, or it refused us, or does not want us any more."""

TOOL_FAILED: Final = 4
"""The tool ran and failed, or the call was answered with an error."""

REJECTED: Final = 5
"""The proposal was rejected."""

TIMED_OUT: Final = 6
"""No decision or answer came in time; the proposal was withdrawn, the request cancelled."""

ABSENT: Final = 7
"""A participant that is needed is not in the space, or has left it."""

REFUSED: Final = 8
"""The gateway did not let it through."""

EDITED: Final = 9
"""It was carried out, but not as it was proposed; the result is on standard output."""

UNKNOWN: Final = 10
"""It was sent, and what became of it is not known."""

INTERRUPTED: Final = 130
"""Ctrl-C before it was done: 128 and the number of SIGINT, as shells have it."""

TERMINATED: Final = 143
"""SIGTERM or a closed terminal, likewise."""
