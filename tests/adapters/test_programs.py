"""The example programs for agent frameworks, run as programs beside a real gateway."""

import os
import subprocess
import sys
from collections.abc import Generator
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import anyio
import pytest

from examples.calculator import agent as calculator
from meup_agent import Agent, Proposal
from meup_agent.gateway.config import ROLES
from meup_agent.gateway.server import Gateway, ThreadedGateway
from tests.adapters.frameworks import scripted_openai_model
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.interaction.people import OverSockets, join
from tests.patience import PATIENCE
from tests.programs import ROOT

EXAMPLES = ROOT / "examples" / "frameworks"

PARTICIPANTS = {"writer": ROLES["proposer"], "reviewer": [{"kind": "*"}], "tools": [{"kind": "*"}]}


@pytest.fixture
def gateway() -> Generator[ThreadedGateway]:
    with Gateway(participants=PARTICIPANTS).in_thread() as gateway:
        yield gateway


def reviewer() -> Agent:
    agent = Agent("reviewer")

    @agent.on_proposal
    async def approve(proposal: Proposal) -> None:
        await proposal.fulfill()

    return agent


def environment(gateway: ThreadedGateway) -> dict[str, str]:
    where = {"MEUP_URL": gateway.url, "MEUP_SPACE": "demo", "MEUP_TOKEN": gateway.token("writer")}
    return {**os.environ, **where, "PYTHONPATH": str(ROOT)}


def load(name: str) -> ModuleType:
    """An example as a module."""
    spec = spec_from_file_location(name, EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def run_program(gateway: ThreadedGateway, name: str) -> str:
    done = await anyio.run_process(
        [sys.executable, str(EXAMPLES / name)],
        env=environment(gateway),
        check=False,
        stderr=subprocess.PIPE,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize(
    ("program", "said"), [("pydantic_ai_proposer.py", "tools_add"), ("langchain_proposer.py", "5")]
)
async def test_proposer_is_answered(gateway: ThreadedGateway, program: str, said: str) -> None:
    meeting = OverSockets(gateway)
    async with join(meeting, calculator, "tools"), join(meeting, reviewer()):
        assert said in await run_program(gateway, program)


async def test_own_tool_runs_when_it_is_approved(gateway: ThreadedGateway) -> None:
    async with join(OverSockets(gateway), reviewer()):
        assert "deleted" in await run_program(gateway, "pydantic_ai_approvals.py")


async def test_openai_agent_is_answered(
    gateway: ThreadedGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment(gateway).items():
        if name.startswith("MEUP_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    seen: dict[str, str] = {}
    model = scripted_openai_model([("tools_add", {"a": 2, "b": 3})], seen)
    meeting = OverSockets(gateway)
    with anyio.fail_after(PATIENCE):
        async with join(meeting, calculator, "tools"), join(meeting, reviewer()):
            await load("openai_agents_proposer.py").main(model)
    assert seen == {"0": "5.0"}
    assert capsys.readouterr().out == "done\n"


async def test_model_reviews_what_is_proposed(gateway: ThreadedGateway) -> None:
    meeting = OverSockets(gateway)
    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, calculator, "tools"),
            join(meeting, load("model_reviewer.py").agent, "reviewer"),
            join(meeting, "writer") as space,
            space.propose("tools", "add", {"a": 2, "b": 3}) as proposal,
        ):
            assert await proposal.result() == 5
