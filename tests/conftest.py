"""The part that every test shares: the loops it runs on."""

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests import forkserver
from tests.effort import register_profiles
from tests.patience import patient
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

    It took two fifths of the time of collecting, and some of each test's. What a test leaves is
    looked for more rarely than in a program.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


MCP_CLIENTS = (
    "mcp.client.session.DISCOVER_TIMEOUT_SECONDS",
    "mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT",
)
"""After ten seconds a client of MCP's SDK takes a server that starts for one of an older revision,
and two after the end of its input it kills it."""


@pytest.fixture(scope="session", autouse=True)
def patient_mcp_clients() -> Generator[None]:
    """Let these clients wait as long as a test does."""
    # Where no test has loaded the SDK, this does not either.
    with patient(*(each for each in MCP_CLIENTS if each.rpartition(".")[0] in sys.modules)):
        yield


LOOPS = ("asyncio", "trio", "uvloop")

PLACES = {"memory", "sockets"}
"""Where the space of a test is that has both."""

ABOUT_SOCKETS = {"faults", "gateway", "session", "transport"}
"""Folders of tests that run on uvloop, which differs from asyncio by its sockets alone.

A journal has none.
"""


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, object, object]:
    """Leave out variants of a test that another run shows as well.

    In a quick run each test has each of its inputs and dialects, but not each of these with each of
    the others, and one of its loops, in memory or over sockets: which, its name decides. Where only
    what is installed may differ it has one of all, the same each time; but those of the transports,
    which are next to the libraries, run on each loop in a quick run, and whole in the other.

    Here, and not once they are collected: each process makes them, and would make twice as many.
    """
    result = yield
    made: Any = metafunc
    path, name = metafunc.definition.path, metafunc.definition.nodeid
    chosen = [each for each in made._calls if not _is_left_to_asyncio(each, path)]
    if chosen:
        match metafunc.config.getoption("--hypothesis-profile", None):
            case "quick":
                # What is deselected later covers nothing.
                kept = [each for each in chosen if "thorough" not in {m.name for m in each.marks}]
                chosen = _covering(kept or chosen, path, name)
            case "installed" if "transport" not in path.parts:
                chosen = [chosen[crc32(name.encode()) % len(chosen)]]
            case _:
                pass
        made._calls = chosen
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what takes seconds to a thorough run, and mix the files of each worker's share."""
    if config.getoption("--hypothesis-profile", None) == "quick":
        dear = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=dear)
        left_out = set(dear)
        items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput"):
        # Each worker gets a share of these in a row: all tests of programs, which mostly wait, were
        # one share, and were waited for at the end with nothing beside them.
        items.sort(key=lambda item: crc32(item.path.name.encode()))


def _covering(variants: list[Any], path: Path, name: str) -> list[Any]:
    """Variants of a test, as few as have each value of each parameter, in one place if they can."""
    places = PLACES if set[str]().union(*map(_parameters, variants)) >= PLACES else set[str]()
    is_next_to_sockets = "transport" in path.parts
    where: list[tuple[str, ...]] = [
        () if is_next_to_sockets else (_loop(each), *(places & _parameters(each)))
        for each in variants
    ]
    found = sorted(set(where))
    chosen_place = found[crc32(name.encode()) % len(found)]
    values = [_values(each, at) for each, at in zip(variants, where, strict=True)]
    left = set[object]().union(*values)
    chosen = list[int]()
    while left or not chosen:
        chosen.append(
            max(
                range(len(variants)),
                key=lambda each: (len(left & values[each]), where[each] == chosen_place),
            )
        )
        left -= values[chosen[-1]]
    return [variants[each] for each in chosen]


def _values(call: Any, where: tuple[str, ...]) -> frozenset[object]:
    """The values of a variant's parameters, but for where it runs.

    Each is the id that a `parametrize` or a fixture gives it.
    """
    return frozenset(each for each in enumerate(call._idlist) if each[1] not in where)


def _is_left_to_asyncio(call: Any, path: Path) -> bool:
    """True for a variant on uvloop of what has no socket."""
    if _loop(call) != "uvloop":
        return False
    folders = path.relative_to(TESTS).parts
    return (
        not {"memory", "local"}.isdisjoint(_parameters(call))
        or "journal" in folders
        or ABOUT_SOCKETS.isdisjoint(folders)
    )


def _loop(call: Any) -> str:
    """The loop that a variant runs on; empty for what needs none, or chooses none."""
    parameters = _parameters(call) if "anyio_backend" in call.params else ()
    return next((loop for loop in LOOPS if loop in parameters), "")


def _parameters(call: Any) -> set[str]:
    """The names of a variant's parameters, as its id has them."""
    return set(str(call.id).split("-"))


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
