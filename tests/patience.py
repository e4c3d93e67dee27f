"""The time that a test waits for what should come at once."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest import mock

import anyio

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


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a state that no event tells of."""
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(0.01)
