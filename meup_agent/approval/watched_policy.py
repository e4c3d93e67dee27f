"""Watched policy: a policy file that is read again when it changes.

The file is looked at when a decision is made, which costs 2 µs: a watcher as ``watchfiles`` tells
of a change later than that, by a thread.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from meup_agent.approval.policy import Policy
from meup_agent.approval.policy_file import read_file, read_policy
from meup_agent.errors import ConfigurationError, printable, system_reason

log = logging.getLogger("meup_agent.approval")

FRESH_SECONDS: Final = 2.0
"""Age of a file below which another write may leave its time as it is; it is read to be sure."""

_Stamp = tuple[int, int, int]


class WatchedPolicy:
    """A policy file that is read again when it changes, or refused whole while the old one stays.

    Raises:
        ConfigurationError: It does not load at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._refused = ""
        self._stamp = self._read_stamp()
        self._raw = read_file(path)
        self._settled = self._is_settled()
        self._policy = self._read()

    def current(self) -> Policy:
        """The policy as the file has it now, or had it when it was good."""
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp and self._settled:
                return self._policy
            # Looked at before it is read: a write in between is seen the next time.
            self._stamp, self._settled = stamp, False
            raw = read_file(self._path)
            self._settled = self._is_settled()
            if raw != self._raw:
                self._raw = raw
                self._policy = self._read()
                log.info("%s is read again: %r", self._path, self._policy)
        except ConfigurationError as error:
            self._refuse(str(error))
        return self._policy

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
            # The same text in a new file is taken as new.
            self._raw, self._settled = b"", False
            raise ConfigurationError(f"cannot be read ({why})") from None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _is_settled(self) -> bool:
        return time.time_ns() - self._stamp[0] > FRESH_SECONDS * 1e9

    def _read(self) -> Policy:
        from meup_agent.strict_yaml import parse_yaml

        policy = read_policy(parse_yaml(self._raw))
        self._refused = ""
        return policy
