"""A gateway that the processes under test meet at."""

import logging
from collections.abc import Callable, Generator
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

import pytest

from meup_agent.gateway import Gateway, ThreadedGateway
from tests.cli.commands import run
from tests.cli.participants import variables_of
from tests.cli.stage import Stage, staged

PARTICIPANTS = {"alice": [{"kind": "*"}], "bob": [{"kind": "*"}], "tailer": []}


@pytest.fixture(autouse=True)
def level_of_log() -> Generator[None]:
    """A command that runs in this process sets it for all that comes after."""
    logger = logging.getLogger("meup_agent")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture
def gateway() -> Generator[ThreadedGateway]:
    with Gateway("demo", PARTICIPANTS).in_thread() as running:
        yield running


@pytest.fixture
def tail_settings(gateway: ThreadedGateway) -> dict[str, str]:
    """The environment of a participant that may look on."""
    return variables_of(gateway, "tailer")


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    return {"MEUP_STATE_DIR": str(tmp_path / "state")}


@pytest.fixture(scope="module")
def set_stage() -> Generator[Stage]:
    with staged() as stage:
        yield stage


@pytest.fixture
def stage(set_stage: Stage) -> Stage:
    """A space with tools and a reviewer in it, where nothing has happened yet."""
    set_stage.forget()
    return set_stage


class Done(NamedTuple):
    """The end of a command."""

    code: int
    out: str
    err: str


def assert_fails(done: Done | CompletedProcess[str], code: int, *said: str) -> None:
    """A command has failed with a code, and with one sentence that has, or begins with, words."""
    failed = done if isinstance(done, Done) else Done(done.returncode, done.stdout, done.stderr)
    assert (failed.code, failed.out) == (code, "")
    assert failed.err.count("\n") == 1
    for each in said:
        assert failed.err.startswith(each) if each.startswith("meup: ") else each in failed.err


Here = Callable[..., Done]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """Runs a command in this process, with these variables: a process takes half a second."""

    def command(*arguments: str, **variables: str) -> Done:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        code = run(arguments)
        done = capfd.readouterr()
        return Done(code, done.out, done.err)

    return command


@pytest.fixture
def here(stage: Stage, command: Here) -> Here:
    """Runs a command in this process, as a participant."""

    def run_as(*arguments: str, participant: str = "alice", **more: str) -> Done:
        return command(*arguments, **stage.variables(participant, **more))

    return run_as
