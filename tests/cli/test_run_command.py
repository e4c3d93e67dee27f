"""`meup run`: an agent of a module, until a signal; and each way in which loading fails."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from meup_agent import Space
from meup_agent.cli.commands.run import load_agent
from meup_agent.gateway import ThreadedGateway
from tests.cli.commands import Failure, exit_codes
from tests.cli.participants import act_as, variables_of
from tests.cli.processes import INTERRUPT, TERMINATE, meup, running
from tests.conformance.gateways import MEW_V04, ExistingGateway

ECHO = """
from meup_agent import Agent
echo = Agent("echo")

@echo.tool
async def say(text: str) -> str:
    return text
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "echo_bot.py").write_text(ECHO)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "backend", "number"),
    [("echo_bot:echo", "asyncio", INTERRUPT), ("./echo_bot.py:echo", "trio", TERMINATE)],
)
def test_an_agent_answers_until_a_signal(
    gateway: ThreadedGateway, folder: Path, target: str, backend: str, number: int
) -> None:
    async def ask(space: Space) -> object:
        return await space.call("bob", "say", {"text": "hi"})

    arguments = ("run", target, "--backend", backend)
    with running(*arguments, cwd=folder, variables=variables_of(gateway, "bob")) as agent:
        agent.until("as 'bob'", stream="err")
        assert act_as(gateway, "alice", ask) == "hi"
        assert agent.end(number) == exit_codes.OK
    assert "Traceback" not in agent.err


def test_a_gateway_that_is_not_there_is_waited_for(folder: Path) -> None:
    extra = {"MEUP_URL": "ws://127.0.0.1:1", "MEUP_SPACE": "demo", "MEUP_TOKEN": "t"}
    with running("run", "echo_bot:echo", cwd=folder, variables=extra) as agent:
        agent.until("trying again", stream="err")
        assert agent.end(INTERRUPT) == exit_codes.OK


def test_a_gateway_that_goes_by_names_is_told_one(folder: Path) -> None:
    with ExistingGateway(MEW_V04).in_thread() as existing:
        settings = {"MEUP_URL": existing.url, "MEUP_SPACE": "demo", "MEUP_TOKEN": "t"}
        arguments = ("run", "echo_bot:echo", "--participant", "ella")
        with running(*arguments, cwd=folder, variables=settings) as agent:
            agent.until("as 'ella'", stream="err")
            assert existing.members("demo") == ["ella"]
            assert agent.end(INTERRUPT) == exit_codes.OK


def test_a_wrong_token_ends_it(gateway: ThreadedGateway, folder: Path) -> None:
    (folder / "token").write_text("wrong\n")
    settings = variables_of(gateway, "bob", MEUP_TOKEN="")
    done = meup("run", "echo_bot:echo", "--token-file", "token", cwd=folder, variables=settings)
    assert (done.returncode, done.stdout) == (exit_codes.NO_CONNECTION, "")
    *_, sentence = done.stderr.splitlines()
    assert sentence.startswith(f"meup: the gateway {gateway.url} refused the token")
    assert "Traceback" not in done.stderr


def test_a_module_that_fails_shows_its_own_lines(folder: Path) -> None:
    (folder / "bad_bot.py").write_text("import echo_bot\necho_bot.nothing\n")
    done = meup("run", "bad_bot:echo", cwd=folder)
    assert done.returncode == exit_codes.FAILED
    *traceback, sentence = done.stderr.splitlines()
    assert sentence.startswith("meup: bad_bot cannot be imported: AttributeError")
    assert [line for line in traceback if "File" in line] == [
        f'  File "{folder}/bad_bot.py", line 2, in <module>'
    ]


GOOD = """
from meup_agent import Agent
import bots_helper
bot = Agent("bot")
other = Agent("other")
number = 5
"""


@pytest.fixture
def bots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A folder with modules, as the current one; what is imported is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    (tmp_path / "bots_helper.py").write_text("")
    (tmp_path / "bots_good.py").write_text(GOOD)
    (tmp_path / "bots_single.py").write_text("from meup_agent import Agent\nthe = Agent('x')\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith(("bots", "meup_run_bots")):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("bots_good:bot", "bot"),
        ("bots_good.py:other", "other"),
        ("./bots_good.py:bot", "bot"),
        ("bots_single", "x"),
        ("bots_single.py", "x"),
        ("bots_single:the", "x"),
    ],
)
def test_an_agent_is_found(bots: Path, target: str, name: str) -> None:
    assert load_agent(target).name == name


def test_an_absolute_path_from_elsewhere(bots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert load_agent(f"{bots}/bots_good.py:bot").name == "bot"


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("bots_none:bot", "there is no module 'bots_none'"),
        ("bots_good.sub:bot", "there is no module 'bots_good.sub'"),
        ("nowhere.py:bot", "there is no file .*nowhere.py"),
        ("bots_good:bit", "bots_good has no 'bit'; its agents are: bot, other"),
        ("bots_good:number", "'number' in bots_good is of type int, not an Agent"),
        ("bots_good:Agent", "'Agent' in bots_good is a class, not an Agent"),
        ("bots_good", "does not say which agent to run; its agents are: bot, other"),
        ("bots_helper", "does not say which agent to run; there is no agent in it"),
        ("bots_good:", "'bots_good:' names no agent; expected module:agent"),
        (":bot", "':bot' names no agent"),
        ("my bots:bot", "'my bots' is not a module's name"),
    ],
)
def test_what_is_wrong_is_said(bots: Path, target: str, sentence: str) -> None:
    with pytest.raises(Failure, match=sentence) as caught:
        load_agent(target)
    assert caught.value.code == exit_codes.USAGE
    assert caught.value.details is None


def test_a_handler_that_cannot_work_is_shown_where_it_is_written(bots: Path) -> None:
    (bots / "bots_bad.py").write_text(
        "from meup_agent import Agent\nbad = Agent('bad')\n\n@bad.tool\nasync def t(x): ...\n"
        "\n@bad.on_chat\nasync def c(a, b): ...\n"
    )
    with pytest.raises(Failure, match="HandlerDefinitionError") as caught:
        load_agent("bots_bad.py:bad")
    assert "/meup_agent/" not in str(caught.value.details)


@pytest.mark.parametrize(
    ("source", "sentence", "shown"),
    [
        ("import surely_not_installed", "No module named 'surely", "import surely_not_installed"),
        ("def (:", "SyntaxError", "line 1"),
        ("raise SystemExit(0)", "ends the program", ""),
    ],
)
def test_why_an_import_fails_is_said(bots: Path, source: str, sentence: str, shown: str) -> None:
    (bots / "bots_bad.py").write_text(f"{source}\n")
    with pytest.raises(Failure, match=sentence) as caught:
        load_agent("bots_bad:agent")
    assert shown in str(caught.value.details)


def test_a_module_that_runs_its_agent_itself_is_refused(bots: Path) -> None:
    (bots / "bots_running.py").write_text(
        "from meup_agent import Agent\nbot = Agent('bot')\nbot.run('ws://localhost:1', space='s')\n"
    )
    with pytest.raises(Failure, match=r"put agent\.run\(\) under if __name__") as caught:
        load_agent("bots_running:bot")
    assert "Traceback" not in str(caught.value)
