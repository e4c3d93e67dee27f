"""A line at a terminal while a command loads: after an installation Python compiles all of it.

Needs the standard library alone, and little of it: it is begun before anything else is loaded.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

PATIENCE: Final = 2.0
"""Seconds of loading before anything is said, and between two lines."""


class LoadingNotice:
    """Says on standard error that loading takes its time, if that is a terminal.

    A thread does, since what is loaded holds up the rest of the program.

    Args:
        patience: Seconds before anything is said, and between two lines.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._line = "meup: loading; the first start after an installation takes longest\n"
        self._loaded = threading.Event()
        self._loaded.set()

    def begin(self) -> None:
        if self._loaded.is_set() and sys.stderr is not None and sys.stderr.isatty():
            self._loaded = threading.Event()
            threading.Thread(target=self._write_notices, args=(self._loaded,), daemon=True).start()

    def end(self) -> None:
        self._loaded.set()

    def _write_notices(self, loaded: threading.Event) -> None:
        while not loaded.wait(self._patience):
            sys.stderr.write(self._line)
            self._line = "meup: still loading\n"


LOADING: Final = LoadingNotice()
"""The notice of this process."""
