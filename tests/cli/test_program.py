"""The program as a whole: help, version, usage, and how it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meup_agent.cli import commands
from tests.cli.commands import exit_codes
from tests.cli.conftest import Here, assert_fails
from tests.cli.processes import COMMAND, PYTHON, meup

COMMANDS = list(commands.COMMANDS)
FIRST = ("up", "console", "inbox")


def test_without_arguments_it_shows_its_help() -> None:
    done = meup()
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("columns", ["50", "90"])
def test_a_newcomer_finds_the_first_commands_first(columns: str, command: Here) -> None:
    shown = command("--help", COLUMNS=columns).out
    first, *others = (shown.index(panel) for panel in commands.PANELS)
    assert all(first < shown.index(f" {name} ", first) < min(others) for name in FIRST)


def test_it_tells_its_version() -> None:
    done = meup("--version")
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    assert done.stdout.startswith("meup-agent ")


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_help_has_an_example(name: str, command: Here) -> None:
    done = command(*filter(None, [name]), "--help", COLUMNS="200")
    assert (done.code, done.err) == (exit_codes.OK, "")
    examples = [line for line in done.out.splitlines() if "Example: " in line]
    assert examples
    assert all(f"meup {name}" in line for line in examples)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_narrow_terminal_shows_options_in_full(name: str, command: Here) -> None:
    shown = command(name, "--help", COLUMNS="40")
    assert shown.code == exit_codes.OK
    options = {option for each in commands.load_command(name).params for option in each.opts}
    assert all(option in shown.out for option in options if option.startswith("--"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("dance",), "meup: No such command 'dance'; see meup --help"),
        (("tail", "--nope"), "meup: No such option: --nope"),
        (("token",), "meup: Missing command; see meup token --help"),
        (("run",), "meup: Missing argument 'MODULE:AGENT'; see meup run --help"),
        (("gateway", "--port", "70000"), "meup: Invalid value for '--port'"),
        (("gateway",), "meup: a gateway needs --config FILE or --dev: there is no space.yaml"),
        (
            ("tail",),
            "meup: the url, the space and the token are missing; set MEUP_URL, MEUP_SPACE and"
            " MEUP_TOKEN, or give --url, --space and --token-file",
        ),
        (
            ("tail", "--url", "", "--space", "s"),
            "meup: the url and the token are missing; set MEUP_URL and MEUP_TOKEN, or give --url"
            " and --token-file",
        ),
        (
            ("tail", "--url", "ws://x", "--space", "s", "--token", " "),
            "meup: the token is missing; set MEUP_TOKEN, or give --token-file or --token",
        ),
        (
            ("tail", "--url", "ws://x", "--space", "s", "--token-file", "/nonexistent"),
            "meup: the token file /nonexistent cannot be read: no such file or directory",
        ),
        (
            ("tail", "--url", "http://x", "--space", "s", "--token", "t"),
            "meup: the address 'http://x' cannot be used",
        ),
        (
            ("gateway", "--config", "x.yaml", "--new-tokens"),
            "meup: --new-tokens is for --dev; a file has its own tokens\n",
        ),
        (
            ("gateway", "--config", "x.yaml", "--open"),
            "meup: --open is for --dev; sign in with a token of the file\n",
        ),
        (("gateway", "--dev", "--make-tokens"), "meup: --make-tokens is for a file"),
        (("doctor",), "meup: the url is missing; give it as an argument or set MEUP_URL"),
        (("doctor", "ws://a", "--url", "ws://b"), "meup: the url is given twice"),
        (("doctor", "ws://a", "--timeout", "0"), "meup: --timeout takes seconds above 0"),
        (("tail", "--kind", "/(/"), "meup: --kind: "),
        (
            ("demo", "--dir", "/nonexistent"),
            "meup: /nonexistent is not a folder; give one to --dir\n",
        ),
        (("inbox", "vote", "0123", "perhaps"), "a vote is approve or reject"),
        (("inbox", "--notify", "bell", "list"), "are for the live screen"),
        (("inbox", "--light", "list"), "are for the live screen"),
        (
            ("who", "--can", " ", "--url", "ws://x", "--space", "s", "--token", "t"),
            "--can names no tool",
        ),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, command: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MEUP_URL", "MEUP_SPACE", "MEUP_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert_fails(command(*arguments), exit_codes.USAGE, sentence)


def test_a_closed_output_is_no_defect() -> None:
    done = meup(command=("sh", "-c", f"{' '.join(COMMAND)} --version >&-"))
    assert (done.returncode, done.stdout, done.stderr) == (exit_codes.OK, "", "")


def test_a_closed_input_is_an_empty_one() -> None:
    program = f"{' '.join(COMMAND)} call files write_file - <&-"
    where = {"MEUP_URL": "ws://127.0.0.1:1", "MEUP_SPACE": "demo", "MEUP_TOKEN": "t"}
    done = meup(command=("sh", "-c", program), variables=where)
    assert (done.returncode, done.stdout) == (exit_codes.USAGE, "")
    assert done.stderr == "meup: there are no arguments in standard input; give a JSON object\n"


def test_help_can_be_written_in_every_encoding() -> None:
    done = meup("who", "--help", variables={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (exit_codes.OK, "")
    assert done.stdout.isascii()
    assert "MEUP_TOKEN=\\u2026 meup who" in done.stdout


LOADED = """
import sys
from meup_agent.cli.program import run
for command in sys.argv[1:]:
    run(command.split())
    print("loaded:", *sorted({"meup_agent.agent.agent", *HEAVY} & set(sys.modules)))
"""
HEAVY = (
    "httpx",
    "jsonschema",
    "mcp_types",
    "picows",
    "prometheus_client",
    "pydantic",
    "starlette",
    "uvicorn",
)


def test_a_command_loads_what_it_needs() -> None:
    """One after another in one process: those that need nothing come first."""
    program = LOADED.replace("*HEAVY", f"*{HEAVY}")
    audit = "audit --journal nowhere.db --proposal 4f2a --state pending"
    commands = ("--version", "token new", audit, "gateway --help", "--help", "who")
    done = meup(*commands, command=(sys.executable, "-c", program))
    loaded = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("loaded:")]
    *fast, config, helped, agent = loaded
    assert fast == [[], [], []]
    assert config == helped == ["pydantic"]
    assert agent == ["meup_agent.agent.agent", "pydantic"]


INTERRUPTED_WHILE_LOADING = """
import sys
sys.modules.pop("meup_agent.cli.program", None)
class Finder:
    def find_spec(self, name, *_):
        if name == "meup_agent.cli.program":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from meup_agent.cli import main
main()
"""

INTERRUPTED_IN_A_COMMAND = """
import os, signal, sys
for name in [each for each in sys.modules if each.partition(".")[0] == "meup_agent"]:
    del sys.modules[name]
class Finder:
    def find_spec(self, name, *_):
        if name == "{module}":
            {press}
sys.meta_path.insert(0, Finder())
from meup_agent.cli import main
main()
"""
PRESS = "os.kill(os.getpid(), signal.SIGINT)"
IN_A_CLASS = "raise RuntimeError('Error calling __set_name__') from KeyboardInterrupt()"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize("press", [PRESS, IN_A_CLASS])
@pytest.mark.parametrize(
    "module",
    [
        "meup_agent.cli.program",
        "meup_agent.cli.commands",
        "meup_agent.cli.commands.participants",
        "meup_agent.client.space",
    ],
)
def test_ctrl_c_in_the_first_moments_shows_no_traceback(module: str, press: str) -> None:
    program = INTERRUPTED_IN_A_COMMAND.format(module=module, press=press)
    where = ("--url", "ws://127.0.0.1:9", "--space", "demo", "--token", "x")
    done = meup("who", *where, command=(*PYTHON, "-c", program))
    assert (done.returncode, done.stdout, done.stderr) == (exit_codes.INTERRUPTED, "", "")


INTERRUPTED_AT_THE_END = """
import atexit, os, signal
atexit.register(os.kill, os.getpid(), signal.SIGINT)
from meup_agent.cli import main
main()
"""


@pytest.mark.parametrize(
    ("program", "code"),
    [(INTERRUPTED_WHILE_LOADING, exit_codes.INTERRUPTED), (INTERRUPTED_AT_THE_END, exit_codes.OK)],
)
def test_ctrl_c_before_and_after_the_work_shows_no_traceback(program: str, code: int) -> None:
    done = meup("--version", command=(*PYTHON, "-c", program))
    assert (done.returncode, done.stderr) == (code, "")


BROKEN = """
import sys
import meup_agent.cli.commands.tail as module
def fail(*_): raise RuntimeError("a defect\\nof ours \\x1b[31m")
module.SpaceOptions.address = fail
from meup_agent.cli import main
main()
"""


def test_a_defect_is_a_sentence_and_a_traceback_only_on_demand() -> None:
    command = (*PYTHON, "-c", BROKEN)
    done = meup("tail", command=command)
    assert done.returncode == exit_codes.FAILED
    assert done.stderr == (
        "meup: a defect of ours \\e[31m (RuntimeError; meup --debug shows more)\n"
    )
    assert "Traceback" in meup("--debug", "tail", command=command).stderr
    assert "Traceback" in meup("tail", command=command, variables={"MEUP_DEBUG": "1"}).stderr


def test_a_part_that_is_not_installed_is_named_with_its_extra(tmp_path: Path) -> None:
    program = "import sys; sys.modules['httpx2'] = None; from meup_agent.cli import main; main()"
    file = tmp_path / "mcp.json"
    done = meup("up", "--servers", str(file), command=(sys.executable, "-c", program))
    assert_fails(done, exit_codes.FAILED, "MCP needs httpx2, not installed here; run: pip install")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize("buffered", ["", "1"])
def test_full_disk_is_said_in_one_sentence(buffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "--version"],
            env={**os.environ, "PYTHONUNBUFFERED": buffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == exit_codes.FAILED
    assert done.stderr == (
        "meup: the output cannot be written, since the disk is full: make room, and try again\n"
    )
