"""What a scene expects, and what happened."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation.

    Attributes:
        what: What it is about.
        expected: What should have happened.
        happened: What did happen: read from an outcome, from the space or from the disk.
    """

    what: str
    expected: str
    happened: str

    @property
    def holds(self) -> bool:
        """Whether both are the same."""
        return self.expected == self.happened
