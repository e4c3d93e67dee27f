"""The exit codes of ``meup``, all of them; in one place, since they are a promise to scripts."""

from __future__ import annotations

from typing import Final

OK: Final = 0
"""It did what it was asked; ``gateway`` and ``run`` also after Ctrl-C or SIGTERM, since that is how
they are meant to end, and ``tail`` when the reader of its output has gone."""

FAILED: Final = 1
"""It could not do it, ``demo`` saw something else than what it expected, or ``doctor`` found
something wrong."""

USAGE: Final = 2  # the command, an option, an argument, a setting or a configuration file is wrong
NO_CONNECTION: Final = 3  # no gateway answered, or it refused us, or does not want us any more
TOOL_FAILED: Final = 4  # the tool ran and failed, or the call was answered with an error
REJECTED: Final = 5  # the proposal was rejected
TIMED_OUT: Final = 6  # no decision or answer came in time; it was withdrawn or cancelled
ABSENT: Final = 7  # a participant that is needed is not in the space, or has left it
REFUSED: Final = 8  # the gateway did not let it through
EDITED: Final = 9  # carried out, but not as it was proposed; the result is on standard output
UNKNOWN: Final = 10  # it was sent, and what became of it is not known
INTERRUPTED: Final = 130  # Ctrl-C before it was done: 128 and SIGINT's number, as in shells
TERMINATED: Final = 143  # SIGTERM or a closed terminal, likewise
