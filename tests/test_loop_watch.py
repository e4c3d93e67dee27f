"""The watch over event loops: one that stands still fails its test, and tells where."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TESTS = """
import time

import pytest
import anyio
from anyio.from_thread import start_blocking_portal


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def anyio_backend(request):
    if request.param == "trio":
        return "trio"
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


async def at_once():
    return True


async def stand_still():
    print("what the test has said")
    while await at_once():
        pass


def work():
    begun = time.thread_time()
    while time.thread_time() < begun + 0.1:
        pass


@pytest.mark.anyio
async def test_busy(anyio_backend):
    for _ in range(6):
        work()
        await anyio.lowlevel.checkpoint()


def test_busy_without_a_loop():
    for _ in range(6):
        work()


@pytest.mark.anyio
async def test_standing(anyio_backend):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stand_still)


def test_standing_thread():
    with start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
        portal.call(stand_still)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    file = tmp_path / "test_suite.py"
    file.write_text(TESTS)
    return file


def run(*tests: object, seconds: float) -> subprocess.CompletedProcess[str]:
    unused = ("hypothesispytest", "schemathesis", "timeout", "xdist")
    options = [f"--standing-seconds={seconds}", *(f"-pno:{name}" for name in unused)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-ptests.loop_watch", *options, "-q", *map(str, tests)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


pytestmark = pytest.mark.skipif(
    not hasattr(time, "pthread_getcpuclockid"), reason="threads have no clocks here"
)


@pytest.mark.parametrize(
    "test",
    [
        "test_standing[asyncio]",
        "test_standing[uvloop]",
        "test_standing[trio]",
        "test_standing_thread",
    ],
)
def test_standing_loop_fails_its_test(suite: Path, test: str) -> None:
    done = run(f"{suite}::{test}", seconds=0.2)
    assert done.returncode == 1
    assert f" stands still in test_suite.py::{test}" in done.stdout, done.stdout
    assert " in stand_still\n" in done.stdout, done.stdout
    assert "what the test has said" in done.stdout


def test_busy_loop_is_left_alone(suite: Path) -> None:
    done = run(suite, "-k=busy", seconds=0.5)
    assert done.returncode == 0, done.stdout
