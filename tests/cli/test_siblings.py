"""Agents that run as processes, and a person who decides beside them with their tokens."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meup_agent.gateway import Gateway, ThreadedGateway
from tests.cli.commands import exit_codes
from tests.cli.participants import variables_of
from tests.cli.processes import TERMINATE, Running, meup, running

pytestmark = pytest.mark.rule("5.who.me.beside")

PARTICIPANTS = {
    "alice": [{"kind": "*"}],
    "files": [{"kind": "mcp.request"}],
    "paula": [{"kind": "mcp.proposal"}],
    "reviewer": [{"kind": "*"}],
}

AGENTS = """
import anyio
from meup_agent import Agent, Context, Proposal
from meup_agent.errors import AlreadyDecided

files, paula, reviewer = Agent("files"), Agent("paula"), Agent("reviewer")


@files.tool
async def write(path: str) -> str:
    print("wrote", path, flush=True)
    return f"{path} is written"


@paula.tool
async def ask(ctx: Context) -> str:
    async with ctx.space.propose("files", "write", {"path": "a"}, to="reviewer") as proposal:
        print(f"proposed <{proposal.id}>", flush=True)
        outcome = await proposal.outcome()
    return f"{type(outcome).__name__}: {outcome.reason}"


told = anyio.Event()


@reviewer.on_proposal
async def review(proposal: Proposal, ctx: Context) -> None:
    print(f"looks at <{proposal.id}>", flush=True)
    try:
        await told.wait()
        await proposal.fulfill()
    except AlreadyDecided as error:
        print(error.state, flush=True)
    finally:
        print("ends because of", ctx.reason, flush=True)


@reviewer.tool
async def decide() -> None:
    told.set()
"""


class Scene:
    """A gateway that also speaks HTTP, and agents to run there."""

    def __init__(self, gateway: ThreadedGateway, folder: Path) -> None:
        self._gateway = gateway
        self._folder = folder

    def variables(self, who: str) -> dict[str, str]:
        return variables_of(self._gateway, who)

    @contextmanager
    def agent(self, name: str) -> Generator[Running]:
        """An agent's process, which keeps its connection and warns of nothing."""
        variables = self.variables(name)
        with running("run", f"agents:{name}", cwd=self._folder, variables=variables) as agent:
            agent.until(f"as '{name}'", stream="err")
            yield agent
            assert agent.end(TERMINATE) == exit_codes.OK
        said = agent.err.splitlines()
        assert [line for line in said if "dropped" in line or "disconnected" in line] == []
        assert len([line for line in said if f"as '{name}'" in line]) == 1

    def beside(self, who: str, *words: str) -> str:
        """The output of a command that is run beside the participant's agent."""
        done = meup(*words, variables=self.variables(who))
        assert done.returncode == exit_codes.OK, done.stderr
        return done.stdout + done.stderr


@contextmanager
def open_scene(folder: Path, agents: str) -> Generator[Scene]:
    (folder / "agents.py").write_text(agents)
    with Gateway(participants=PARTICIPANTS).in_thread() as gateway:
        yield Scene(gateway, folder)


@pytest.fixture
def scene(tmp_path: Path) -> Generator[Scene]:
    with open_scene(tmp_path, AGENTS) as scene:
        yield scene


def proposal_of(agent: Running) -> str:
    """The id of the first proposal that an agent prints."""
    return agent.until(">").partition("<")[2].partition(">")[0]


def test_a_person_withdraws_what_an_agent_proposed(scene: Scene) -> None:
    call = ("call", "paula", "ask", "--as", "alice")
    with scene.agent("paula") as paula:
        with running(*call, variables=scene.variables("alice")) as asking:
            proposal = proposal_of(paula)
            said = scene.beside("paula", "withdraw", proposal, "--reason", "policy")
            assert f"proposal {proposal} is withdrawn" in said
            assert asking.end() == exit_codes.OK
        assert asking.out == "Withdrawal: policy\n"


def test_a_person_rejects_what_an_agent_looks_at(scene: Scene) -> None:
    call = ("call", "files", "write", "path=a", "--as", "paula", "--to", "reviewer")
    with scene.agent("files") as files, scene.agent("reviewer") as reviewer:
        with running(*call, variables=scene.variables("paula")) as asking:
            proposal = proposal_of(reviewer)
            scene.beside("reviewer", "reject", proposal, "--reason", "unsafe")
            reviewer.until("ends because of unsafe: another process of ours rejected it")
            assert asking.end() == exit_codes.REJECTED
        assert "rejected by 'reviewer': unsafe" in asking.err
    assert files.out == ""
    assert "fulfilled" not in reviewer.out


def test_a_person_fulfills_what_an_agent_looks_at(scene: Scene) -> None:
    call = ("call", "files", "write", "path=a", "--as", "paula", "--to", "reviewer")
    with scene.agent("files") as files, scene.agent("reviewer") as reviewer:
        with running(*call, variables=scene.variables("paula")) as asking:
            proposal = proposal_of(reviewer)
            assert "a is written" in scene.beside("reviewer", "fulfill", proposal, "--yes")
            assert asking.end() == exit_codes.OK
        assert asking.out == "a is written\n"
        scene.beside("alice", "call", "reviewer", "decide", "--as", "alice")
        reviewer.until("fulfilled\nends because of None\n")
    assert files.out == "wrote a\n"


def test_a_person_asks_their_own_agent(scene: Scene) -> None:
    with scene.agent("files") as files:
        called = scene.beside("files", "call", "files", "write", "path=b", "--as", "files")
        assert called == "b is written\n"
    assert files.out == "wrote b\n"
