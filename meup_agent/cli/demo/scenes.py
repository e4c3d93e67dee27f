"""The demo: four agents, their folder, and five stories, each with an end that is checked.

A scene plays on a :class:`~Stage` and returns what it expected beside
what happened, as read from an outcome, from the space or from the disk. :func:`perform` plays all
and shows the table of both.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final, NamedTuple, TypeVar

import anyio
import anyio.to_thread
from rich import box
from rich.console import RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from meup_agent import (
    Agent,
    Backoff,
    Chat,
    Context,
    Envelope,
    Fulfillment,
    Gone,
    Outcome,
    Progress,
    Proposal,
    Reason,
    Rejection,
    Settings,
    Space,
    Withdrawal,
)
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.cli.render.output import Output
from meup_agent.cli.session import ReportingConnector, format_close
from meup_agent.client.proposal import ProposalHandle
from meup_agent.errors import MeupError
from meup_agent.escape import visible
from meup_agent.gateway.server import Gateway
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.outcomes import value_of
from meup_agent.transport.base import ABNORMAL, CloseInfo, background_tasks
from meup_agent.types import Cause, ProposalRecord

# --- the folder that the demo works in ---
# The user's own or a sample, guarded at its border.
#
# Nothing outside of it is read or written, nothing in it is overwritten, and what the scenes wrote
# is removed at the end.

MAX_FILES: Final = 200
"""Files that the tools look at: a demo on a home folder must not take all day."""

MAX_FOLDERS: Final = 2_000  # folders that are looked into, for the same reason
MAX_BYTES: Final = 256 * 1024  # bytes of a file that are read or written
INDEX: Final = "meup-demo-index.json"
PARTIAL: Final = "meup-demo-index.json.partial"
NOTE: Final = "meup-demo-note.md"
SETTINGS_FILE: Final = "meup-demo-settings.txt"
OUTSIDE: Final = "../meup-demo-outside.txt"
"""A path that a scene tries to write to, and must not get to."""

WRITTEN_FILES: Final = (NOTE, SETTINGS_FILE, OUTSIDE, INDEX, PARTIAL)
"""The files that the scenes write, all of them, so that no other is touched."""


class NotAllowed(Exception):
    """A path is outside of the folder, or not the demo's to change."""


class Workspace:
    """A folder; a path out of it, or a change of what was not made here, is :class:`NotAllowed`."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._made: list[Path] = []

    def inside(self, path: str) -> Path:
        """The file that a path names, with every symbolic link on the way followed.

        What counts is where the path really leads: ``..``, an absolute path or a link may lead
        out of the folder.
        """
        try:
            real = (self.root / path).resolve()
        except (OSError, RuntimeError, ValueError):  # a loop of links, a name that cannot be one
            raise NotAllowed(f"{path!r} is not a path") from None
        if not real.is_relative_to(self.root):
            raise NotAllowed(f"{path!r} leads out of the folder")
        return real

    def files(self) -> list[str]:
        """The paths of the files, hidden ones and links left out, in order."""
        found: list[str] = []
        for visited, (folder, folders, names) in enumerate(os.walk(self.root)):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            here = Path(folder)
            for name in sorted(names):
                file = here / name
                if not name.startswith(".") and file.is_file() and not file.is_symlink():
                    found.append(file.relative_to(self.root).as_posix())
            if len(found) >= MAX_FILES or visited >= MAX_FOLDERS:
                break
        return sorted(found[:MAX_FILES])

    def read(self, path: str) -> str:
        """The text of a file; of a large one, its beginning."""
        file = self.inside(path)
        if not file.is_file():  # a pipe or a device would be waited for
            raise NotAllowed(f"{path!r} is not a file")
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES).decode(errors="replace")

    def create(self, path: str, text: str) -> int:
        """Write a new file; the number of its bytes."""
        data = text.encode()
        if len(data) > MAX_BYTES:
            raise NotAllowed(f"{path!r} would have more than {MAX_BYTES} bytes")
        file = self.inside(path)
        try:
            # "x" creates the file or fails: it never overwrites, and follows no link.
            with file.open("xb") as opened:
                self._made.append(file)
                opened.write(data)
        except FileExistsError:
            raise NotAllowed(f"{path!r} exists; nothing is overwritten here") from None
        return len(data)

    def append(self, path: str, text: str) -> None:
        """Add to a file that :meth:`create` has made."""
        with self._own(path).open("ab") as opened:
            opened.write(text.encode())

    def rename(self, path: str, new: str) -> None:
        """Give a file that :meth:`create` has made its final name."""
        file, target = self._own(path), self.inside(new)
        if os.path.lexists(target):
            raise NotAllowed(f"{new!r} exists; nothing is overwritten here")
        file.rename(target)
        self._made.remove(file)
        self._made.append(target)

    def remove(self, path: str) -> None:
        file = self._own(path)
        file.unlink(missing_ok=True)
        self._made.remove(file)

    def clean(self) -> None:
        """Remove every file that :meth:`create` has made."""
        while self._made:
            self._made.pop().unlink(missing_ok=True)

    def _own(self, path: str) -> Path:
        file = self.inside(path)
        if file not in self._made:
            raise NotAllowed(f"{path!r} was not made here")
        return file


@contextmanager
def workspace_in(folder: Path | None) -> Generator[Workspace]:
    """The folder for the length of a block; afterwards it is as it was before."""
    with ExitStack() as at_end:
        if folder is None:
            temporary = at_end.enter_context(tempfile.TemporaryDirectory(prefix="meup-demo-"))
            # A folder below, since a scene tries to write beside it.
            sample = Path(temporary) / "harbour"
            with as_file(files("meup_agent.cli.demo") / "sample") as shipped:
                shutil.copytree(shipped, sample)
            workspace = Workspace(sample)
        else:
            workspace = _checked(folder)
        at_end.callback(workspace.clean)
        yield workspace


def _checked(folder: Path) -> Workspace:
    if not folder.is_dir():
        raise Misuse(f"{folder} is not a folder; give one to --dir")
    workspace = Workspace(folder)
    taken = [name for name in WRITTEN_FILES if os.path.lexists(workspace.root / name)]
    if taken:
        raise Failure(
            f"{folder} has {', '.join(taken)} already, and the demo overwrites nothing;"
            " move that away, or give another folder"
        )
    if not os.access(workspace.root, os.W_OK | os.X_OK):
        raise Failure(f"nothing can be written in {folder}; give another folder")
    return workspace


# --- participants ---

T = TypeVar("T")
PATIENCE: Final = 5.0  # seconds that a scene waits for an event; then it has not happened
BATCHES: Final = 10
BATCH_SECONDS: Final = 0.2
"""Makes the re-index slow, two seconds in all, so that something can happen in the middle."""

MAX_HITS: Final = 20
WORD: Final = re.compile(r"\w{3,}")
SECRET: Final = re.compile(r"(?i)\b(password|secret|token|api[_-]?key)(\s*[=:]\s*)(\S+)")


class StoppedHandler(NamedTuple):
    """A handler that was stopped, and is done with cleaning up."""

    agent: str
    handler: str
    cause: Cause

    def __str__(self) -> str:
        """The handler and the path of the cancellation, first step first."""
        way = " ← ".join(link.by for link in self.cause.chain) or self.cause.by
        return f"{self.handler}: {self.cause.code} ← {way}"


def files_agent(stage: Stage) -> Agent:
    """The tool owner: five tools that work in a folder.

    Plain functions run in worker threads; the re-index is ``async``: it takes its time, reports
    progress, and can be stopped at every ``await``.
    """
    files, workspace = Agent("files"), stage.workspace

    @files.tool(read_only=True)
    def list_files() -> list[str]:
        """List the files of the folder."""
        return workspace.files()

    @files.tool(read_only=True)
    def read_file(path: str) -> str:
        """Read a file."""
        return workspace.read(path)

    @files.tool(read_only=True)
    def search(word: str, ctx: Context) -> list[str]:
        """Find the files that hold a word."""
        found: list[str] = []
        for path in workspace.files():
            ctx.check_cancelled()  # a thread must look for itself whether it should stop
            if word.lower() in workspace.read(path).lower():
                found.append(path)
        return found[:MAX_HITS]

    @files.tool
    def write_file(path: str, text: str) -> str:
        """Write a new file; one that exists is never overwritten."""
        return f"{workspace.create(path, text)} bytes written"

    @files.tool
    async def reindex(ctx: Context) -> int:
        """Count the words of every file, slowly; the number of words in the index."""
        with stage.noted("files", "reindex", ctx):
            workspace.create(PARTIAL, "{}\n")
            try:
                words = await anyio.to_thread.run_sync(count_words, workspace)
                for batch in range(BATCHES):
                    some = dict(words[batch::BATCHES])
                    workspace.append(PARTIAL, json.dumps(some) + "\n")
                    ctx.progress(batch + 1, BATCHES, PARTIAL)
                    await anyio.sleep(BATCH_SECONDS)
                workspace.rename(PARTIAL, INDEX)
            except BaseException:
                # Stopped or failed: a half-written index must not stay behind.
                workspace.remove(PARTIAL)
                raise
        return len(words)

    return files


def count_words(workspace: Workspace) -> list[tuple[str, int]]:
    """Count each word of the folder, the most frequent first."""
    counted: Counter[str] = Counter()
    for path in workspace.files():
        counted.update(WORD.findall(workspace.read(path).lower()))
    return counted.most_common()


def reviewer_agent(stage: Stage) -> Agent:
    """The reviewer: a trusted agent that carries approved proposals out by requests of its own.

    A path out of the folder is unsafe. Secrets are not written down: such a proposal is fulfilled
    with edited arguments, and the proposer learns the difference.
    """
    reviewer = Agent("reviewer")

    @reviewer.on_proposal(tool="write_file")
    async def review_writing(proposal: Proposal) -> None:
        path = str(proposal.arguments.get("path"))
        text = str(proposal.arguments.get("text"))
        if leaves_the_folder(path):
            await proposal.reject(Reason.UNSAFE, explain=f"{path} leads out of the folder")
        elif SECRET.search(text):
            await proposal.fulfill({**proposal.arguments, "text": masked(text)})
        else:
            await proposal.fulfill()

    @reviewer.on_proposal(tool=["list_files", "read_file", "search", "reindex"])
    async def review_reading(proposal: Proposal, ctx: Context) -> None:
        with stage.noted("reviewer", "review_reading", ctx):
            await proposal.fulfill()

    @reviewer.on_withdraw
    async def hear_withdrawal(withdrawal: Withdrawal) -> None:
        # The handler above has ended by now, and so has the request that it made.
        stage.add(stage.withdrawals, withdrawal)

    return reviewer


def leaves_the_folder(path: str) -> bool:
    """True if a path leads upwards or begins at the top, by its words alone."""
    plain, windows = PurePosixPath(path), PureWindowsPath(path)
    return plain.is_absolute() or bool(windows.anchor) or ".." in (*plain.parts, *windows.parts)


def masked(text: str) -> str:
    """The text without its secrets."""
    return SECRET.sub(r"\1\2[masked]", text)


def proposer_agent(stage: Stage) -> Agent:
    """The proposer: a restricted agent that may propose; the scenes say what."""
    proposer = Agent("proposer")

    @proposer.on_reject
    async def hear_rejection(rejection: Rejection) -> None:
        stage.add(stage.rejections, rejection)

    @proposer.on_chat
    async def hear_chat(chat: Chat) -> None:
        stage.add(stage.explanations, chat)

    return proposer


# --- the stage of the scenes ---
# The gateway, the four agents in it, and the timeline.

SPACE: Final = "demo"

MAY: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    # Any participant may answer a request addressed to it, but a gateway that was started
    # again does not remember the requests: so it is said.
    "files": ({"kind": "mcp/response"},),
    "reviewer": ({"kind": "mcp/request"}, {"kind": "mcp/reject"}, {"kind": "chat"}),
    "proposer": ({"kind": "mcp/proposal"},),
    "auditor": (),
}
"""The participants and their capabilities."""

BACKOFF: Final = Backoff(first=0.2, longest=1.0)
"""Short waits between attempts to connect, since here the gateway is never away for long."""

READING_SECONDS: Final = 0.5  # a rest between scenes, for a person who reads along


class Stage:
    """The demo, set up and running in the block of :meth:`joined`."""

    proposer: Space  # the scenes speak with its voice
    auditor: Space

    def __init__(self, workspace: Workspace, gateway: Gateway, output: Output) -> None:
        self.workspace = workspace
        self.gateway = gateway
        # Every envelope that the auditor has seen, and that the timeline has shown.
        self.seen = list[Envelope]()
        self.stops = list[StoppedHandler]()
        self.stops_shown = list[StoppedHandler]()  # those that the timeline has shown
        self.rejections = list[Rejection]()
        self.explanations = list[Chat]()
        self.withdrawals = list[Withdrawal]()
        self.losses = list[tuple[str, CloseInfo]]()
        self._came = anyio.Event()
        self._output = output
        self._timeline = output.timeline()
        self._printing = anyio.Lock()

    # --- events ---

    def add(self, events: list[T], event: T) -> None:
        """Append an event and wake those that wait."""
        events.append(event)
        self._came.set()
        self._came = anyio.Event()

    async def first(self, events: list[T], wanted: Callable[[T], bool]) -> T | None:
        """Wait for the first event that fits; ``None`` if it does not come in time."""
        with anyio.move_on_after(PATIENCE):
            while True:
                for each in events:
                    if wanted(each):
                        return each
                await self._came.wait()
        return None

    @contextmanager
    def noted(self, agent: str, handler: str, ctx: Context) -> Generator[None]:
        """Record that a handler was stopped, if the block ends by that."""
        try:
            yield
        finally:
            if ctx.reason is not None:
                self.add(self.stops, StoppedHandler(agent, handler, ctx.reason))

    # --- what scenes ask ---

    def exchange(self, proposal_id: str) -> list[Envelope]:
        """The envelopes that the auditor has seen of a proposal, progress left out.

        What was said again after a reconnect, under the same id, counts once.
        """
        found: dict[str, Envelope] = {}
        for envelope in self.seen:
            concerned = envelope.id == proposal_id or any(
                name in found or name == proposal_id for name in envelope.correlation
            )
            if concerned and method_of(envelope) != kinds.PROGRESS:
                found.setdefault(envelope.id, envelope)
        return list(found.values())

    async def saw(self, proposal_id: str, wanted: str) -> Envelope | None:
        """The first envelope of a kind or method about a proposal, once it is on the timeline."""
        return await self.first(
            self.seen,
            lambda envelope: (
                wanted in (envelope.kind, method_of(envelope))
                and envelope in self.exchange(proposal_id)
            ),
        )

    async def stopped(self, agent: str) -> None:
        """Wait until a stop of one of an agent's handlers is on the timeline."""
        await self.first(self.stops_shown, lambda stop: stop.agent == agent)

    async def lost(self, agent: str) -> None:
        """Wait until an agent has lost its connection."""
        await self.first(self.losses, lambda loss: loss[0] == agent)

    # --- what is shown ---

    async def show(self, *lines: RenderableType) -> None:
        """Show something; one at a time, in order."""
        async with self._printing:
            await self._output.show(*lines)

    async def note(self, who: str, noun: str, said: str, *, style: str = "italic") -> None:
        """A line about something that has happened and is not an envelope."""
        await self.show(self._timeline.note(who, noun, said, style=style))

    async def rest(self) -> None:
        """Let a person catch up with reading."""
        if self._output.is_terminal:
            await anyio.sleep(READING_SECONDS)

    async def _follow(self) -> None:
        """Show every envelope of the space, in the gateway's order, and take it down."""
        with self.auditor.watch() as envelopes:
            async for envelope in envelopes:
                entry = self._timeline.observe(envelope, anyio.current_time())
                await self.show(self._timeline.line(entry))
                self.add(self.seen, envelope)

    async def _show_stops(self) -> None:
        """Show each stop behind the envelope that brought it about."""
        while True:
            for stop in self.stops[len(self.stops_shown) :]:
                await self.first(self.seen, partial(_brought_about, stop))
                await self.note(stop.agent, "stopped", str(stop), style="bold yellow")
                self.add(self.stops_shown, stop)
            if len(self.stops_shown) == len(self.stops):
                await self._came.wait()

    async def _connection(self, name: str, closed: CloseInfo | None) -> None:
        """Show what becomes of an agent's connection, from the first loss on."""
        if closed is not None:
            self.add(self.losses, (name, closed))
            await self.note(name, "lost", format_close(closed), style="bold red")
        elif any(name == who for who, _ in self.losses):
            await self.note(name, "back", "connected again", style="bold green")

    # --- setting up ---

    @asynccontextmanager
    async def joined(self) -> AsyncGenerator[None]:
        """All four agents in the space, the auditor first and last."""

        def has_come(envelope: Envelope) -> bool:
            is_presence = envelope.kind == kinds.SYSTEM_PRESENCE
            return is_presence and "proposer" in str(envelope.payload)

        async with self._join(Agent("auditor")) as self.auditor, background_tasks() as tasks:
            tasks.start_soon(self._follow)
            tasks.start_soon(self._show_stops)
            async with self._join(files_agent(self)), self._join(reviewer_agent(self)):
                async with self._join(proposer_agent(self)) as self.proposer:
                    # Until the timeline has shown the last one's coming.
                    await self.first(self.seen, has_come)
                    yield

    def _join(self, agent: Agent) -> AbstractAsyncContextManager[Space]:
        """Join as ``agent.join(gateway.url, space=…, token=…)`` does, and be told of losses."""
        name = agent.name
        dial = ReportingConnector(self.gateway.url, SPACE, partial(self._connection, name))
        return agent.join(dial, token=self.gateway.token(name), settings=Settings(backoff=BACKOFF))


def method_of(envelope: Envelope) -> str:
    """The MCP method of a request; empty for anything else."""
    if envelope.kind != kinds.MCP_REQUEST:
        return ""
    return payloads.read_call(envelope.payload).method


def _brought_about(stop: StoppedHandler, envelope: Envelope) -> bool:
    is_end = envelope.kind == kinds.MCP_WITHDRAW or method_of(envelope) == kinds.CANCELLED
    return is_end and stop.cause.id in envelope.correlation


# --- the scenes of the demo ---

SCENE_SECONDS: Final = 60.0  # longer than any scene takes; one that hangs has failed

WRITING: Final = ("write_file", "reindex")
"""The tools that the five stories are about; the others only look."""

PROPOSED: Final = "password = mussels\n"
MASKED: Final = "password = [masked]\n"
EXPLANATION: Final = f"{OUTSIDE} leads out of the folder"
HALF_WAY: Final = BATCHES // 2 - 1
THIRD: Final = BATCHES // 3


class Expectation(NamedTuple):
    """One expectation."""

    what: str
    expected: str
    happened: str  # read from an outcome, from the space or from the disk

    @property
    def holds(self) -> bool:
        """True if both are the same."""
        return self.expected == self.happened


class Scene(NamedTuple):
    """A story with an end that can be checked."""

    title: str
    story: str
    play: Callable[[Stage], Awaitable[list[Expectation]]]


async def propose_writing(stage: Stage, path: str, text: str) -> tuple[str, Outcome]:
    """Propose a file to the reviewer; the proposal's id, and its outcome."""
    async with stage.proposer.propose(
        "files", "write_file", {"path": path, "text": text}, to="reviewer"
    ) as proposal:
        return proposal.id, await proposal.outcome()


async def play_fulfilled(stage: Stage) -> list[Expectation]:
    """Ask what there is, propose a note about it, and see that this note was written."""
    listed = await stage.proposer.call("files", "list_files", to="reviewer")
    note = f"# What is here\n\nFiles: {len(listed)}\n"

    proposal, outcome = await propose_writing(stage, NOTE, note)
    await stage.saw(proposal, kinds.MCP_RESPONSE)
    await look_at(stage, NOTE)
    on_disk = text_on_disk(stage.workspace, NOTE)
    return [
        expect_fulfilled(outcome),
        Expectation(
            "arguments",
            "as proposed",
            "as proposed" if isinstance(outcome, Fulfillment) and not outcome.edited else "changed",
        ),
        Expectation("on disk", repr(note), repr(on_disk)),
        Expectation("the space saw", "proposal, request, response", kinds_of(stage, proposal)),
    ]


async def play_edited(stage: Stage) -> list[Expectation]:
    """Propose a text with a secret in it, and see what was written instead."""
    proposal, outcome = await propose_writing(stage, SETTINGS_FILE, PROPOSED)
    await stage.saw(proposal, kinds.MCP_RESPONSE)
    changes = outcome.changes if isinstance(outcome, Fulfillment) else ()
    for change in changes:
        await stage.note("proposer", "proposed", f"{change.path}: {change.proposed!r}")
        await stage.note("proposer", "learns", f"{change.path}: {change.fulfilled!r}")
    await look_at(stage, SETTINGS_FILE)
    on_disk = text_on_disk(stage.workspace, SETTINGS_FILE)
    read_back = await stage.proposer.call(
        "files", "read_file", {"path": SETTINGS_FILE}, to="reviewer"
    )
    return [
        expect_fulfilled(outcome),
        Expectation(
            "difference told",
            f"arguments.text: {PROPOSED!r} → {MASKED!r}",
            "; ".join(f"{each.path}: {each.proposed!r} → {each.fulfilled!r}" for each in changes)
            or "none",
        ),
        Expectation("on disk", repr(MASKED), repr(on_disk)),
        Expectation("read through the space", repr(MASKED), repr(read_back)),
    ]


async def play_rejected(stage: Stage) -> list[Expectation]:
    """Propose to write outside of the folder, and hear why not."""
    proposal, outcome = await propose_writing(stage, OUTSIDE, "hello\n")
    heard = explained = None
    if isinstance(outcome, Rejection):
        heard = await stage.first(stage.rejections, lambda each: each.proposal_id == proposal)
        explained = await stage.first(stage.explanations, lambda chat: chat.about == outcome.id)
        await stage.saw(proposal, kinds.MCP_WITHDRAW)
    outside = await look_at(stage, OUTSIDE)
    return [
        Expectation("outcome", "rejected by reviewer: unsafe", outcome_in_words(outcome)),
        Expectation("the proposer's handler", "unsafe", heard.reason if heard else "not called"),
        Expectation("explanation", EXPLANATION, explained.text if explained else "none"),
        # The proposer withdraws it too: no other participant may fulfill what it believes dead.
        Expectation(
            "the space saw",
            "chat, proposal, reject, withdraw",
            kinds_of(stage, proposal, in_order=False),
        ),
        Expectation("outside the folder", "nothing", "nothing" if outside is None else "a file"),
    ]


@asynccontextmanager
async def reindexing(stage: Stage, batches: int) -> AsyncGenerator[ProposalHandle]:
    """Propose a re-index to the reviewer, and wait until so many of its batches are done."""
    progress = list[Progress]()
    tell = partial(stage.add, progress)
    async with stage.proposer.propose(
        "files", "reindex", to="reviewer", on_progress=tell
    ) as proposal:
        await stage.first(progress, lambda told: told.done >= batches)
        yield proposal


async def play_withdrawn(stage: Stage) -> list[Expectation]:
    """Withdraw a re-index when it is half done, and see what is left of it."""
    async with reindexing(stage, HALF_WAY) as proposal:
        half_written = await look_at(stage, PARTIAL)
        await proposal.withdraw(Reason.NO_LONGER_NEEDED)
        outcome = await proposal.outcome()

    for agent in ("reviewer", "files"):
        await stage.stopped(agent)
    told = await stage.first(stage.withdrawals, lambda each: each.proposal_id == proposal.id)
    left = await look_at(stage, PARTIAL)
    return [
        Expectation("outcome", "withdrawn: no_longer_needed", outcome_in_words(outcome)),
        Expectation("half-written file", "there", "there" if half_written else "not there"),
        Expectation(
            "the reviewer's handler",
            "review_reading: no_longer_needed ← proposer",
            _stops_of(stage, "reviewer"),
        ),
        Expectation(
            "the tool's handler",
            "reindex: no_longer_needed ← reviewer ← proposer",
            _stops_of(stage, "files"),
        ),
        Expectation("told afterwards", "by proposer", f"by {told.by}" if told else "not told"),
        Expectation(
            "half-written file, after", "gone", "gone" if left is None else f"{left} bytes"
        ),
        Expectation(
            "the space saw", "proposal, request, withdraw, cancel", kinds_of(stage, proposal.id)
        ),
    ]


def _stops_of(stage: Stage, agent: str) -> str:
    """The handlers of an agent that were stopped, and the way that their end came."""
    return "; ".join(str(stop) for stop in stage.stops if stop.agent == agent) or "not stopped"


async def play_restarted(stage: Stage) -> list[Expectation]:
    """Kill the gateway when a re-index has begun, start it again, and wait for the result."""
    words = len(await anyio.to_thread.run_sync(count_words, stage.workspace))
    port = stage.gateway.port
    async with reindexing(stage, THIRD) as proposal:
        stage.gateway.kill()
        await stage.note("gateway", "killed", "every socket dropped", style="bold red")
        for name in MAY:
            await stage.lost(name)
        lost = {name: info.code for name, info in stage.losses}
        await stage.gateway.restart()
        await stage.note("gateway", "started", "on the same port again", style="bold green")
        outcome = await proposal.outcome()

    await stage.saw(proposal.id, kinds.MCP_RESPONSE)
    index = await look_at(stage, INDEX)
    found = value_of(outcome) if isinstance(outcome, Fulfillment) else None
    return [
        Expectation(
            "dropped without a close",
            ", ".join(sorted(MAY)),
            ", ".join(sorted(name for name in lost if lost[name] == ABNORMAL)),
        ),
        Expectation("started again at port", str(port), str(stage.gateway.port)),
        expect_fulfilled(outcome),
        Expectation("words in the index", str(words), str(found)),
        Expectation("on disk", "there", "there" if index else "not there"),
        Expectation("the space saw", "proposal, request, response", kinds_of(stage, proposal.id)),
    ]


SCENES: Final = (
    Scene(
        "Fulfilled",
        "The proposer may not write files. It proposes a note; the reviewer carries it out.",
        play_fulfilled,
    ),
    Scene(
        "Fulfilled, edited",
        "The proposer would write a password down. The reviewer masks it, and the proposer is"
        " told.",
        play_edited,
    ),
    Scene(
        "Rejected",
        "The proposer would write outside of the folder. The reviewer says no, and why.",
        play_rejected,
    ),
    Scene(
        "Withdrawn",
        "In the middle of a slow re-index the proposer changes its mind. Everybody stops.",
        play_withdrawn,
    ),
    Scene(
        "Gateway killed",
        "The gateway dies in the middle of a re-index. The work goes on; the result arrives.",
        play_restarted,
    ),
)
"""In the order in which they are played."""


# --- what happened, in the words of the table at the end ---


def outcome_in_words(outcome: Outcome) -> str:
    """The outcome of a proposal for its proposer."""
    match outcome:
        case Fulfillment(is_error=True):
            return (
                f"fulfilled by {outcome.by}, and failed at {outcome.executor}: {outcome.response}"
            )
        case Fulfillment():
            return f"fulfilled by {outcome.by}, run by {outcome.executor}"
        case Rejection():
            return f"rejected by {outcome.by}: {outcome.reason}"
        case Withdrawal():
            return f"withdrawn: {outcome.reason}"
        case Gone():
            return f"gone: {outcome}"
        case _:
            return "expired"


def expect_fulfilled(outcome: Outcome) -> Expectation:
    """The expectation that a proposal was carried out."""
    happened = outcome_in_words(outcome)
    return Expectation("outcome", "fulfilled by reviewer, run by files", happened)


def kinds_of(stage: Stage, proposal_id: str, *, in_order: bool = True) -> str:
    """The kinds that the auditor has seen of a proposal; progress left out.

    Not in order, but sorted, where two senders' envelopes may come in either order.
    """
    found = [
        "cancel" if method_of(each) == kinds.CANCELLED else each.kind.removeprefix("mcp/")
        for each in stage.exchange(proposal_id)
    ]
    return ", ".join(found if in_order else sorted(found))


def text_on_disk(workspace: Workspace, path: str) -> str | None:
    """The text of a file; ``None`` if there is none."""
    try:
        return workspace.read(path)
    except (NotAllowed, OSError):
        return None


async def look_at(stage: Stage, path: str) -> int | None:
    """Look whether there is a file, and show it; its size in bytes, ``None`` if there is none."""
    try:
        size = (stage.workspace.root / path).lstat().st_size
    except OSError:
        await stage.note("disk", "has no", path)
        return None
    await stage.note("disk", "has", f"{path}, {size} bytes")
    return size


def record_checks(stage: Stage) -> list[Expectation]:
    """The whole demo as the auditor has it in its record, in the gateway's order."""
    states = [_state(record) for record in stage.auditor.proposals if record.tool in WRITING]
    cancels = [each for each in stage.seen if method_of(each) == kinds.CANCELLED]
    cancelled = {name for each in cancels for name in each.correlation}
    answered = [
        each
        for each in stage.seen
        if each.kind == kinds.MCP_RESPONSE and cancelled.intersection(each.correlation)
    ]
    # Everything that was sent before the last scene's result has been seen by now.
    return [
        Expectation(
            "the five proposals",
            "fulfilled; fulfilled; rejected: unsafe; withdrawn: no_longer_needed; fulfilled",
            "; ".join(states),
        ),
        Expectation("cancelled requests", "1", str(len(cancelled))),
        Expectation("answers to them", "0", str(len(answered))),
    ]


def _state(record: ProposalRecord) -> str:
    """A proposal's end; who was rejected takes the proposal back too."""
    if record.rejections:
        return f"rejected: {', '.join(each.reason for each in record.rejections)}"
    return f"{record.state}: {record.reason}" if record.reason else str(record.state)


# --- the play ---

Result = tuple[str, list[Expectation]]  # a scene's title, and its checks


async def perform(workspace: Workspace, output: Output) -> bool:
    """Play everything, then show the table; true if everything went as expected."""
    began = anyio.current_time()
    results: list[Result] = []
    async with Gateway(SPACE, MAY) as gateway:
        stage = Stage(workspace, gateway, output)
        async with stage.joined():
            for number, scene in enumerate(SCENES, start=1):
                title = Text(f"{number}  {scene.title}", style="bold")
                rule, story = _left_rule(title), Text(scene.story, style="italic dim")
                await stage.show(Text(), rule, story)
                results.append((scene.title, await _played(scene, stage)))
                await stage.rest()
            results.append(("The auditor's record", record_checks(stage)))
    seconds = anyio.current_time() - began
    await output.show(
        "",
        _left_rule(Text("Expected, and what happened", style="bold")),
        _table(results, output),
    )
    checks = [check for _, checks in results for check in checks]
    failed = sum(not check.holds for check in checks)
    said = f"{failed} of {len(checks)} did not go" if failed else f"All {len(checks)} went"
    style = "bold red" if failed else "bold green"
    await output.show(Text(f"{said} as expected, in {seconds:.1f} s.", style=style))
    return not failed


def _left_rule(title: Text) -> Rule:
    return Rule(title, align="left", style="dim")


async def _played(scene: Scene, stage: Stage) -> list[Expectation]:
    """The checks of a scene; one that fails is a check that does not hold."""
    try:
        with anyio.fail_after(SCENE_SECONDS):
            return await scene.play(stage)
    except (MeupError, OSError) as error:  # a timeout is an OSError
        return [
            Expectation("the scene", "was played", visible(f"{type(error).__name__}: {error}", 300))
        ]


def _table(results: list[Result], output: Output) -> Table:
    """The table of expectations beside what happened."""
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
    table.add_column(width=max(len(output.glyphs.yes), len(output.glyphs.no)))
    table.add_column(ratio=4, overflow="fold")
    table.add_column("expected", ratio=5, overflow="fold")
    table.add_column("happened", ratio=5, overflow="fold")
    for title, checks in results:
        table.add_row("", Text(title, style="bold"))
        for number, check in enumerate(checks, start=1):
            mark = output.glyphs.yes if check.holds else output.glyphs.no
            table.add_row(
                Text(mark, style="green" if check.holds else "bold red"),
                Text(check.what),
                Text(check.expected, style="dim" if check.holds else ""),
                Text(check.happened, style="" if check.holds else "bold red"),
                end_section=number == len(checks),
            )
    return table
