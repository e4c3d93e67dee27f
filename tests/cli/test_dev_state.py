"""`meup gateway --dev` keeps its tokens where no other user reads them; `meup env` finds them."""

import os
import shlex
import shutil
import socket
import stat
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from msgspec.structs import replace

from meup_agent.cli.commands.env import FORMS, Shell
from meup_agent.cli.dev_state import DevGateway, DevState, state_folder
from meup_agent.errors import ConfigurationError
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here, assert_fails
from tests.cli.processes import TERMINATE, environment, meup, running
from tests.forkserver import launched
from tests.gateways import short_path

NAMES = ("proposer", "fulfiller")

URLS = ("ws://127.0.0.1:8420", "unix:///run/harbour.sock", "http://127.0.0.1:8421")
HARBOUR = DevGateway(*URLS, "demo", {"proposer": "token"})
QUAY = DevGateway("ws://[::1]:8430", "unix:///run/quay.sock", None, "demo", {"proposer": "another"})


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DevState:
    monkeypatch.setenv("MEUP_STATE_DIR", str(tmp_path))
    assert state_folder() == tmp_path / "dev"
    return DevState(state_folder())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def dials(path: Path) -> bool:
    """True if something listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client, short_path(str(path)) as short:
        return client.connect_ex(short) == 0


def test_the_default_folder_is_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEUP_STATE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state_folder().parts[-2:] == ("meup", "dev")
    assert state_folder().is_relative_to(tmp_path)


def test_tokens_are_kept_and_new_ones_are_made_when_wanted(state: DevState) -> None:
    first = state.tokens(NAMES)
    assert state.tokens(NAMES) == first
    more = state.tokens([*NAMES, "tools"])
    assert {name: more[name] for name in NAMES} == first
    renewed = state.tokens(NAMES, renew=True)
    assert not set(renewed.values()) & set(more.values())
    assert state.tokens(NAMES) == renewed


def test_only_the_user_can_open_what_is_kept(state: DevState) -> None:
    before = os.umask(0)
    try:
        state.tokens(NAMES)
        with state.announce(HARBOUR):
            assert mode(state.path) == 0o700
            files = list(state.path.iterdir())
            assert len(files) == 4
            assert {mode(each) for each in files} == {0o600}
    finally:
        os.umask(before)


def test_tokens_of_a_running_gateway_are_not_replaced(state: DevState) -> None:
    kept = state.tokens(NAMES)
    with state.announce(HARBOUR), pytest.raises(ConfigurationError, match="8420 uses the tokens"):
        state.tokens(NAMES, renew=True)
    assert state.tokens(NAMES) == kept


def test_a_gateway_is_found_while_it_runs(state: DevState) -> None:
    assert state.find_running() == []
    with state.announce(HARBOUR), state.announce(QUAY):
        assert state.find_running() == [HARBOUR, QUAY]
        assert [each.port for each in state.find_running()] == [8420, 8430]
    assert state.find_running() == []


def test_a_gateway_that_was_killed_is_not_found(state: DevState) -> None:
    with state.announce(HARBOUR):
        (left,) = state.path.glob("running-*")
        shutil.copy(left, state.path.parent / "kept")
    shutil.move(state.path.parent / "kept", left)
    assert state.find_running() == []
    assert not left.exists()
    shutil.copy(state.path / "lock", left)
    with state.announce(HARBOUR):
        assert state.find_running() == [HARBOUR]


def test_a_gateway_has_a_socket_while_it_runs(state: DevState) -> None:
    path = state.socket_of(HARBOUR.url)
    with state.announce(HARBOUR), state.announce(QUAY):
        assert dials(path)
        assert dials(state.socket_of(QUAY.url))
    assert not path.exists()


def test_the_socket_of_a_gateway_that_was_killed_is_removed_or_replaced(state: DevState) -> None:
    path = state.socket_of(HARBOUR.url)
    with state.announce(HARBOUR):
        (left,) = state.path.glob("running-*")
        # What a killed process leaves: the socket and the file, and neither listens nor locks.
        os.link(path, state.path.parent / "socket")
        shutil.copy(left, state.path.parent / "kept")
    for _ in range(2):
        os.link(state.path.parent / "socket", path)
        shutil.copy(state.path.parent / "kept", left)
        assert not dials(path)
        assert state.find_running() == []
        assert not path.exists()
    os.link(state.path.parent / "socket", path)
    with state.announce(HARBOUR):
        assert dials(path)


def test_a_gateway_that_runs_keeps_its_socket(state: DevState) -> None:
    """As where one in a container has the same folder, and a port of the same number."""
    with state.announce(HARBOUR):
        with pytest.raises(ConfigurationError, match=r"runs at ws://\S+, perhaps in a c"):
            with state.announce(HARBOUR):
                pass
        assert state.find_running() == [HARBOUR]
        assert dials(state.socket_of(HARBOUR.url))


def test_a_folder_that_vanished_is_no_failure_at_the_end(state: DevState) -> None:
    with state.announce(HARBOUR):
        shutil.rmtree(state.path)
    assert state.find_running() == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("chmod 755 dev", r"dev can be opened by other users, .*; run: chmod 700 \S*dev"),
        ("chmod 640 $T", r"json can be opened by other users, .*; run: chmod 600 \S*tokens\.json"),
        (
            "mv dev x; ln -s x dev",
            r"dev cannot be used \(.*\); set MEUP_STATE_DIR to a folder of your own",
        ),
        ("mv $T x; ln -s ../x $T", r"tokens\.json cannot be used \(.*\); set MEUP_STATE_DIR"),
        ("rm $T; mkfifo -m 600 $T", r"tokens\.json is no file; remove it"),
        (
            'printf \'{"proposer": "secret\' > $T',
            r"tokens\.json is damaged; remove it, or make new tokens",
        ),
        ("rm -r dev; touch dev", r"dev cannot be used \(not a directory\)"),
    ],
)
def test_what_others_could_put_there_is_unused(state: DevState, spoil: str, said: str) -> None:
    kept = state.tokens(NAMES)
    script = f"T=dev/tokens.json; {spoil}"
    subprocess.run(["sh", "-e", "-c", script], cwd=state.path.parent, check=True)
    with pytest.raises(ConfigurationError, match=said) as refused:
        state.tokens(NAMES)
    assert not any(token in str(refused.value) for token in [*kept.values(), "secret"])


def test_another_users_folder_is_not_used(state: DevState, monkeypatch: pytest.MonkeyPatch) -> None:
    state.tokens(NAMES)
    monkeypatch.setattr(os, "geteuid", lambda: state.path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match="belongs to another user; set MEUP_STATE_DIR"):
        state.tokens(NAMES)


def test_nothing_is_written_through_a_link(state: DevState, tmp_path: Path) -> None:
    """A new file takes the place of what has its name, whatever that is."""
    state.tokens(NAMES)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (state.path / "tokens.json.new").symlink_to(precious)
    (state.path / "running-127.0.0.1-8420.json").symlink_to(precious)
    with pytest.raises(ConfigurationError, match=r"8420\.json cannot be used"):
        state.tokens(NAMES, renew=True)
    (state.path / "running-127.0.0.1-8420.json").unlink()
    state.tokens(NAMES, renew=True)
    assert precious.read_text() == "mine"


@pytest.fixture
def announced(state: DevState) -> Generator[DevState]:
    with state.announce(HARBOUR):
        yield state


@pytest.mark.usefixtures("announced")
@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("posix", "export MEUP_URL=unix:///run/harbour.sock\n"),
        ("fish", "set -gx MEUP_URL 'unix:///run/harbour.sock'\n"),
        ("powershell", "$env:MEUP_URL = 'unix:///run/harbour.sock'\n"),
    ],
)
def test_env_speaks_the_words_of_a_shell(shell: str, line: str, command: Here) -> None:
    said = command("env", "proposer", "--shell", shell)
    assert (said.code, said.err) == (exit_codes.OK, "")
    assert said.out.startswith(line)
    assert said.out.count("\n") == 5


STRANGE = 'it\'s \\ a $HOME `id` "name"; ls'


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_takes_what_env_prints_as_it_is(state: DevState, shell: str, command: Here) -> None:
    strange = replace(HARBOUR, space=STRANGE, tokens={STRANGE: "token"})
    with state.announce(strange):
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


@pytest.mark.usefixtures("announced")
def test_at_a_terminal_env_says_its_use(command: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for shell in Shell:
        said = command("env", "proposer", "--port", "8420", "--shell", shell)
        assert said.code == exit_codes.OK
        how = FORMS[shell].run.format("meup env proposer --port 8420")
        assert said.err == f"meup: nothing is set yet; run this: {how}\n"


def test_env_says_what_is_missing(state: DevState, command: Here) -> None:
    def failed(code: int, *arguments: str) -> str:
        done = command("env", *arguments)
        assert_fails(done, code, "meup: ")
        return done.err[6:]

    none = "no gateway of meup up or meup gateway --dev runs"
    assert failed(exit_codes.NO_CONNECTION, "proposer") == (
        f"{none} here; start one in another terminal: meup gateway --dev\n"
    )
    with state.announce(HARBOUR):
        assert failed(exit_codes.USAGE, "proposr") == (
            "the gateway at ws://127.0.0.1:8420 has no participant 'proposr'; give one of:"
            " proposer\n"
        )
        assert failed(exit_codes.USAGE) == "which participant? give one of: proposer\n"
        said = failed(exit_codes.NO_CONNECTION, "proposer", "--port", "1")
        assert said == f"{none} at port 1; give one of: 8420\n"
        with state.announce(QUAY):
            several = failed(exit_codes.USAGE, "proposer")
            assert several == "several gateways run; give --port with one of: 8420, 8430\n"
            done = command("env", "proposer", "--port", "8430")
            assert done.code == exit_codes.OK
            assert "export MEUP_TOKEN=another\n" in done.out


def test_a_terminal_that_was_not_set_up_is_told_how(
    state: DevState, command: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MEUP_URL", "MEUP_HTTP", "MEUP_SPACE", "MEUP_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def said(*arguments: str) -> str:
        done = command(*arguments)
        assert done.code == exit_codes.USAGE
        return done.err

    assert "runs here" not in said("inbox", "list")
    you = replace(HARBOUR, url="ws://127.0.0.1:8440", tokens={"agent": "a", "you": "b"})
    with state.announce(HARBOUR):
        advice = 'eval "$(meup env NAME)" sets all of them; NAME is one of proposer\n'
        assert said("tail").endswith(f". A gateway of yours runs here: {advice}")
        assert said("inbox", "list").endswith(advice)
    with state.announce(you):
        assert said("tail").endswith('eval "$(meup env you)" sets all of them\n')
        assert "the token is missing" in (one := said("tail", "--url", "ws://x", "--space", "s"))
        assert one.endswith("sets all of them\n")
    # What `meup env` complains about is no reason to say anything else here.
    state.path.chmod(0o755)
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


def test_new_tokens_are_for_dev() -> None:
    done = meup("gateway", "--config", "x.yaml", "--new-tokens")
    assert done.returncode == exit_codes.USAGE
    assert done.stderr == "meup: --new-tokens is for --dev; a file has its own tokens\n"
