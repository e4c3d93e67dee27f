"""`meup up` with a file: real programs beside a real gateway, and none left after it."""

import json
import os
import re
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from meup_agent import Agent
from meup_agent.cli.up.state import token_path
from meup_agent.transport.urls import socket_url
from tests.cli.commands import exit_codes
from tests.cli.participants import variables_printed
from tests.cli.processes import (
    COMMAND,
    IN_TERMINAL,
    INTERRUPT,
    TERMINATE,
    Running,
    is_there,
    meup,
    running,
    up,
)
from tests.forkserver import launched

READY = "print('ready', os.getpid(), flush=True)"
WAITS = f"import os, time; {READY}; time.sleep(600)"
STUBBORN = (
    "import os, signal, time;"
    "[signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)];"
    f"{READY}; time.sleep(600)"
)


def python(code: str) -> list[str]:
    """The command of a Python program."""
    return [sys.executable, "-IS", "-c", code]


ENDS = (
    "import subprocess, sys;"
    f"left = subprocess.Popen({python(STUBBORN)!r}, start_new_session=True,"
    " stdout=subprocess.PIPE, text=True);"
    "print(left.stdout.readline(), end='', flush=True)"
)
"""Leaves a program behind that heeds no signal and is not in its group."""


def write(folder: Path, **participants: dict[str, Any]) -> Path:
    """A file with one space, each of whose participants may chat."""
    path = folder / "space.yaml"
    may = {"capabilities": [{"kind": "chat"}]}
    entries = {name: {**may, **entry} for name, entry in participants.items()}
    path.write_text(yaml.safe_dump({"space": {"id": "harbour"}, "participants": entries}))
    return path


def process_of(name: str, process: Running) -> int:
    """The process of a program that has said that it is ready."""
    said = f"{name} | ready "
    process.until("\n", after=said)
    return int(process.out.partition(said)[2].split()[0])


def address(process: Running) -> str:
    process.until("listening at ws://", stream="err")
    process.until("\n", stream="err")
    found = re.search(r"listening at (ws://[\d.]+:\d+)", process.err)
    assert found
    return found[1]


def socket_address(process: Running) -> str:
    """The address of the gateway's Unix socket."""
    process.until("\n", stream="err", after="listening at unix:")
    found = re.search(r"listening at (unix:\S+)", process.err)
    assert found
    return found[1]


@pytest.mark.rule("3.output_log")
def test_a_programs_lines_are_in_its_output_log_too(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path, robot={"command": python(WAITS), "output_log": "./logs/robot.log"})
    with up(tmp_path, state) as process:
        number = process_of("robot", process)
        assert process.end(INTERRUPT) == exit_codes.OK  # until then it may wait to be written
    first, *_ = (tmp_path / "logs" / "robot.log").read_text().splitlines()  # then, how it was ended
    assert first == f"ready {number}"


def test_a_program_has_its_place_in_its_environment(tmp_path: Path, state: dict[str, str]) -> None:
    code = (
        "import os; e = os.environ;"
        "print('place', e['MEUP_URL'], e['MEUP_SPACE'], e['MEUP_PARTICIPANT'], e['COLOUR']);"
        "print('token', len(e['MEUP_TOKEN']), 'MEUP_TOKEN_OTHER' in e, os.getcwd(), flush=True);"
        "import time; time.sleep(600)"
    )
    (tmp_path / "below").mkdir()
    write(
        tmp_path,
        robot={"command": python(code), "env": {"COLOUR": "${PAINT}-${SPACE}"}, "cwd": "below"},
    )
    variables = {**state, "PAINT": "red", "MEUP_TOKEN_OTHER": "secret"}
    with up(tmp_path, variables) as process:
        url = socket_address(process)
        process.until("token ")
        process.until("below\n")
        assert f"robot | place {url} harbour robot red-harbour\n" in process.out
        assert f"robot | token 43 False {tmp_path / 'below'}\n" in process.out


def test_an_agent_joins_with_what_it_was_given(tmp_path: Path, state: dict[str, str]) -> None:
    (tmp_path / "bot.py").write_text(
        "import os, anyio\n"
        "from meup_agent import Agent\n"
        "async def main():\n"
        "    e = os.environ\n"
        "    where = {'space': e['MEUP_SPACE'], 'token': e['MEUP_TOKEN']}\n"
        "    async with Agent('bot').join(e['MEUP_URL'], **where) as space:\n"
        "        print('joined as', space.me, flush=True)\n"
        "        await anyio.sleep_forever()\n"
        "anyio.run(main)\n"
    )
    write(tmp_path, bot={"command": launched("bot.py")})
    with up(tmp_path, state) as process:
        process.until("bot | joined as bot\n")


def test_the_references_form_starts_where_it_says_so(tmp_path: Path, state: dict[str, str]) -> None:
    code = "import sys, time; print(*sys.argv[1:], flush=True); time.sleep(600)"
    args = ["-c", code, "--port=${PORT}", "--space=${SPACE}", "--token=${TOKEN}", "${HOME}"]
    write(
        tmp_path,
        told={"command": sys.executable, "args": args, "auto_start": True, "tokens": ["secret"]},
        silent={"command": sys.executable, "args": ["-c", WAITS]},
        kept={"command": python(WAITS), "auto_start": False},
    )
    with up(tmp_path, state) as process:
        port = address(process).rpartition(":")[2]
        process.until(f"told | --port={port} --space=harbour --token=secret ${{HOME}}\n")
        assert process.end(TERMINATE) == exit_codes.OK
    assert "participants.told: its command line shows its token" in process.err
    assert "silent is not started: its auto_start does not say so" in process.err
    assert process.err.count(" is started (process ") == 1


def test_a_space_that_exists_goes_on_in_its_folder(tmp_path: Path, state: dict[str, str]) -> None:
    """Its file and its tokens are in `.mew`; its programs find what they found before."""
    code = (
        "import os, pathlib, time;"
        "own = pathlib.Path('.mew/tokens/crane-1.token').read_text().strip();"
        "print(own == os.environ['TOKEN'] == os.environ['MEW_TOKEN_CRANE_1'], os.environ['SPACE'],"
        " os.environ['KEY'], os.environ['HARD'], 'MEW_TOKEN_OTHER' in os.environ, flush=True);"
        "time.sleep(600)"
    )
    (tmp_path / ".mew").mkdir()
    path = write(
        tmp_path,
        **{
            "crane-1": {
                "type": "local",
                "command": sys.executable,
                "args": ["-c", code],
                "auto_start": True,
                "env": {"KEY": "${THERE_IS_NO_SUCH_VARIABLE}", "HARD": True},
            },
            "human": {},
        },
    )
    path.rename(tmp_path / ".mew" / "space.yaml")
    with up(tmp_path, {**state, "MEW_TOKEN_OTHER": "secret"}) as process:
        process.until("crane-1 | True harbour ${THERE_IS_NO_SUCH_VARIABLE} true False\n")
        assert process.end(TERMINATE) == exit_codes.OK
    assert "so it is left as it is written" in process.err
    held = tmp_path / ".mew" / "tokens" / "human.token"
    assert stat.S_IMODE(held.stat().st_mode) == 0o600


def test_failures_start_again_what_cannot_is_told(tmp_path: Path, state: dict[str, str]) -> None:
    write(
        tmp_path,
        crash={"command": python("import sys; sys.exit(3)")},
        never={"command": ["there-is-no-such-command"]},
        lost={"command": python(WAITS), "cwd": "nowhere"},
        unset={"command": python(WAITS), "env": {"A": "${THERE_IS_NO_SUCH_VARIABLE}"}},
        once={"command": ["true"]},
        ready={"command": python(WAITS)},
    )
    with up(tmp_path, state) as process:
        process_of("ready", process)
        process.until("once has ended", stream="err")
        process.until("crash ended with exit code 3; it is started again in", stream="err")
        process.until("crash is started", stream="err", count=2)
    assert process.err.count("once is started") == 1
    assert process.err.count("never cannot be started: there is no command") == 1
    assert process.err.count("lost cannot be started: there is no folder") == 1
    assert (
        "unset is not started: env.A needs the environment variable THERE_IS_NO_SUCH_VARIABLE"
        in process.err
    )
    assert "Traceback" not in process.err


def test_a_megabyte_is_cut_and_stops_no_other(tmp_path: Path, state: dict[str, str]) -> None:
    loud = (
        "import os, time; print('\x1b[2J' + 'x' * 5000); [print('y' * 99) for _ in range(10000)];"
        "print('', end='', flush=True); os.write(1, b'\\xff no end')"
    )
    write(tmp_path, loud={"command": python(loud)}, ready={"command": python(WAITS)})
    with up(tmp_path, state) as process:
        process_of("ready", process)
        process.until("more lines were left out)\n")
        process.until("loud has ended", stream="err")
    assert len(process.out) < 200_000
    assert "\x1b" not in process.out
    assert "loud  | \\x1b[2Jxxx" in process.out


@pytest.mark.parametrize("number", [INTERRUPT, TERMINATE, signal.SIGHUP])
def test_a_signal_ends_programs_first(number: int, tmp_path: Path, state: dict[str, str]) -> None:
    last = (
        "import os, signal, sys, time;"
        # Not by print(): it may be in the midst of the other one still.
        "[signal.signal(each, lambda *_: sys.exit(os.write(1, b'told\\n') and 0))"
        " for each in (signal.SIGINT, signal.SIGTERM)];"
        f"{READY}; time.sleep(600)"
    )
    grandchild = f"import subprocess, sys, time; subprocess.Popen({python(STUBBORN)!r}); {last}"
    write(tmp_path, ann={"command": python(last)}, bob={"command": python(grandchild)})
    command = IN_TERMINAL if number == signal.SIGHUP else COMMAND
    with up(tmp_path, state, command=command) as process:
        process.until(" | ready", count=3)
        numbers = [int(each) for each in re.findall(r"ready (\d+)$", process.out, re.MULTILINE)]
        assert all(map(is_there, numbers))
        assert process.end(number) == exit_codes.OK
    assert not any(map(is_there, numbers))
    assert process.out.count("| told\n") == 2
    ended = process.err.index("ann has ended"), process.err.index("bob has ended")
    assert max(ended) < process.err.index("stopped listening at")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
def test_what_left_its_process_group_is_ended_too(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path, parent={"command": python(ENDS)})
    with up(tmp_path, state) as process:
        number = process_of("parent", process)
        process.until("parent has ended", stream="err")
        assert is_there(number)
    assert not is_there(number)


def test_a_second_ctrl_c_kills_what_heeds_no_signal(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path, deaf={"command": python(STUBBORN)})
    with up(tmp_path, state) as process:
        number = process_of("deaf", process)
        process.process.send_signal(INTERRUPT)
        process.until("stopping", stream="err")
    assert "deaf does not end, so it is killed" in process.err
    assert "deaf was ended by SIGKILL" in process.err
    assert not is_there(number)


def test_ctrl_c_in_the_pause_before_a_start_ends_it(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path, crash={"command": python("import sys; sys.exit(1)")})
    with up(tmp_path, state) as process:
        process.until("it is started again in", stream="err", count=3)


def test_ctrl_c_while_it_starts_leaves_nothing(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path, ready={"command": python(WAITS)})
    with up(tmp_path, state) as process:
        process.until("listening at", stream="err")
    for number in re.findall(r"is started \(process (\d+)\)", process.err):
        assert not is_there(int(number))


def test_a_reader_that_goes_ends_it(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path, ready={"command": python(f"import time, os; {READY}\nwhile True: print(1)")})
    with up(tmp_path, state) as process:
        number = process_of("ready", process)
        assert process.process.stdout is not None
        process.process.stdout.close()
        assert process.end() == exit_codes.OK
    assert not is_there(number)


def test_a_second_one_says_who_is_there(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path, you={})
    with up(tmp_path, state) as process:
        url = address(process)
        port = url.rpartition(":")[2]
        process.until("up and running", stream="err")
        second = meup("up", cwd=tmp_path, variables=state)
        other = tmp_path / "other"
        other.mkdir()
        write(other, you={})
        third = meup("up", "--port", port, cwd=other, variables=state)
        tried = meup("gateway", "--dev", "--port", port, cwd=other, variables=state)
        beside = write(other, you={}).rename(tmp_path / "other.yaml")
        with up(tmp_path, state, beside.name) as fourth:
            fourth.until("up and running", stream="err")
    there = f"meup up already runs space.yaml at {url} (process {process.process.pid})"
    assert second.returncode == exit_codes.FAILED
    assert second.stderr == f"meup: {there}; stop it with Ctrl-C there, or use it\n"
    assert third.returncode == exit_codes.USAGE
    assert third.stderr.count("\n") == 2
    assert "address already in use" in third.stderr
    assert there in third.stderr
    assert tried.stderr.endswith(f"choose another host or port: {there}\n")
    assert f"meup: warning: {there}\n" in fourth.err
    assert "already runs" not in process.err
    again = meup("up", "--check", cwd=tmp_path, variables=state)
    assert again.returncode == exit_codes.OK


def test_env_makes_a_terminal_a_participant(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path, you={}, given={"tokens": ["a-token-of-a-file"]})
    with up(tmp_path, state) as process:
        url, own = address(process), socket_address(process)
        process.until("up and running", stream="err")
        variables = variables_printed("you", variables=state)
        other = meup("env", "given", variables=state)
    assert variables == {
        "MEUP_URL": own,
        "MEUP_HTTP": url.replace("ws", "http"),
        "MEUP_SPACE": "harbour",
        "MEUP_PARTICIPANT": "you",
        "MEUP_TOKEN": (tmp_path / ".mew/tokens/you.token").read_text().strip(),
    }
    assert other.stderr == (
        f"meup: the gateway at {url} has no participant 'given'; give one of: you\n"
    )
    after = meup("env", "you", variables=state)
    assert after.returncode == exit_codes.NO_CONNECTION


def test_tokens_are_made_that_only_the_user_reads(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path, you={}, ann={"tokens": ["ann-token"]})
    path = token_path(tmp_path / ".mew" / "tokens", "you")
    said = ""
    for _ in range(2):
        with up(tmp_path, state) as process:
            url = address(process)

            async def join(url: str = url) -> None:
                token = path.read_text().strip()
                async with Agent("x").join(url, space="harbour", token=token) as space:
                    assert space.me == "you"

            anyio.run(join)
            assert process.end(INTERRUPT) == exit_codes.OK
            said += process.out + process.err
    assert [each.name for each in tmp_path.rglob("*.token")] == ["you.token"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().strip() not in said

    path.chmod(0o644)
    with up(tmp_path, state) as process:
        address(process)
    assert process.err.count("run: chmod 600") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "meup: there is no file space.yaml; write one with `meup init`, or give its path"),
        ("space: {id: x}\n", "meup: space.yaml: participants: is missing"),
        (
            "space: {id: x}\nparticipants: {a: {comand: [b]}}\n",
            "meup: space.yaml: participants.a.comand: unknown key; did you mean command?",
        ),
        (
            "space: {id: x}\nparticipants: {a: {command: [b, {}]}}\n",
            "meup: space.yaml: participants.a.command: expected a program, or a list of it and its"
            " arguments in quotes",
        ),
    ],
)
def test_what_is_wrong_with_the_file_is_one_sentence(
    text: str | None, said: str, tmp_path: Path, state: dict[str, str]
) -> None:
    if text is not None:
        (tmp_path / "space.yaml").write_text(text)
    done = meup("up", cwd=tmp_path, variables=state)
    assert (done.returncode, done.stderr) == (exit_codes.USAGE, f"{said}\n")


def test_check_says_what_would_be_started(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path, you={}, robot={"command": ["robot"]})
    done = meup("up", "--check", cwd=tmp_path, variables=state)
    assert done.returncode == exit_codes.OK
    assert "starts robot in space harbour\n" in done.stdout
    assert not list(tmp_path.glob("*.token"))


def test_a_gateway_alone_says_what_it_does_not_start(tmp_path: Path) -> None:
    write(tmp_path, robot={"command": ["robot"], "tokens": ["t"]})
    arguments = ("gateway", "--config", "space.yaml", "--port", "0")
    with running(*arguments, cwd=tmp_path) as gateway:
        gateway.until("robot is started by `meup up`, and not by a gateway alone", stream="err")
        gateway.until("listening at", stream="err")
        assert gateway.end(INTERRUPT) == exit_codes.OK


def test_decisions_are_kept_and_found_unless_it_is_told_not_to(
    tmp_path: Path, state: dict[str, str]
) -> None:
    write(tmp_path)
    for more, found in ((("--no-journal",), 0), ((), 1)):
        checked = meup("up", "--check", *more, cwd=tmp_path, variables=state)
        assert ("keeps its journal in memory" in checked.stdout) is (not found), checked
        with up(tmp_path, state, *more) as process:
            process.until("up and running", stream="err")
            (socket,) = Path(state["MEUP_STATE_DIR"]).glob("up/*.sock")
        journals = [*Path(state["MEUP_STATE_DIR"]).glob("up/*.journal.db")]
        assert len(journals) == found
        audit = meup("audit", cwd=tmp_path, variables=state)
        assert ("journal is missing" in audit.stderr) is (not found), audit
        # Also in a terminal that was a participant while it ran.
        there = {**state, "MEUP_URL": socket_url(str(socket)), "MEUP_TOKEN": "ended"}
        ended = meup("audit", cwd=tmp_path, variables=there)
        assert ("no gateway answers" in ended.stderr) is (not found), ended
    assert journals[0].stat().st_mode & 0o077 == 0
    (tmp_path / "journal.db").touch()
    copied = meup("journal", "backup", "copy.db", cwd=tmp_path, variables=state)
    assert (copied.returncode, (tmp_path / "copy.db").is_file()) == (0, True)


def test_of_several_journals_that_of_the_one_that_runs_is_meant(
    tmp_path: Path, state: dict[str, str]
) -> None:
    first, second, elsewhere = (tmp_path / name for name in ("first", "second", "elsewhere"))
    for folder in (first, second, elsewhere):
        folder.mkdir()
    before = set[Path]()
    for folder in (first, second):
        write(folder)
        with up(folder, state) as process:
            process.until("up and running", stream="err")
            found = meup("audit", cwd=elsewhere, variables=state)
        kept = {*Path(state["MEUP_STATE_DIR"]).glob("up/*.journal.db")}
        (journal,) = kept - before
        assert f"{journal} is empty: nothing was said yet" in found.stderr, found
        before = kept
    lost = meup("audit", cwd=elsewhere, variables=state)
    assert "has kept several journals; give --journal" in lost.stderr


def test_a_terminal_of_the_reference_finds_the_space(tmp_path: Path, state: dict[str, str]) -> None:
    """As `mew space connect` does: by a port, and a process that runs."""
    write(tmp_path, ann={})
    pids = tmp_path / ".mew" / "pids.json"
    with up(tmp_path, state) as process:
        process.until("up and running", stream="err")
        found = json.loads(pids.read_text())
        assert is_there(found["gateway"])
        assert address(process).endswith(f":{found['port']}")
        assert (found["spaceId"], found["spaceDir"]) == ("harbour", str(tmp_path))
    assert not pids.exists()
    for left, is_kept in (("{", False), ('{"gateway": 999999999}', False), (None, True)):
        pids.write_text(json.dumps({"gateway": os.getpid()}) if left is None else left)
        before = pids.read_text()
        with running(
            "gateway", "--port", "0", "--make-tokens", cwd=tmp_path, variables=state
        ) as gateway:
            gateway.until("console is at", stream="err")
            if is_kept:
                gateway.until("another gateway runs this space", stream="err")
            assert gateway.end(TERMINATE) == exit_codes.OK
        assert pids.exists() is is_kept
    assert pids.read_text() == before


def test_an_mcp_server_by_its_command_is_started_in_our_own_form(tmp_path: Path) -> None:
    command = {"mcp_server": {"command": sys.executable}}
    participants = {"one": command, "two": {**command, "auto_start": False}}
    ours = {"spaces": {"harbour": {"participants": participants}}}
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(ours))
    checked = meup("up", "--check", cwd=tmp_path)
    assert [line for line in checked.stdout.splitlines() if line.startswith("starts ")] == [
        "starts one in space harbour"
    ]
