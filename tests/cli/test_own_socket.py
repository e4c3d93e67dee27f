"""Our own programs dial the Unix socket of their user's gateway, and send no one else a token."""

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from meup_agent import Agent
from meup_agent.errors import TokenRefused
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here
from tests.cli.participants import variables_printed
from tests.cli.processes import INTERRUPT, Running, meup, running
from tests.patience import PATIENCE
from tests.strangers import STRANGER, stranger, tell_by_tables

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`meup up` needs POSIX")

EVERYTHING: list[dict[str, Any]] = [{"kind": "*"}]


@contextmanager
def up(folder: Path, state: dict[str, str], *arguments: str) -> Generator[Running]:
    """`meup up` with three people, for the length of a block."""
    people = {name: {"capabilities": EVERYTHING} for name in ("you", "looker", "client")}
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump({"space": {"id": "harbour"}, "participants": people}))
    with running("up", "--port", "0", *arguments, cwd=folder, variables=state) as process:
        process.until("up and running", stream="err")
        yield process


def port_of(process: Running) -> int:
    found = re.search(r"listening at ws://127\.0\.0\.1:(\d+)", process.err)
    assert found
    return int(found[1])


@pytest.mark.thorough
def test_after_a_crash_the_ports_taker_gets_no_token(tmp_path: Path, state: dict[str, str]) -> None:
    with up(tmp_path, state) as gateway:
        port = port_of(gateway)
        you, looker, client = (
            state | variables_printed(each, variables=state) for each in ("you", "looker", "client")
        )
        with (
            running("tail", variables=looker) as tail,
            running("mcp", "--http", "127.0.0.1:0", variables=client) as mcp,
        ):
            # Each has been welcomed once, and dials until it is again.
            tail.until("connected to harbour")
            mcp.until("listens at")
            gateway.process.kill()
            gateway.process.wait()
            with stranger(port=port) as other:
                mcp.until("trying again in", stream="err", count=3)
                for command in (("who",), ("inbox", "list"), ("doctor",)):
                    done = meup(*command, variables=you)
                    assert done.returncode == exit_codes.NO_CONNECTION, done
                    assert "54321" not in done.stderr
                # By the port, which they do not ask for by themselves, it is the same.
                at_port = {"MEUP_URL": f"ws://127.0.0.1:{port}"}
                for command in (("who",), ("inbox", "list"), ("doctor",)):
                    done = meup(*command, variables={**you, **at_port})
                    assert done.returncode == exit_codes.NO_CONNECTION, done
                    assert f"the user {STRANGER} listens at 127.0.0.1:{port}" in (
                        done.stdout if command == ("doctor",) else done.stderr
                    )
                _, heard = other.hear()
            assert heard == "b''"
            with up(tmp_path, state) as again:
                tail.until("connected again")
                again.until("'client' in 'harbour': joined", stream="err")
                now = variables_printed("you", variables=state)
                assert (now["MEUP_TOKEN"], now["MEUP_URL"]) == (you["MEUP_TOKEN"], you["MEUP_URL"])
                assert meup("who", variables=you).returncode == exit_codes.OK
                assert again.end(INTERRUPT) == exit_codes.OK
            assert tail.end(INTERRUPT) in (exit_codes.OK, 130)
    assert not list((tmp_path / "state").rglob("*.sock"))


def test_a_command_warns_where_it_cannot_know_who_listens(
    tail_settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Here
) -> None:
    tell_by_tables(monkeypatch, tmp_path)
    code, _, said = command("who", **tail_settings)
    assert code == exit_codes.OK
    assert said.startswith("meup: warning: the user who listens at 127.0.0.1:")
    assert said.count("\n") == 1


async def join(url: str, token: str) -> str:
    with anyio.fail_after(PATIENCE):
        async with Agent("x").join(url, space="harbour", token=token) as space:
            return space.me


@pytest.mark.thorough
@pytest.mark.parametrize("folder", [".", ".mew"])
def test_tokens_stay_until_others_asked(folder: str, tmp_path: Path, state: dict[str, str]) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    with up(tmp_path, state):
        before = token_of("you", tmp_path)
    with up(tmp_path, state):
        assert token_of("you", tmp_path) == before
    with up(tmp_path, state, "--new-tokens") as process:
        after = token_of("you", tmp_path)
        assert after != before
        port = f"ws://127.0.0.1:{port_of(process)}"
        assert anyio.run(join, port, after) == "you"
        with pytest.raises(TokenRefused):
            anyio.run(join, port, before)
    with up(tmp_path, state):
        assert token_of("you", tmp_path) == after


def token_of(who: str, folder: Path) -> str:
    (path,) = folder.rglob(f"{who}.token")
    assert path.stat().st_mode & 0o777 == 0o600
    assert not list(folder.rglob("*.new"))
    return path.read_text().strip()


def test_a_check_makes_no_new_tokens(tmp_path: Path, state: dict[str, str]) -> None:
    with up(tmp_path, state):
        before = token_of("you", tmp_path)
    assert meup("up", "--check", "--new-tokens", cwd=tmp_path, variables=state).returncode == 0
    assert token_of("you", tmp_path) == before


def test_a_gateway_that_runs_keeps_its_tokens(tmp_path: Path, state: dict[str, str]) -> None:
    with up(tmp_path, state):
        before = token_of("you", tmp_path)
        done = meup("up", "--new-tokens", cwd=tmp_path, variables=state)
        assert done.returncode == exit_codes.FAILED
        assert token_of("you", tmp_path) == before
