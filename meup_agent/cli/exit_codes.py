"""The exit codes of ``meup``, all of them."""

from __future__ import annotations

from typing import Final

OK: Final = 0
"""It did what it was asked; ``gateway`` and ``run`` also after Ctrl-C or SIGTERM, since that is how
they are meant to end, and ``tail`` when the reader of its output has gone."""

FAILED: Final = 1
"""It could not do it, or ``demo`` saw something else than what it expected."""

USAGE: Final = 2
"""The command, an option, a setting or a configuration file is wrong."""

NO_CONNECTION: Final = 3
"""No gateway answered, or it refused us, or does not want us any more."""

INTERRUPTED: Final = 130
"""Ctrl-C before ``demo`` or ``tail`` was done: 128 and the number of SIGINT, as shells have it."""

TERMINATED: Final = 143
"""SIGTERM, likewise."""
