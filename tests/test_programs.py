"""Programs of the tests: one that does not end tells where it is."""

import os

import pytest

from tests.cli.processes import PYTHON, running
from tests.programs import program

STANDS = """
import signal


def stand_still():
    print("it has begun", flush=True)
    while True:
        pass


signal.signal(signal.SIGINT, signal.SIG_IGN)
stand_still()
"""


forked = pytest.mark.parametrize(
    "fork",
    [
        pytest.param(
            True, marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
        ),
        False,
    ],
)


@forked
def test_program_that_does_not_end_tells_where_it_is(fork: bool) -> None:
    with program(["-c", STANDS], fork=fork) as started:
        started.wait_for("it has begun")
        started.patience = 0.1
        with pytest.raises(AssertionError, match=r"it does not end(.|\n)*in stand_still"):
            started.stop()


@forked
def test_process_that_says_nothing_tells_where_it_is(fork: bool) -> None:
    variables = {} if fork else {"PYTHONUNBUFFERED": "1"}
    with running("-c", STANDS, command=PYTHON, variables=variables) as started:
        started.until("it has begun")
        started.patience = 0.1
        with pytest.raises(AssertionError, match=r"nothing came for (.|\n)*in stand_still"):
            started.until("it has ended")
