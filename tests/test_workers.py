"""The processes that run these tests: they tell what one process alone would tell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TESTS = """
import os
import warnings

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("own")


@pytest.fixture
def broken_afterwards():
    yield
    raise ValueError("broken afterwards")


@pytest.mark.parametrize("number", range(200))
def test_folder_is_a_process_s_own(number, folder, request):
    for path in folder.iterdir():
        assert path.read_text() == str(os.getpid())
    (folder / str(number)).write_text(str(os.getpid()))


def test_output_is_kept():
    print("what the failing test says")
    print("and to what was there before the fork", file=STDERR)
    raise AssertionError


def test_process_ends():
    os._exit(3)


def test_what_it_needs_breaks(broken_afterwards):
    pass


@pytest.mark.skip(reason="by intent")
def test_is_skipped():
    pass


@pytest.mark.xfail(strict=True)
def test_is_expected_to_fail():
    raise AssertionError


def test_warns():
    warnings.warn("take care", RuntimeWarning)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    file = tmp_path / "test_suite.py"
    file.write_text(TESTS)
    return file


def run(suite: Path, *options: str) -> subprocess.CompletedProcess[str]:
    unused = ("anyio", "hypothesispytest", "schemathesis", "timeout", "xdist")
    plugins = ["-ptests.workers", *(f"-pno:{name}" for name in unused)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options, "-q", "-rA", suite],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_each_outcome_is_told_once(suite: Path) -> None:
    done = run(suite, "--workers=3", f"--basetemp={suite.parent / 'tmp'}")
    lines = done.stdout.splitlines()
    assert lines[-1].startswith(
        "2 failed, 202 passed, 1 skipped, 1 xfailed, 1 warning, 1 error in"
    ), done.stdout + done.stderr
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert len([line for line in lines if "test_folder_is" in line and "PASSED" in line]) == 200
    assert "the process of the test ended, with 3" in done.stdout
    assert "what the failing test says" in done.stdout
    assert "and to what was there before the fork" in done.stdout
    assert "ValueError: broken afterwards" in done.stdout
    assert "RuntimeWarning: take care" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_no_more_is_run_than_asked_for(suite: Path) -> None:
    done = run(suite, "--workers=1", "--exitfirst", f"--basetemp={suite.parent / 'tmp'}")
    assert "stopping after 1 failures" in done.stdout, done.stdout + done.stderr
    assert "test_process_ends" not in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
