"""The examples, run as programs at a gateway made of `examples/space.yaml`."""

from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from examples import fulfiller
from examples.tutorial import reviewer
from meup_agent import Agent, Chat, Fulfillment, Rejection, Space
from meup_agent.errors import InvalidArguments, RequestError, ToolError
from meup_agent.gateway import Gateway, ThreadedGateway, dev_config, load_config
from tests.cli.participants import act_as, variables_of
from tests.gateways import ROLES
from tests.programs import ROOT, Program, program

EXAMPLES = ROOT / "examples"


def run_example(
    gateway: ThreadedGateway, name: str, participant: str, cwd: Path = ROOT
) -> AbstractContextManager[Program]:
    return program([EXAMPLES / name], variables_of(gateway, participant), cwd=cwd)


@contextmanager
def serving_example(
    gateway: ThreadedGateway, name: str, participant: str, cwd: Path = ROOT
) -> Generator[Program]:
    """An example that has joined, and that Ctrl-C ends well after the block."""
    with run_example(gateway, name, participant, cwd) as example:
        example.wait_for("connected to")
        yield example
        assert example.stop() == 0


def test_echo_bot_has_ten_lines() -> None:
    lines = (EXAMPLES / "echo_bot.py").read_text(encoding="utf-8").splitlines()
    code = [line for line in lines[1:] if line.strip()]  # the first line is the docstring
    assert len(code) <= 10


def test_echo_bot_says_again_what_others_say(gateway: ThreadedGateway) -> None:
    agent = Agent("test")
    heard: list[Chat] = []
    answered = anyio.Event()

    @agent.on_chat
    async def listen(chat: Chat) -> None:
        heard.append(chat)
        answered.set()

    async def talk(space: Space) -> None:
        # An answer, which it must leave alone, and then something new.
        about = await space.chat("I agree", about="something")
        said = await space.chat("Good morning")
        await answered.wait()
        assert [(chat.sender, chat.text, chat.about) for chat in heard] == [
            ("tools", "Good morning", said)
        ]
        assert about != said

    with serving_example(gateway, "echo_bot.py", "tools"):
        act_as(gateway, "proposer", talk, agent)


def test_calculator_answers(gateway: ThreadedGateway) -> None:
    async def calculate(space: Space) -> None:
        names = [tool["name"] for tool in await space.offers.tools("tools")]
        assert names == ["add", "divide", "summarize"]
        assert await space.call("tools", "add", {"a": 1, "b": 2}) == 3
        assert await space.call("tools", "divide", {"dividend": 22, "divisor": 7}) == 3.143
        assert await space.call("tools", "summarize", {"numbers": [1, 2, 6]}) == {
            "count": 3,
            "smallest": 1,
            "largest": 6,
            "mean": 3,
        }
        with pytest.raises(ToolError, match="division by zero"):
            await space.call("tools", "divide", {"dividend": 1, "divisor": 0})
        with pytest.raises(
            InvalidArguments, match="'numbers' is \\[\\], which should be non-empty"
        ):
            await space.call("tools", "summarize", {"numbers": []})

    with serving_example(gateway, "calculator.py", "tools"):
        act_as(gateway, "fulfiller", calculate)


def test_proposer_gets_what_the_fulfiller_decides(gateway: ThreadedGateway) -> None:
    with (
        run_example(gateway, "calculator.py", "tools") as calculator,
        run_example(gateway, "fulfiller.py", "fulfiller") as deciding,
    ):
        calculator.wait_for("connected to")
        deciding.wait_for("connected to")
        with run_example(gateway, "proposer.py", "proposer") as proposer:
            assert proposer.wait() == 0
        assert proposer.stderr == []
        assert proposer.stdout == [
            "fulfilled by fulfiller: 3.143",
            "rejected by fulfiller: invalid",
            "fulfiller: nobody divides by zero",
            "fulfilled by fulfiller: 0.666667",
            "  arguments.digits: 6",
            "    instead of 12",
            "3.0",
        ]


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        pytest.param("divide", {"dividend": 1, "divisor": "0"}, "invalid", id="divisor-in-quotes"),
        pytest.param("divide", {"dividend": 1}, "invalid", id="no-divisor"),
        pytest.param(
            "divide",
            {"dividend": 1, "divisor": 3, "digits": "12"},
            "invalid",
            id="digits-in-quotes",
        ),
        pytest.param("delete", {}, "incapable", id="unknown-tool"),
        pytest.param("print_pages", {"pages": "9999"}, "other", id="pages-in-quotes"),
        pytest.param("print_pages", {}, "other", id="no-pages"),
    ],
)
def test_fulfillers_let_through_only_what_they_understand(
    gateway: ThreadedGateway, tool: str, arguments: dict[str, object], reason: str
) -> None:
    agent = reviewer.agent if tool == "print_pages" else fulfiller.agent

    async def propose(space: Space) -> None:
        joining = agent.join(gateway.url, space="demo", token=gateway.token("fulfiller"))
        async with joining, space.propose("tools", tool, arguments, to="fulfiller") as proposal:
            outcome = await proposal.outcome()
        assert isinstance(outcome, Rejection)
        assert outcome.reason == reason

    act_as(gateway, "proposer", propose)


def test_reviewer_tells_a_tool_that_failed_without_a_traceback(
    gateway: ThreadedGateway, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    tools = Agent("jammed")

    @tools.tool
    async def print_pages(pages: int) -> None:
        raise ValueError("paper jam")

    async def propose(space: Space) -> None:
        async with (
            tools.join(gateway.url, space="demo", token=gateway.token("tools")),
            reviewer.agent.join(gateway.url, space="demo", token=gateway.token("fulfiller")),
            space.propose("tools", "print_pages", {"pages": 3}, to="fulfiller") as proposal,
        ):
            outcome = await proposal.outcome()
        assert isinstance(outcome, Fulfillment)
        assert outcome.is_error
        assert outcome.value is None

    act_as(gateway, "proposer", propose)
    assert "it failed" in capsys.readouterr().out
    assert not [each for each in caplog.records if "review" in each.getMessage()]


def test_fulfiller_notes_a_withdrawal(gateway: ThreadedGateway) -> None:
    started = anyio.Event()
    tools = Agent("slow tools")

    @tools.tool
    async def add() -> None:
        started.set()
        await anyio.sleep_forever()

    async def propose_and_withdraw(space: Space) -> None:
        joining = tools.join(gateway.url, space="demo", token=gateway.token("tools"))
        async with joining, space.propose("tools", "add", to="fulfiller"):
            await started.wait()

    with run_example(gateway, "fulfiller.py", "fulfiller") as deciding:
        deciding.wait_for("connected to")
        act_as(gateway, "proposer", propose_and_withdraw)
        deciding.wait_for("'proposer' took a proposal back: no_longer_needed")


@asynccontextmanager
async def exporting(space: Space, tool: str) -> AsyncGenerator[TaskGroup]:
    """A long export that has begun, and that is cancelled before its end."""
    begun = anyio.Event()

    async def wait_for_it() -> None:
        rows, note = {"rows": 10**9}, lambda _: begun.set()
        with pytest.raises(RequestError, match="cancelled"):
            await space.call("tools", tool, rows, timeout=None, on_progress=note)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_for_it)
        await begun.wait()
        yield tasks


@pytest.mark.parametrize("tool", ["export", "export_in_a_thread"])
def test_long_job_leaves_whole_files(gateway: ThreadedGateway, tmp_path: Path, tool: str) -> None:
    async def export(space: Space) -> None:
        name = await space.call("tools", tool, {"rows": 3})
        assert (tmp_path / name).read_text(encoding="utf-8") == "0,0\n1,1\n2,4\n"
        async with exporting(space, tool) as tasks:
            assert [path async for path in anyio.Path(tmp_path).glob("*.part")]
            tasks.cancel_scope.cancel()

    with serving_example(gateway, "long_job.py", "tools", tmp_path) as job:
        act_as(gateway, "fulfiller", export)
        job.wait_for("has stopped")
        assert [path.suffix for path in tmp_path.iterdir()] == [".csv"]


@pytest.mark.parametrize("tool", ["export", "export_in_a_thread"])
def test_long_job_cleans_up_when_stopped(
    gateway: ThreadedGateway, tmp_path: Path, tool: str
) -> None:
    async def begin_and_stop(space: Space) -> None:
        async with exporting(space, tool):
            job.interrupt()
            await anyio.to_thread.run_sync(job.wait_for, "Ctrl-C again")
            job.interrupt()

    with run_example(gateway, "long_job.py", "tools", tmp_path) as job:
        job.wait_for("connected to")
        act_as(gateway, "fulfiller", begin_and_stop)
        assert job.wait() == 0
    assert list(tmp_path.iterdir()) == []


def test_observed_agent_writes_down_what_happens_to_it(gateway: ThreadedGateway) -> None:
    async def call_and_give_up(space: Space) -> None:
        assert await space.call("tools", "wait", {"seconds": 0}) == "waited"
        with pytest.raises(ToolError):
            await space.call("tools", "wait", {"seconds": -1})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(space.call, "tools", "wait", {"seconds": 3600})
            await anyio.to_thread.run_sync(observed.wait_for, "HandlerStarted", 3)
            tasks.cancel_scope.cancel()

    with serving_example(gateway, "observed.py", "tools") as observed:
        act_as(gateway, "fulfiller", call_and_give_up)
        observed.wait_for("wait was stopped by fulfiller")
    names = [line.partition(" ")[0] for line in observed.stdout]
    assert [name for name in names if name.startswith("Handler")] == [
        "HandlerStarted",
        "HandlerFinished",
        "HandlerStarted",
        "HandlerFailed",
        "HandlerStarted",
        "HandlerStopping",
        "HandlerStopped",
    ]
    assert (names[0], names[-2], names[-1]) == ("Connected", "Left", "wait")
    assert "{'started': 3, 'finished': 1, 'failed': 1, 'stopped': 1" in observed.stdout[-1]


def test_a_space_is_looked_at_beside_the_running_agent(gateway: ThreadedGateway) -> None:
    async def be_looked_at(space: Space) -> None:
        with run_example(gateway, "look_on.py", "fulfiller") as looking:
            await anyio.to_thread.run_sync(looking.wait_for, "here: fulfiller")
            await space.chat("hello")
            await anyio.to_thread.run_sync(looking.wait_for, "fulfiller says chat")
        assert space.connected

    act_as(gateway, "fulfiller", be_looked_at)


def test_a_program_speaks_beside_the_running_agent(gateway: ThreadedGateway) -> None:
    async def runs_on(space: Space) -> None:
        with space.watch() as envelopes:
            with run_example(gateway, "beside.py", "fulfiller") as person:
                async for envelope in envelopes:
                    if (envelope.kind, envelope.sender) == ("chat", "fulfiller"):
                        break
                await anyio.to_thread.run_sync(person.wait_for, "said as fulfiller")
        assert space.connected

    act_as(gateway, "fulfiller", runs_on)


@pytest.mark.thorough
def test_agents_are_tested_without_a_network() -> None:
    names = (
        *("test_without_network.py", "test_bad_connection.py", "test_lost_connection.py"),
        "test_expire_overnight.py",
    )
    files = [EXAMPLES / name for name in names]
    with program(["-m", "pytest", "-q", "-p", "no:cacheprovider", *files]) as tests:
        assert tests.wait() == 0, str(tests)
    assert "12 passed" in tests.stdout[-1]


def test_space_file_has_the_roles_of_the_dev_gateway() -> None:
    (written,) = load_config(EXAMPLES / "space.yaml").spaces
    (dev,) = dev_config().spaces
    assert written.id == dev.id
    assert {name: each.capabilities.patterns for name, each in written.participants.items()} == {
        name: dev.participants[name].capabilities.patterns for name in ROLES
    }
    tokens = [each.tokens for each in written.participants.values()]
    assert all(len(each) == 1 for each in tokens)
    assert len(set(tokens)) == len(tokens)


def test_manager_that_may_do_everything_leaves_nothing_granted() -> None:
    config: dict[str, list[dict[str, Any]]] = {
        "manager": [{"kind": "*"}],
        "proposer": [{"kind": "mcp/proposal"}],
    }
    with Gateway(participants=config).in_thread() as gateway:
        with run_example(gateway, "manager.py", "manager") as manager:
            assert manager.wait() == 0
    assert manager.stdout[1] == "we may grant everything of MCP; it was taken back"


def test_the_index_names_each_example() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = [*EXAMPLES.glob("*"), *(EXAMPLES / "frameworks").glob("*.py")]
    named = [each for each in files if each.suffix in (".py", ".yaml", ".service")]
    assert named
    assert [each.name for each in named if f"{each.name}`" not in index] == []


def test_manager_manages_a_space() -> None:
    config: dict[str, list[dict[str, Any]]] = {
        "manager": [
            {"kind": "capability/*"},
            {"kind": "space/*"},
            {"kind": "mcp/request", "payload": {"method": "tools/call"}},
            {"kind": "chat"},
        ],
        "proposer": [{"kind": "mcp/proposal"}],
    }
    with (
        Gateway(participants=config).in_thread() as gateway,
        run_example(gateway, "manager.py", "manager") as manager,
    ):
        assert manager.wait() == 0
    assert manager.stderr == []
    assert manager.stdout == [
        "proposer may call add",
        "not more than we may ourselves: capability_lacking",
        "proposer may not call add any more",
        "guest may join",
        "guest may not join any more",
    ]


ALONE = [
    ("proposer.py", "proposer", "start calculator.py"),
    ("cascade.py", "asker", "start fulfiller.py"),
    ("stream_a_draft.py", "author", "start this with"),
    ("supervisor.py", "admin", "start controlled_worker.py"),
    ("manager.py", "guest", "run this as one that may grant"),
    ("librarian.py missing", "tools", "there is no folder"),
    ("learn.py", "proposer", "pass a journal's file"),
    ("read_a_journal.py", "proposer", "pass a journal's file"),
]
"""Examples, as whom each runs, and the beginning of what it says."""


@pytest.mark.thorough
def test_an_example_alone_says_what_it_needs() -> None:
    more = dict.fromkeys(("asker", "guest"), ROLES["proposer"])
    roles = {**ROLES, **more, "author": ROLES["fulfiller"], "admin": [{"kind": "*"}]}
    with Gateway(participants=roles).in_thread() as gateway, ExitStack() as running:
        # At once, since some wait a while for others; none is what another waits for.
        started = [
            running.enter_context(
                program([EXAMPLES / name, *arguments], variables_of(gateway, participant))
            )
            for (name, *arguments), participant in [(words.split(), who) for words, who, _ in ALONE]
        ]
        assert [alone.wait() for alone in started] == [1] * len(ALONE)
    for alone, (_, _, says) in zip(started, ALONE, strict=True):
        (line,) = alone.stderr
        assert line.startswith(says)
