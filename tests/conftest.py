"""The part that every test shares: the loops it runs on."""

import gc
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests import forkserver
from tests.effort import register_profiles
from tests.programs import state

# A shell starts what it puts into the background with Ctrl-C ignored, and every program inherits
# that: those of the tests, which are ended by it, would run on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

register_profiles()

TESTS = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Name the markers that say which rules a test proves, and which limits it goes beyond."""
    config.addinivalue_line("markers", "rule(*ids): the rules of PROTOCOL.md that the test proves")
    config.addinivalue_line("markers", "limit(*names): the gateway's limits that the test exceeds")
    # No gateway runs for the tests' own process: neither the developer's, nor that of a program.
    os.environ |= state("tests")
    # Here, and not in a worker: it does its imports while the tests are collected.
    options = config.option
    several = getattr(options, "numprocesses", None)
    if several and not options.collectonly and hasattr(os, "fork"):
        forkserver.share()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while the tests are collected, nor among them later: all of them stay.

    It took two fifths of the time of collecting, and some of each test's.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


LOOPS = ("asyncio", "trio", "uvloop")

ABOUT_SOCKETS = {"faults", "gateway", "session", "transport"}
"""Folders of tests that run on uvloop, which differs from asyncio by its sockets alone."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what another run shows as well.

    Where only what is installed may differ, each test runs with one of its inputs, on one of its
    loops, the same each time: all of them are tried, but not each with everything. Those of the
    transports, which are next to the libraries, run whole.
    """
    chosen = [item for item in items if not (_loop(item) == "uvloop" and _is_without_socket(item))]
    if config.getoption("--hypothesis-profile", None) == "installed":
        variants: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
        for item in chosen:
            variants[_function(item)].append(item)
        taken = {found[crc32(name.encode()) % len(found)] for (_, name), found in variants.items()}
        chosen = [item for item in chosen if item in taken or "transport" in item.path.parts]
    kept = set(chosen)
    if deselected := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=deselected)
        items[:] = chosen


def _is_without_socket(item: pytest.Item) -> bool:
    folders = item.path.relative_to(TESTS).parts
    return "memory" in _parameters(item) or ABOUT_SOCKETS.isdisjoint(folders)


def _function(item: pytest.Item) -> tuple[Path, str]:
    """The file and the function of an item, without its parameters."""
    return item.path, item.name.partition("[")[0]


def _loop(item: pytest.Item) -> str:
    """The loop that an item runs on; empty for what needs none."""
    parameters = _parameters(item)
    return next((loop for loop in LOOPS if loop in parameters), "")


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
