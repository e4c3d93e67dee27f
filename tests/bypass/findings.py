"""Bypasses that attacks on this project found: each has a test of its own, which failed before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Finding:
    """A bypass that is closed.

    Attributes:
        title: The bypass, in a few words.
        was: How it went, while it was open.
        here: What stops it.
        test: The test that repeats it: its file and its name, as pytest has them.
    """

    title: str
    was: str
    here: str
    test: str


FINDINGS: Final[tuple[Finding, ...]] = ()
