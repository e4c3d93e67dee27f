"""The time that a test waits for what should come at once."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest import mock

PATIENCE: Final = 60.0
"""Seconds. A test that passes never waits so long, however slow or busy the machine is; below
pytest's own timeout, so that the one that fails says for what it waited."""


@contextmanager
def patient(*constants: str) -> Generator[None]:
    """Let the product wait as long as a test does, where a person would be told something sooner.

    By the full names of the constants that say how long. For tests of what is told when the answer
    has come, which would else depend on the speed of the machine.
    """
    with ExitStack() as stack:
        for each in constants:
            stack.enter_context(mock.patch(each, PATIENCE))
        yield
