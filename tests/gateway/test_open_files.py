"""A gateway has files for all its connections, or takes fewer, and says so."""

import subprocess
import sys

import pytest

from meup_agent.gateway import GatewayLimits

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")

FIT = """
import logging, resource, sys
from meup_agent.gateway.config import Config, HttpConfig
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.network import fit_open_files

logging.basicConfig(format="%(message)s", stream=sys.stdout, level=sys.argv.pop())
soft, hard, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
limits = GatewayLimits(max_connections=connections)
config = fit_open_files(Config((), limits=limits, http=HttpConfig()))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], config.limits.max_connections)
"""


def fit(soft: int, hard: int, connections: int, level: str = "WARNING") -> list[str]:
    """The output of a process with these limits, and then its files and connections."""
    done = subprocess.run(
        [sys.executable, "-c", FIT, *map(str, (soft, hard, connections)), level],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_the_process_is_allowed_what_the_connections_need() -> None:
    (said,) = fit(128, 1_000, 100)
    # A connection, its share of the handshakes and a caller by HTTP: 225, and some for the rest.
    assert said == "1000 100"


def test_what_the_system_does_not_allow_is_not_promised() -> None:
    warning, said = fit(128, 289, 1_000)
    assert said == "289 100"
    assert "only 289 files open, so it takes 100 connections in place of 1000" in warning


def test_enough_is_left_as_it_is() -> None:
    assert fit(900, 900, 10) == ["900 10"]


@pytest.mark.thorough
def test_nobody_is_warned_of_a_default_that_does_not_fit() -> None:
    most = GatewayLimits().max_connections
    assert fit(128, 289, most) == ["289 100"]
    told, said = fit(128, 289, most, "DEBUG")
    assert (said, f"in place of {most}" in told) == ("289 100", True)
