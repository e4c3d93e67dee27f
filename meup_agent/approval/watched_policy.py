"""Watched policy: a policy file that is read again when it changes.

The file is read when a decision is made, which costs some 50 µs: a watcher as ``watchfiles`` tells
of a change later than that, by a thread, and the time of a file may stay as it was. A program that
writes it may be half-way through, so a change counts once the text has stood still for a while, and
until then nothing is allowed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from meup_agent.approval.policy import Policy
from meup_agent.approval.policy_file import parse_policy, read_file
from meup_agent.errors import ConfigurationError, printable

log = logging.getLogger("meup_agent.approval")

STILL_SECONDS: Final = 0.5
"""Time for which a changed policy file stands still before it counts."""


class WatchedPolicy:
    """A policy file that is read again when it changes, or refused whole while the old one stays.

    Args:
        path: The file.
        clock: Gives the time in seconds, since any moment.

    Raises:
        ConfigurationError: It does not load at the start.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._refused = ""
        self._raw = read_file(path)
        self._decided: bytes | None = self._raw  # the text that is in force, or was refused
        self._changed: tuple[bytes, float] | None = None  # a change, since it stands so
        self._policy = parse_policy(self._raw)

    def current(self) -> Policy:
        """The policy as the file has it now, or had it when it was good."""
        try:
            self._take_in(self._read())
        except ConfigurationError as error:
            self._changed = None
            self._refuse(str(error))
        return self._policy

    @property
    def doubt(self) -> str:
        """The reason for which the policy allows nothing at the moment; empty: there is none."""
        if self._changed is None:
            return ""
        return f"the file of the rules was changed less than {STILL_SECONDS:g} s ago"

    def _read(self) -> bytes:
        try:
            return read_file(self._path)
        except ConfigurationError:
            self._decided = None  # the text of a new file is decided on anew
            raise

    def _take_in(self, raw: bytes) -> None:
        if raw == self._decided:
            self._changed = None
            return
        now = self._clock()
        if self._changed is None or self._changed[0] != raw:
            self._changed = (raw, now)
        if now - self._changed[1] < STILL_SECONDS:
            return
        self._changed, self._decided = None, raw
        if raw != self._raw:
            if self._raw.startswith(raw):
                raise ConfigurationError(
                    "it is the beginning of the file before it, perhaps cut off"
                )
            self._policy, self._raw = parse_policy(raw), raw
            log.info("%s is read again: %r", self._path, self._policy)
        self._refused = ""

    def _refuse(self, why: str) -> None:
        said = f"{self._path} is refused, and the policy before it stays: {why}"
        if said != self._refused:
            log.error("%s", printable(said))
        self._refused = said
