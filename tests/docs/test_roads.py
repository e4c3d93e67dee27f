"""The roads through the code are what is entered when each case runs, and nothing besides."""

import json
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dis import opmap
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import anyio
import pytest
from websockets.asyncio.client import connect

import meup_agent
from meup_agent import Agent, Proposal
from meup_agent.cli import program
from meup_agent.gateway.embedded import Gateway
from meup_agent.protocol import kinds, payloads
from tests.interaction.people import InMemory, Notes, gathered, join, raw
from tests.patience import PATIENCE
from tests.programs import ROOT

PACKAGE = Path(meup_agent.__file__).parent
TESTS = str(ROOT / "tests")
RESUME = opmap["RESUME"]
PAGE = (ROOT / "docs" / "explanation" / "roads.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
FUNCTION = re.compile(r"^\| `([\w.]+:[\w.<>]+)` \|", re.MULTILINE)

SECTIONS = dict(SECTION.findall(PAGE))
ROADS = {title: FUNCTION.findall(text) for title, text in SECTIONS.items()}
EVERYBODY: dict[str, list[dict[str, Any]]] = {"alice": [{"kind": "**"}], "bob": [{"kind": "**"}]}


class Step(NamedTuple):
    """A function that is entered, and those by which its call came into each file on its way."""

    name: str
    way: tuple[str, ...]


class Trace:
    """The functions of the package that this thread enters, in their order, and from where.

    Left out are a gateway in memory, where it only stands between two agents, and what Python makes
    of comprehensions and lambdas.
    """

    def __init__(self, leave_out: tuple[str, ...] = ()) -> None:
        self.entered: list[str] = []
        self.calls: set[tuple[str, str]] = set()
        """Pairs of files of which the first calls the second."""
        self.steps: list[Step] = []
        self._begun: set[int] = set()  # calls that have neither returned nor waited yet
        self._woken: set[int] = set()  # those with which the loop goes on
        self._leave_out = leave_out
        self._names: dict[CodeType, str | None] = {}

    @contextmanager
    def on(self) -> Generator[None]:
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "return":
            self._begun.discard(id(frame))
            self._woken.discard(id(frame))
        elif event == "call":
            operation, argument = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
            # The argument of RESUME tells a start, 0, from what follows a yield or an await.
            if operation == RESUME and not argument & 3:
                self._begun.add(id(frame))
            if name := self._name(frame.f_code):
                self.entered.append(name)
                if caller := self._caller(frame):
                    self.calls.add((file_of(caller), file_of(name)))
                self._step(name, frame)

    def _step(self, name: str, entered: FrameType) -> None:
        """Note the calls that led to a function, since the loop woke the task."""
        way: list[str] = []
        frame: FrameType | None = entered
        root = entered
        while frame is not None:
            if caller := self._name(frame.f_code):
                if way and file_of(way[0]) == file_of(caller):
                    way.pop(0)
                way.insert(0, caller)
                root = frame
                if id(frame) not in self._begun:
                    break
            elif frame.f_code.co_filename.startswith(TESTS):
                if frame.f_code.co_filename != __file__:
                    return  # a peer's, played by the test
                break
            frame = frame.f_back
        # On Python 3.11 a task into which an exception is thrown goes on without being entered.
        if way[0] != name and id(root) not in self._begun | self._woken:
            self.entered.append(way[0])
            self.steps.append(Step(way[0], (way[0],)))
        self._woken.add(id(root))
        self.steps.append(Step(name, tuple(way)))

    def _caller(self, frame: FrameType) -> str | None:
        above = frame.f_back
        while above is not None and not self._name(above.f_code):
            above = above.f_back
        return None if above is None else self._name(above.f_code)

    def _name(self, code: CodeType) -> str | None:
        if code not in self._names:
            self._names[code] = self._name_anew(code)
        return self._names[code]

    def _name_anew(self, code: CodeType) -> str | None:
        path = Path(code.co_filename)
        if not path.is_relative_to(PACKAGE) or code.co_name.startswith("<"):
            return None
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if module.startswith(self._leave_out):
            return None
        return f"{module.removesuffix('.__init__')}:{code.co_qualname}"


def file_of(function: str) -> str:
    return function.partition(":")[0]


async def frame_at_a_gateway(trace: Trace) -> None:
    async with Gateway(participants=EVERYBODY) as gateway:
        header = {"Authorization": f"Bearer {gateway.token('alice')}"}
        address = f"{gateway.url.removesuffix('/ws')}/ws?space=demo"
        async with connect(
            address, additional_headers=header, proxy=None, open_timeout=PATIENCE
        ) as alice:
            await alice.recv()  # the welcome
            await alice.recv()  # its own presence
            said = {"protocol": "meup/v0.1", "id": "e1", "from": "alice", "kind": "chat"}
            with trace.on():
                await alice.send(json.dumps({**said, "payload": {"message": "hello"}}))
                await alice.recv()


async def frame_at_an_agent(trace: Trace) -> None:
    meeting, tools = InMemory(), Agent("tools")

    @tools.tool
    async def add(a: int, b: int) -> int:
        return a + b

    async with join(meeting, tools), raw(meeting) as peer:
        call = {"name": "add", "arguments": {"a": 1, "b": 2}}
        with trace.on():
            await peer.request("tools", "tools/call", call, id="r")
            await peer.response("r")


async def call(trace: Trace) -> None:
    meeting = InMemory()
    async with (
        raw(meeting) as peer,
        join(meeting, "second") as space,
        anyio.create_task_group() as tasks,
    ):

        async def answer() -> None:
            request = await peer.hear(lambda envelope: envelope.kind == kinds.MCP_REQUEST)
            result = payloads.result(request.id, {"content": []})
            about = (request.id,)
            await peer.say(kinds.MCP_RESPONSE, result, id="x", to=("second",), correlation=about)

        tasks.start_soon(answer)
        with trace.on():
            await space.request("mallory", "work")


async def withdrawal(trace: Trace) -> None:
    meeting, reviewer, notes = InMemory(), Agent("reviewer"), Notes()

    @reviewer.on_proposal
    async def review(proposal: Proposal) -> None:
        notes("runs")
        try:
            await anyio.sleep_forever()
        finally:
            notes("stopped")

    async with gathered(meeting, reviewer, "proposer") as (_, space):
        proposing = space.propose("tools", "write", to="reviewer")
        await proposing.__aenter__()
        await notes.until("runs")
        with trace.on():
            await proposing.__aexit__(None, None, None)
            await notes.until("stopped")
            await anyio.wait_all_tasks_blocked()


def command(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    with Gateway(participants=EVERYBODY).in_thread() as gateway:
        monkeypatch.setenv("MEUP_URL", gateway.url)
        monkeypatch.setenv("MEUP_SPACE", "demo")
        monkeypatch.setenv("MEUP_TOKEN", gateway.token("alice"))
        # It is loaded by the command, as in a process of its own.
        monkeypatch.delitem(sys.modules, "meup_agent.cli.commands.chat", raising=False)
        with trace.on():
            assert program.run(["chat", "hello"]) == 0


IN_A_LOOP: dict[str, Callable[[Trace], Any]] = {
    "A frame in at a gateway": frame_at_a_gateway,
    "A frame in at an agent": frame_at_an_agent,
    "A call": call,
    "A withdrawal": withdrawal,
}

BETWEEN: dict[str, tuple[str, ...]] = {
    "A frame in at an agent": ("gateway", "protocol.space", "testing"),
    "A call": ("gateway", "protocol.space", "testing"),
    "A withdrawal": ("testing",),
}
"""Folders of the gateway in memory through which a road goes without being its matter."""


def travel(road: str, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """The trace of a road that was gone before: the first time, much is made and kept."""

    async def bounded(trace: Trace) -> None:
        with anyio.fail_after(PATIENCE):
            await IN_A_LOOP[road](trace)

    for _ in range(2):
        trace = Trace(BETWEEN.get(road, ()))
        if road == "A command":
            command(trace, monkeypatch)
        else:
            anyio.run(bounded, trace)
    return trace


def off_the_road(listed: list[str], entered: list[str]) -> str | None:
    """The first function of a road that is not entered after the one before it."""
    rest = iter(entered)
    return next((name for name in listed if name not in rest), None)


def ways(listed: list[str], steps: list[Step]) -> list[tuple[str, ...]]:
    """The calls by which the road comes to each function of its table."""
    rest = iter(steps)
    return [next(step.way for step in rest if step.name == name) for name in listed]


def hops_not_listed(listed: list[str], found: list[tuple[str, ...]]) -> list[str]:
    """The functions by which the road comes into a further file, and which it does not list."""
    return list(dict.fromkeys(name for way in found for name in way if name not in listed))


def files_gone_back_to(found: list[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Pairs of files with a call into one that the same task of the loop has been in before."""
    order: dict[str, list[str]] = {}
    back = set[tuple[str, ...]]()
    for way in found:
        files = order.setdefault(way[0], [])
        files.extend(name for name in map(file_of, way) if name not in files)
        for caller, called in pairwise(map(file_of, way)):
            if files.index(called) < files.index(caller):
                back.add(tuple(sorted((caller, called))))
    return back


def also_entered(listed: list[str], trace: Trace) -> str:
    """The sentence of a page about files that its table does not name."""
    further = {file_of(each) for each in trace.entered} - {file_of(each) for each in listed}
    folders: dict[str, list[str]] = {}
    for file in sorted(further):
        folder, _, name = file.rpartition(".")
        folders.setdefault(folder, []).append(name)
    words = [
        (f"{folder}: " if folder else "") + ", ".join(names) for folder, names in folders.items()
    ]
    return f"Also entered: {'; '.join(words)}."


def call_each_other(trace: Trace) -> set[tuple[str, ...]]:
    """Pairs of files of which each calls the other."""
    return {
        tuple(sorted(pair))
        for pair in trace.calls
        if pair[::-1] in trace.calls and len({*pair}) == 2
    }


@pytest.mark.parametrize("road", ROADS)
def test_functions_are_entered_in_the_order_of_the_page(
    road: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = travel(road, monkeypatch)
    wrong = off_the_road(ROADS[road], [step.name for step in trace.steps])
    assert wrong is None, (
        f"docs/explanation/roads.md, {road!r}: {wrong} is not entered there; what is, in order:\n"
        + "\n".join(dict.fromkeys(trace.entered))
    )


@pytest.mark.parametrize("road", ROADS)
def test_each_hop_between_files_is_a_row(road: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ways(ROADS[road], travel(road, monkeypatch).steps)
    hops = hops_not_listed(ROADS[road], found)
    assert not hops, f"docs/explanation/roads.md, {road!r}: the road goes through {hops}, too"


@pytest.mark.parametrize("road", ROADS)
def test_no_road_is_longer_than_its_page_says(road: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = travel(road, monkeypatch)
    text = " ".join(SECTIONS[road].split())
    said, entered = also_entered(ROADS[road], trace), set(trace.entered)
    assert said in text, f"docs/explanation/roads.md, {road!r}, has not the sentence: {said}"
    count = re.search(r"(\d+) functions are entered in all\.", text)
    assert count is not None
    # Fewer with another version of Python.
    assert len(entered) <= int(count[1]), sorted(entered)


@pytest.mark.parametrize("road", ROADS)
def test_files_that_call_each_other_are_named_with_a_reason(
    road: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = {*re.findall(r"^- `([\w.]+)` and `([\w.]+)`: \w", SECTIONS[road], re.MULTILINE)}
    trace = travel(road, monkeypatch)
    assert pairs == call_each_other(trace)
    # A circle of three files is none of two, and leads back all the same.
    assert files_gone_back_to(ways(ROADS[road], trace.steps)) <= pairs


def test_five_roads_are_on_the_page() -> None:
    assert [*ROADS] == [*IN_A_LOOP, "A command"]
    assert all(len(road) > 10 for road in ROADS.values())


def test_a_road_that_is_not_taken_is_found() -> None:
    assert off_the_road(["a", "c"], ["a", "b", "c"]) is None
    assert off_the_road(["c", "a"], ["a", "b", "c"]) == "a"
    assert off_the_road(["a", "x"], ["a", "b", "c"]) == "x"


def test_a_hop_without_a_row_is_found() -> None:
    way = ("a:f", "b:g", "c:h")
    steps = [Step(name, way[: place + 1]) for place, name in enumerate(way)]
    assert hops_not_listed(["a:f", "c:h"], ways(["a:f", "c:h"], steps)) == ["b:g"]
    assert hops_not_listed(["a:f", "b:g", "c:h"], ways(["a:f", "b:g", "c:h"], steps)) == []


def test_a_call_back_into_a_file_is_found() -> None:
    assert files_gone_back_to([("a:f", "b:g"), ("a:f", "c:h")]) == set()
    assert files_gone_back_to([("a:f", "b:g", "c:h", "a:k")]) == {("a", "c")}
