"""Fuzzes one target in a process of its own; libFuzzer ends the process by itself.

python -m tests.fuzz.guided TARGET CORPUS [libFuzzer's options]
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import atheris

from tests.fuzz.mutator import Mutator


def main(name: str, arguments: list[str]) -> None:
    """Instrument the package and hand over to libFuzzer."""
    with atheris.instrument_imports(include=["meup_agent"]):
        target: Any = importlib.import_module(f"tests.fuzz.{name}")
    mutate = Mutator(target.SEEDS, lambda data, size: bytes(atheris.Mutate(data, size)))
    atheris.Setup([sys.argv[0], *arguments], target.run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
