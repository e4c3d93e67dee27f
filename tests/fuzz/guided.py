"""Fuzzes one target in a process of its own; libFuzzer ends the process by itself.

python -m tests.fuzz.guided TARGET [libFuzzer's options] CORPUS
"""

from __future__ import annotations

import sys

import atheris

from tests.fuzz.mutator import Mutator
from tests.fuzz.targets import target


def main(name: str, arguments: list[str]) -> None:
    """Instrument the package and hand over to libFuzzer."""
    with atheris.instrument_imports(include=["meup_agent"]):
        found = target(name)
    # Looked up at each call: atheris puts another in its place when it begins.
    mutate = Mutator(found.SEEDS, lambda data, size: bytes(atheris.Mutate(data, size)))
    atheris.Setup([sys.argv[0], *arguments], found.run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
