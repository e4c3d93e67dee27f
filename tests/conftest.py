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
    config.addinivalue_line("markers", "thorough: takes seconds of a core; not in a quick run")
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

PLACES = {"memory", "sockets"}
"""Where the space of a test is that has both."""

ABOUT_SOCKETS = {"faults", "gateway", "session", "transport"}
"""Folders of tests that run on uvloop, which differs from asyncio by its sockets alone.

A journal has none.
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what another run shows as well.

    In a quick run each test has each of its inputs and dialects, but not each of these with each of
    the others, and one of its loops, in memory or over sockets: which, its name decides. Where only
    what is installed may differ it has one of all, the same each time; but those of the transports,
    which are next to the libraries, run on each loop in a quick run, and whole in the other.
    """
    chosen = [item for item in items if not (_loop(item) == "uvloop" and _is_without_socket(item))]
    variants: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in chosen:
        variants[_function(item)].append(item)
    match config.getoption("--hypothesis-profile", None):
        case "quick":
            chosen = [item for found in variants.values() for item in _covering(found)]
            chosen = [item for item in chosen if not item.get_closest_marker("thorough")]
        case "installed":
            one = {each[crc32(name.encode()) % len(each)] for (_, name), each in variants.items()}
            chosen = [item for item in chosen if item in one or "transport" in item.path.parts]
        case _:
            pass
    kept = set(chosen)
    if deselected := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item in kept]
    if hasattr(config, "workerinput"):
        # Each worker gets a share of these in a row: all tests of programs, which mostly wait, were
        # one share, and were waited for at the end with nothing beside them.
        items.sort(key=lambda item: crc32(item.path.name.encode()))


def _covering(variants: list[pytest.Item]) -> list[pytest.Item]:
    """Variants of a test, as few as have each value of each parameter, in one place if they can."""
    places = PLACES if set[str]().union(*map(_parameters, variants)) >= PLACES else set[str]()
    where: dict[pytest.Item, tuple[str, ...]] = {}
    for item in variants:
        is_next_to_sockets = "transport" in item.path.parts
        where[item] = () if is_next_to_sockets else (_loop(item), *(places & _parameters(item)))
    found = sorted(set(where.values()))
    chosen_place = found[crc32(_function(variants[0])[1].encode()) % len(found)]
    values = {item: _values(item, where[item]) for item in variants}
    left = set[object]().union(*values.values())
    chosen = list[pytest.Item]()
    while left or not chosen:
        chosen.append(
            max(variants, key=lambda item: (len(left & values[item]), where[item] == chosen_place))
        )
        left -= values[chosen[-1]]
    return chosen


def _values(item: pytest.Item, where: tuple[str, ...]) -> frozenset[object]:
    """The values of an item's parameters, but for where it runs.

    Each is the id that a `parametrize` or a fixture gives it.
    """
    called = getattr(item, "callspec", None)
    ids = enumerate(called._idlist) if called else ()
    return frozenset(each for each in ids if each[1] not in where)


def _is_without_socket(item: pytest.Item) -> bool:
    folders = item.path.relative_to(TESTS).parts
    return (
        "memory" in _parameters(item) or "journal" in folders or ABOUT_SOCKETS.isdisjoint(folders)
    )


def _function(item: pytest.Item) -> tuple[Path, str]:
    """The file and the function of an item, without its parameters."""
    return item.path, item.nodeid.partition("[")[0]


def _loop(item: pytest.Item) -> str:
    """The loop that an item runs on; empty for what needs none, or chooses none."""
    called = getattr(item, "callspec", None)
    parameters = _parameters(item) if called and "anyio_backend" in called.params else ()
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
    """The loop of a coroutine that is a test: each runs once on every one."""
    return request.param
