"""The targets by name."""

import importlib
from pathlib import Path
from typing import Final, Protocol, cast

NAMES: Final = ("space", "connection", "agent", "port", "patterns", "terminal", "audit")

CASES: Final = Path(__file__).parent / "cases"
"""Inputs that were found, and must not come back: a folder for each target."""

MAX_BYTES: Final = 8_192
"""Of one input: room for a whole conversation, small enough to try thousands a second."""


class Target(Protocol):
    """The interface of a target's module."""

    SEEDS: list[bytes]

    def run(self, data: bytes) -> None:
        """Play an input; raises if something that must hold does not."""


def target(name: str) -> Target:
    """A target's module, imported when it is needed: a fuzzer instruments what it imports."""
    return cast("Target", importlib.import_module(f"tests.fuzz.{name}"))


def cases(name: str) -> list[Path]:
    """Inputs that were found for a target before."""
    return sorted(each for each in (CASES / name).glob("*") if each.is_file())
