"""`meup gateway --dev` keeps its tokens where no other user reads them; `meup env` finds them."""

import os
import shlex
import shutil
import socket
import stat
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meup_agent.cli.commands.credentials import FORMS, Shell
from meup_agent.cli.up.state import (
    bind_socket,
    dev_folder,
    dev_lock,
    keep_dev_tokens,
    running_gateways,
    token_path,
)
from meup_agent.errors import ConfigurationError
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here, assert_fails
from tests.cli.processes import TERMINATE, environment, meup, running
from tests.forkserver import launched
from tests.full_disk import full_disk
from tests.gateways import short_path

NAMES = ("proposer", "fulfiller")

HARBOUR, QUAY = "ws://127.0.0.1:8420", "ws://[::1]:8430"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the tokens."""
    monkeypatch.setenv("MEUP_STATE_DIR", str(tmp_path))
    assert dev_folder() == tmp_path / "dev"
    return dev_folder()


@contextmanager
def announced(url: str, *names: str, space: str = "demo") -> Generator[Path]:
    """A gateway that says where it listens; its Unix socket."""
    with dev_lock(url) as lock, bind_socket(lock.socket):
        keep_dev_tokens(names or ["proposer"])
        files = {name: token_path(dev_folder(), name) for name in names or ["proposer"]}
        lock.publish(url, "http://127.0.0.1:8421", space, files)
        yield lock.socket


def urls() -> list[str]:
    """The addresses that are found."""
    return [each.url for each in running_gateways()]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def dials(path: Path) -> bool:
    """True if something listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client, short_path(str(path)) as short:
        return client.connect_ex(short) == 0


def test_the_default_folder_is_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEUP_STATE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert dev_folder().parts[-2:] == ("meup", "dev")
    assert dev_folder().is_relative_to(tmp_path)


def test_tokens_are_kept_and_new_ones_are_made_when_wanted() -> None:
    first = keep_dev_tokens(NAMES)
    assert keep_dev_tokens(NAMES) == first
    more = keep_dev_tokens([*NAMES, "tools"])
    assert {name: more[name] for name in NAMES} == first
    with announced(HARBOUR), pytest.raises(ConfigurationError, match="8420 uses the tokens"):
        keep_dev_tokens(NAMES, renew=True)
    assert keep_dev_tokens(NAMES) == first
    renewed = keep_dev_tokens(NAMES, renew=True)
    assert not set(renewed.values()) & set(more.values())
    assert keep_dev_tokens(NAMES) == renewed


def test_only_the_user_can_open_what_is_kept(folder: Path) -> None:
    before = os.umask(0)
    try:
        with announced(HARBOUR):
            assert mode(folder) == 0o700
            files = list(folder.iterdir())
            assert len(files) == 4
            assert {mode(each) for each in files} == {0o600}
    finally:
        os.umask(before)


def test_a_gateway_is_found_while_it_runs() -> None:
    assert urls() == []
    with announced(HARBOUR) as harbour, announced(QUAY) as quay:
        assert urls() == [HARBOUR, QUAY]
        assert [each.port for each in running_gateways()] == [8420, 8430]
        assert dials(harbour)
        assert dials(quay)
    assert urls() == []
    assert not harbour.exists()


def test_what_a_killed_gateway_left_is_removed_or_replaced(folder: Path, tmp_path: Path) -> None:
    with announced(HARBOUR) as path:
        (left,) = folder.glob("*.lock")
        # What a killed process leaves: the socket and the file, and neither listens nor locks.
        os.link(path, tmp_path / "socket")
        shutil.copy(left, tmp_path / "kept")
    for _ in range(2):
        os.link(tmp_path / "socket", path)
        shutil.copy(tmp_path / "kept", left)
        assert not dials(path)
        assert urls() == []
        assert not path.exists()
        assert not left.exists()
    os.link(tmp_path / "socket", path)
    shutil.copy(tmp_path / "kept", left)
    with announced(HARBOUR):
        assert urls() == [HARBOUR]
        assert dials(path)


def test_a_gateway_that_runs_keeps_its_socket() -> None:
    """As where one in a container has the same folder, and a port of the same number."""
    with announced(HARBOUR) as path:
        with pytest.raises(ConfigurationError, match=r"runs at ws://\S+, perhaps in a c"):
            with announced(HARBOUR):
                pass
        assert urls() == [HARBOUR]
        assert dials(path)


def test_a_folder_that_vanished_is_no_failure_at_the_end(folder: Path) -> None:
    with announced(HARBOUR):
        shutil.rmtree(folder)
    assert urls() == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("chmod 755 dev", r"dev can be opened by other users, .*; run: chmod 700 \S*dev"),
        ("chmod 640 $T", r"token can be opened by other users, .*; run: chmod 600 \S*er\.token"),
        (
            "mv dev x; ln -s x dev",
            r"dev cannot be used \(.*\); set MEUP_STATE_DIR to a folder of your own",
        ),
        ("mv $T x; ln -s ../x $T", r"proposer\.token cannot be used \("),
        ("rm $T; mkfifo -m 600 $T", r"er\.token must hold a token and nothing else; remove it"),
        ("printf 'secret secret' > $T", r"er\.token must hold a token and nothing else; remove it"),
        ("rm -r dev; touch dev", r"dev cannot be used \(not a directory\)"),
        ("ln -s x dev/lock2; mv dev/lock2 dev/lock", r"dev/lock cannot be used \("),
        (
            "chmod 666 dev/lock",
            r"lock can be opened by other users, .*; run: chmod 600 \S*dev/lock",
        ),
        ("rm dev/lock; mkfifo -m 600 dev/lock", r"dev/lock is not a file; remove it"),
    ],
)
def test_what_others_could_put_there_is_unused(folder: Path, spoil: str, said: str) -> None:
    kept = keep_dev_tokens(NAMES)
    script = f"T=dev/proposer.token; {spoil}"
    subprocess.run(["sh", "-e", "-c", script], cwd=folder.parent, check=True)
    with pytest.raises(ConfigurationError, match=said) as refused:
        keep_dev_tokens(NAMES)
    assert not any(token in str(refused.value) for token in [*kept.values(), "secret"])


def test_another_users_folder_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_dev_tokens(NAMES)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    for use in (lambda: keep_dev_tokens(NAMES), running_gateways):
        with pytest.raises(ConfigurationError, match="belongs to another user; set MEUP_STATE_DIR"):
            use()


def test_a_lock_that_others_may_have_written_names_no_gateway(folder: Path) -> None:
    """It would say to whom our tokens are sent."""
    with announced(HARBOUR):
        assert urls() == [HARBOUR]
        (lock,) = folder.glob("*.lock")
        lock.chmod(0o666)
        assert urls() == []
        lock.chmod(0o600)


def test_nothing_is_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    keep_dev_tokens(NAMES)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (folder / "proposer.token.new").symlink_to(precious)
    (folder / "127.0.0.1-8420.lock").symlink_to(precious)
    keep_dev_tokens(NAMES, renew=True)
    with pytest.raises(ConfigurationError, match=r"8420\.lock cannot be used"), announced(HARBOUR):
        pass
    assert precious.read_text() == "mine"


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("posix", "export MEUP_URL=unix://{}\n"),
        ("fish", "set -gx MEUP_URL 'unix://{}'\n"),
        ("powershell", "$env:MEUP_URL = 'unix://{}'\n"),
    ],
)
def test_env_speaks_the_words_of_a_shell(shell: str, line: str, command: Here) -> None:
    with announced(HARBOUR) as path:
        said = command("env", "proposer", "--shell", shell)
    assert (said.code, said.err) == (exit_codes.OK, "")
    assert said.out.startswith(line.format(path))
    assert said.out.count("\n") == 5


STRANGE = 'it\'s \\ a $HOME `id` "name"; ls'


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_takes_what_env_prints_as_it_is(shell: str, command: Here) -> None:
    with announced(HARBOUR, STRANGE, space=STRANGE):
        code, printed, _ = command("env", STRANGE)
        assert code == exit_codes.OK
        said = "".join(
            command("env", STRANGE, "--shell", each).out for each in ("fish", "powershell")
        )
    assert "set -gx MEUP_SPACE 'it\\'s \\\\ a $HOME `id` \"name\"; ls'\n" in said
    assert "$env:MEUP_SPACE = 'it''s \\ a $HOME `id` \"name\"; ls'\n" in said
    script = 'eval "$printed"; printf "%s|%s" "$MEUP_SPACE" "$MEUP_PARTICIPANT"'
    done = subprocess.run(
        [shell, "-c", script], env={"printed": printed}, capture_output=True, check=True, text=True
    )
    assert done.stdout == f"{STRANGE}|{STRANGE}"


def test_at_a_terminal_env_says_its_use(command: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for shell in Shell:
        with announced(HARBOUR):
            said = command("env", "proposer", "--port", "8420", "--shell", shell)
        assert said.code == exit_codes.OK
        how = FORMS[shell].run.format("meup env proposer --port 8420")
        assert said.err == f"meup: nothing is set yet; run this: {how}\n"


def test_env_says_what_is_missing(command: Here) -> None:
    def failed(code: int, *arguments: str) -> str:
        done = command("env", *arguments)
        assert_fails(done, code, "meup: ")
        return done.err[6:]

    none = "no gateway of meup up or meup gateway --dev runs"
    assert failed(exit_codes.NO_CONNECTION, "proposer") == (
        f"{none} here; start one in another terminal, for example: meup up --servers mcp.json\n"
    )
    with announced(HARBOUR):
        assert failed(exit_codes.USAGE, "proposr") == (
            "the gateway at ws://127.0.0.1:8420 has no participant 'proposr'; give one of:"
            " proposer\n"
        )
        assert failed(exit_codes.USAGE) == "which participant? give one of: proposer\n"
        said = failed(exit_codes.NO_CONNECTION, "proposer", "--port", "1")
        assert said == f"{none} at port 1; give one of: 8420\n"
        with announced(QUAY, "another"):
            several = failed(exit_codes.USAGE, "proposer")
            assert several == "several gateways run; give --port with one of: 8420, 8430\n"
            done = command("env", "another", "--port", "8430")
            assert done.code == exit_codes.OK
            assert f"export MEUP_TOKEN={keep_dev_tokens(['another'])['another']}\n" in done.out


def test_a_terminal_that_was_not_set_up_is_told_how(
    folder: Path, command: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MEUP_URL", "MEUP_HTTP", "MEUP_SPACE", "MEUP_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def said(*arguments: str) -> str:
        done = command(*arguments)
        assert done.code == exit_codes.USAGE
        return done.err

    assert "runs here" not in said("inbox", "list")
    with announced(HARBOUR):
        advice = 'eval "$(meup env NAME)" sets all of them; NAME is one of proposer\n'
        assert said("tail").endswith(f". A gateway of yours runs here: {advice}")
        assert said("doctor").endswith(f". A gateway of yours runs here: {advice}")
        assert said("inbox", "list").endswith(advice)
    with announced(QUAY, "agent", "you"):
        assert said("tail").endswith('eval "$(meup env you)" sets all of them\n')
        assert "the token is missing" in (one := said("tail", "--url", "ws://x", "--space", "s"))
        assert one.endswith("sets all of them\n")
    # What `meup env` complains about is not a reason to say anything else here.
    folder.chmod(0o755)
    assert "runs here" not in said("tail")


KEPT = "Their tokens are kept in "


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    return {"MEUP_STATE_DIR": str(tmp_path)}


def test_tokens_outlive_a_gateway_that_is_killed(tmp_path: Path, own: dict[str, str]) -> None:
    start = ("gateway", "--dev", "--port", "0")
    with running(*start, variables=own) as first:
        first.until(KEPT)
        before = meup("env", "guest1", variables=own).stdout
        first.process.kill()
        first.process.wait()
    assert_fails(meup("env", "guest1", variables=own), exit_codes.NO_CONNECTION)
    with running(*start, variables=own) as second:
        second.until(KEPT)
        after = meup("env", "guest1", variables=own).stdout
        token = before.rpartition("=")[2].strip()
        assert len(token) == 43
        assert after.rpartition("=")[2].strip() == token
        assert second.end(TERMINATE) == exit_codes.OK
    with running(*start, "--new-tokens", variables=own) as third:
        third.until(KEPT)
        assert token not in meup("env", "guest1", variables=own).stdout
        assert third.end(TERMINATE) == exit_codes.OK
    said = first.out + first.err + second.out + second.err
    assert token not in said
    assert str(tmp_path) in said


def test_a_terminal_that_was_set_up_takes_part(tmp_path: Path, own: dict[str, str]) -> None:
    command = shlex.join(launched("-W", "error", "-m", "meup_agent.cli"))
    (tmp_path / "meup").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (tmp_path / "meup").chmod(0o700)
    with running("gateway", "--dev", "--port", "0", variables=own) as gateway:
        gateway.until(KEPT)
        (port,) = {line.split("--port ")[1].split(")")[0] for line in gateway.out.splitlines()[2:3]}
        variables = environment(own)
        variables |= {"PATH": f"{tmp_path}:{variables['PATH']}"}
        script = (
            f'eval "$(meup env guest2 --port {port})" && meup who &&'
            f' eval "$(meup env admin)" && meup grant guest2 mcp/request'
        )
        done = subprocess.run(
            ["sh", "-c", script], env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "guest2  you" in done.stdout
        assert gateway.end(TERMINATE) == exit_codes.OK


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (("--host", "0.0.0.0", "--insecure"), {}),
        (("--host", ""), {}),
        ((), {"MEUP_GATEWAY_HOST": "192.0.2.1", "MEUP_GATEWAY_INSECURE": "true"}),
        ((), {"MEUP_GATEWAY_HTTP_HOST": "::", "MEUP_GATEWAY_INSECURE": "true"}),
    ],
)
def test_only_this_machine_reaches_a_dev_gateway(
    tmp_path: Path, arguments: tuple[str, ...], variables: dict[str, str]
) -> None:
    own = {**variables, "MEUP_STATE_DIR": str(tmp_path)}
    done = meup("gateway", "--dev", *arguments, variables=own)
    assert (done.returncode, done.stdout) == (exit_codes.USAGE, "")
    assert done.stderr.startswith("meup: --dev listens on this machine only, and other machines")
    assert list(tmp_path.iterdir()) == []


def test_a_check_keeps_nothing(tmp_path: Path, own: dict[str, str]) -> None:
    done = meup("gateway", "--dev", "--check", variables=own)
    assert done.returncode == exit_codes.OK
    assert "proposer, fulfiller, tools, observer, admin, guest1, guest2, guest3" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_named_and_leaves_nothing_that_hinders_the_next_start(folder: Path) -> None:
    with full_disk(), pytest.raises(ConfigurationError) as failed, dev_lock(HARBOUR):
        raise AssertionError("it cannot be written")
    assert f"{folder}" in str(failed.value)
    assert "cannot be written (file too large)" in str(failed.value)
    with dev_lock(HARBOUR):
        with full_disk(), pytest.raises(ConfigurationError, match=r"proposer\.token cannot"):
            keep_dev_tokens(["proposer"])
        assert keep_dev_tokens(["proposer"])
