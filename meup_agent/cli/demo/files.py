"""The tool owner: an agent that has a folder, and five tools that work in it.

Plain functions run in worker threads; the re-index is ``async``, since it takes its time, tells
how far it is, and can be stopped at every ``await``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Final

import anyio
import anyio.to_thread

from meup_agent import Agent, Context
from meup_agent.cli.demo.stops import Stops
from meup_agent.cli.demo.workspace import Workspace

INDEX: Final = "meup-demo-index.json"
PARTIAL: Final = "meup-demo-index.json.partial"

BATCHES: Final = 10
BATCH_SECONDS: Final = 0.2
"""What makes the re-index slow: two seconds, so that something can happen in the middle."""

MAX_HITS: Final = 20

WORD: Final = re.compile(r"\w{3,}")


def files_agent(workspace: Workspace, stops: Stops) -> Agent:
    """The agent.

    Args:
        workspace: The folder; it refuses every path that leads out of it.
        stops: Told of each handler that was stopped.
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
    """How often each word stands in the folder, the most frequent first."""
    counted: Counter[str] = Counter()
    for path in workspace.files():
        counted.update(WORD.findall(workspace.read(path).lower()))
    return counted.most_common()
