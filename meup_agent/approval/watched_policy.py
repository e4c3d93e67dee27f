"""Watched policy: a policy file that is read again when it changes.

The file is looked at when a decision is made, which costs 2 µs: a watcher as ``watchfiles`` tells
of a change later than that, by a thread. A program that writes it may be half-way through, so a
change counts once the file has stood still for a while, and until then nothing is allowed. How long
it stands is measured here: the time of a file says nothing where another machine's clock made it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from meup_agent.approval.policy import Policy
from meup_agent.approval.policy_file import parse_policy, read_file
from meup_agent.errors import ConfigurationError, printable, system_reason

log = logging.getLogger("meup_agent.approval")

STILL_SECONDS: Final = 0.5
"""Time for which a changed policy file stands still before it counts."""

FRESH_SECONDS: Final = 2.0
"""Age of a file below which another write may leave its time as it is; it is read to be sure."""

_Stamp = tuple[int, int, int, int]


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
        self._stamp = self._read_stamp()
        self._raw = read_file(path)
        self._decided: bytes | None = self._raw  # the text that is in force, or was refused
        self._changed: tuple[_Stamp, bytes, float] | None = None  # a change, since it stands so
        self._settled = self._is_settled()
        self._policy = parse_policy(self._raw)

    def current(self) -> Policy:
        """The policy as the file has it now, or had it when it was good."""
        try:
            stamp = self._read_stamp()
            if stamp != self._stamp or not self._settled:
                self._look(stamp)
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

    def _look(self, stamp: _Stamp) -> None:
        # Looked at before it is read: a write in between is seen the next time.
        self._stamp, self._settled = stamp, False
        raw, now = read_file(self._path), self._clock()
        if raw == self._decided:
            self._changed = None
            self._settled = self._is_settled()
            return
        if self._changed is None or self._changed[:2] != (stamp, raw):
            self._changed = (stamp, raw, now)
        if now - self._changed[2] < STILL_SECONDS:
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

    def _read_stamp(self) -> _Stamp:
        try:
            found = self._path.stat()
        except OSError as error:
            why = system_reason(error)
            # The text of a new file is decided on anew.
            self._decided, self._settled = None, False
            raise ConfigurationError(f"cannot be read ({why})") from None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino

    def _is_settled(self) -> bool:
        return time.time_ns() - max(self._stamp[:2]) > FRESH_SECONDS * 1e9
