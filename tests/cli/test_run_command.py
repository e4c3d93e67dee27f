"""`meup run`: somebody's agent, until it is told to stop."""

from pathlib import Path

import anyio
import pytest

from meup_agent import Agent
from meup_agent.cli import exit_codes
from meup_agent.gateway.embedded import ThreadedGateway
from tests.cli.processes import INTERRUPT, PATIENCE, TERMINATE, meup, running
from tests.existing.gateways import MEW_V04, ExistingGateway

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


def where(gateway: ThreadedGateway, token: str | None = None) -> dict[str, str]:
    return {
        "MEUP_URL": gateway.url,
        "MEUP_SPACE": "demo",
        "MEUP_TOKEN": gateway.token("bob") if token is None else token,
    }


@pytest.mark.parametrize(
    ("target", "backend", "number"),
    [("echo_bot:echo", "asyncio", INTERRUPT), ("./echo_bot.py:echo", "trio", TERMINATE)],
)
def test_an_agent_answers_until_a_signal(
    gateway: ThreadedGateway, folder: Path, target: str, backend: str, number: int
) -> None:
    async def ask() -> object:
        token = gateway.token("alice")
        async with Agent("x").join(gateway.url, space="demo", token=token) as space:
            with anyio.fail_after(PATIENCE):
                return await space.call("bob", "say", {"text": "hi"})

    arguments = ("run", target, "--backend", backend)
    with running(*arguments, cwd=folder, variables=where(gateway)) as agent:
        agent.until("as 'bob'", stream="err")
        assert anyio.run(ask) == "hi"
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
    settings = {**where(gateway), "MEUP_TOKEN": ""}
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
