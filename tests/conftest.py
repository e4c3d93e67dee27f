"""What every test shares: the loops it runs on."""

import signal
import sys
from typing import Any

import pytest

from tests.effort import register_profiles

# A shell starts what it puts into the background with Ctrl-C ignored, and every program inherits
# that: those of the tests, which are ended by it, would run on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

register_profiles()


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker that says which rules a test proves; tests/requirements.py lists them."""
    config.addinivalue_line("markers", "rule(*ids): the rules of PROTOCOL.md that the test proves")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what runs in memory on uvloop, which differs from asyncio by its sockets alone."""
    deselected = [item for item in items if {"memory", "uvloop"} <= _parameters(item)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        left_out = set(deselected)
        items[:] = [item for item in items if item not in left_out]


def _parameters(item: pytest.Item) -> set[str]:
    """The names of an item's parameters, as its id has them."""
    _, _, names = item.name.partition("[")
    return set(names.removesuffix("]").split("-"))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(
            ("asyncio", {"use_uvloop": True}),
            id="uvloop",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not on Windows"),
        ),
        pytest.param(("trio", {}), id="trio"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The loop of a test marked `anyio`: each such test runs once on every one."""
    return request.param
