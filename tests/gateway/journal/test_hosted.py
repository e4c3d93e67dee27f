"""A real space over a journal in a file, and connections and processes that break."""

from __future__ import annotations

from pathlib import Path
from random import Random

import anyio.lowlevel
import pytest

from meup_agent.gateway.config import JournalConfig
from meup_agent.gateway.journal.sqlite import SqliteJournal
from meup_agent.protocol.space import fanout
from meup_agent.protocol.space.journal import Journal
from tests.gateway.journal.conftest import read, settled
from tests.properties.hosted import MANY_ROUNDS, Hosted
from tests.properties.test_hosted import DIALECTS, check_capabilities

pytestmark = pytest.mark.anyio

SEEDS = 6
PAGES = 10
"""After how many pages everybody has read what there is."""


class Filed(Hosted):
    """The same with a real file, whose threads commit and read when they like."""

    def __init__(self, path: Path, random: Random) -> None:
        self._path = path
        self.killed = False
        super().__init__(random, DIALECTS, forgets=False)

    @property
    def filed(self) -> SqliteJournal:
        assert isinstance(self.journal, SqliteJournal)
        return self.journal

    def _opened(self) -> Journal:
        return SqliteJournal(self._path, JournalConfig(self._path), lambda: self.now)

    def commit(self, at_most: int) -> None:
        pass

    def answer(self, at_most: int) -> None:
        pass

    def kill(self) -> None:
        self.filed.abandon()
        for client in self.clients.values():
            client.lose()
        self.killed = True

    async def restart(self) -> None:
        """Start again on the file."""
        await self.filed.aclose()
        self.killed = False
        self.journal, self.host = self._started()

    async def live(self, steps: int) -> None:
        """Let this and that happen."""
        for _ in range(steps):
            self.step()
            if self.killed:
                await self.restart()
            elif self.random.random() < 0.1:
                await settled(self.filed)
            elif self.random.random() < 0.5:
                await anyio.lowlevel.checkpoint()

    async def end(self) -> None:
        """Bring everybody back, let everything arrive, and check what must hold then."""
        quiet = 0
        for _ in range(MANY_ROUNDS):
            self.go_round()
            await settled(self.filed)
            await read(self.filed, limit=1)  # what was asked for before has come, too
            quiet = quiet + 1 if self.is_quiet else 0
            if quiet == PAGES:
                break
        self.file.entries = list(await read(self.filed))
        self.file.ever = [(entry.seq, entry.envelope.id) for entry in self.file.entries]
        self.check()
        check_capabilities(self)


@pytest.mark.rule("6.resume.order")
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_is_lost_or_comes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(fanout, "PAGE", 20)
    hosted = Filed(tmp_path / "journal.db", Random(seed))
    try:
        await hosted.live(1_000)
        await hosted.end()
    finally:
        await hosted.filed.aclose()
