"""The four agents of the demo, written as users write theirs, and their folder.

``files`` owns the tools, ``reviewer`` decides proposals by rules that fit on a page, ``proposer``
may propose and nothing else, the auditor only listens. What happens to them is added to an
:class:`EventLog`, where the scenes wait for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final, Generic, TypeVar

import anyio
import anyio.to_thread

from meup_agent import Agent, Chat, Context, Proposal, Reason, Rejection, Withdrawal
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.types import Cause

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


class EventLog(Generic[T]):
    """Events in their order, and a wait for those to come."""

    def __init__(self) -> None:
        self.all: list[T] = []
        self._came = anyio.Event()

    def add(self, item: T) -> None:
        """Append an event and wake those that wait."""
        self.all.append(item)
        self._came.set()
        self._came = anyio.Event()

    async def next(self, after: int) -> T:
        """Wait for the event behind so many, however long it takes."""
        while len(self.all) <= after:
            await self._came.wait()
        return self.all[after]

    async def first(self, wanted: Callable[[T], bool]) -> T | None:
        """Wait for the first event that fits; ``None`` if it does not come in time."""
        with anyio.move_on_after(PATIENCE):
            while True:
                for item in self.all:
                    if wanted(item):
                        return item
                await self._came.wait()
        return None


@dataclass(frozen=True, slots=True)
class StoppedHandler:
    """A handler that was stopped, and is done with cleaning up."""

    agent: str
    handler: str
    cause: Cause

    def __str__(self) -> str:
        """The handler and the path of the cancellation, first step first."""
        way = " ← ".join(link.by for link in self.cause.chain) or self.cause.by
        return f"{self.handler}: {self.cause.code} ← {way}"


class StoppedHandlers(EventLog[StoppedHandler]):
    """Stopped handlers; each reports itself, in its own ``finally``."""

    @contextmanager
    def noted(self, agent: str, handler: str, ctx: Context) -> Generator[None]:
        """Record a stop if the block ends by one."""
        try:
            yield
        finally:
            if ctx.reason is not None:
                self.add(StoppedHandler(agent, handler, ctx.reason))


def files_agent(workspace: Workspace, stops: StoppedHandlers) -> Agent:
    """The tool owner: five tools that work in a folder.

    Plain functions run in worker threads; the re-index is ``async``: it takes its time, reports
    progress, and can be stopped at every ``await``.
    """
    files = Agent("files")

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
        with stops.noted("files", "reindex", ctx):
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


def reviewer_agent(stops: StoppedHandlers, withdrawals: EventLog[Withdrawal]) -> Agent:
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
        with stops.noted("reviewer", "review_reading", ctx):
            await proposal.fulfill()

    @reviewer.on_withdraw
    async def hear_withdrawal(withdrawal: Withdrawal) -> None:
        # The handler above has ended by now, and so has the request that it made.
        withdrawals.add(withdrawal)

    return reviewer


def leaves_the_folder(path: str) -> bool:
    """True if a path leads upwards or begins at the top, by its words alone."""
    plain, windows = PurePosixPath(path), PureWindowsPath(path)
    return plain.is_absolute() or bool(windows.anchor) or ".." in (*plain.parts, *windows.parts)


def masked(text: str) -> str:
    """The text without its secrets."""
    return SECRET.sub(r"\1\2[masked]", text)


def proposer_agent(explanations: EventLog[Chat], rejections: EventLog[Rejection]) -> Agent:
    """The proposer: a restricted agent that may propose; the scenes say what."""
    proposer = Agent("proposer")

    @proposer.on_reject
    async def hear_rejection(rejection: Rejection) -> None:
        rejections.add(rejection)

    @proposer.on_chat
    async def hear_chat(chat: Chat) -> None:
        explanations.add(chat)

    return proposer
