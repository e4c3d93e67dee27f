"""A real space over a durable journal, and connections and processes that break."""

from pathlib import Path
from random import Random

import anyio.lowlevel
import pytest

from meup_agent.gateway import JournalConfig
from tests.gateway.journal.conftest import ALL_ENGINES, DURABLE_ENGINES, read, settled
from tests.properties.hosted import MANY_ROUNDS, Hosted
from tests.properties.test_hosted import DIALECTS, check_capabilities
from tests.spaces import Journal, delivery

SEEDS = 6
PAGES = 10
"""After how many pages everybody has read what there is."""


class Durable(Hosted):
    """The same with a real engine, whose threads commit and read when they like."""

    def __init__(self, engine: str, path: Path, random: Random) -> None:
        self._engine = ALL_ENGINES[engine]
        self._path = path
        self.killed = False
        super().__init__(random, DIALECTS, forgets=False)

    def _opened(self) -> Journal:
        return self._engine.open(JournalConfig(self._path), lambda: self.now)

    def commit(self, at_most: int) -> None:
        pass

    def answer(self, at_most: int) -> None:
        pass

    def kill(self) -> None:
        self.journal.abandon()
        for client in self.clients.values():
            client.lose()
        self.killed = True

    async def restart(self) -> None:
        """Start again on what was kept."""
        await self.journal.aclose()
        self.killed = False
        self.journal, self.host = self._started()

    async def live(self, steps: int) -> None:
        """Let this and that happen."""
        for _ in range(steps):
            self.step()
            if self.killed:
                await self.restart()
            elif self.random.random() < 0.1:
                await settled(self.journal)
            elif self.random.random() < 0.5:
                await anyio.lowlevel.checkpoint()

    async def end(self) -> None:
        """Bring everybody back, let everything arrive, and check what must hold then."""
        quiet = 0
        for _ in range(MANY_ROUNDS):
            self.go_round()
            await settled(self.journal)
            await read(self.journal, limit=1)  # what was asked for before has come, too
            quiet = quiet + 1 if self.is_quiet else 0
            if quiet == PAGES:
                break
        self.file.entries = list(await read(self.journal))
        self.file.ever = [(entry.seq, entry.envelope.id) for entry in self.file.entries]
        self.check()
        check_capabilities(self)


@pytest.mark.rule("6.resume.order")
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
async def test_nothing_is_lost_or_comes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, seed: int
) -> None:
    monkeypatch.setattr(delivery, "PAGE", 20)
    hosted = Durable(engine, tmp_path / "journal.db", Random(seed))
    try:
        await hosted.live(1_000)
        await hosted.end()
    finally:
        await hosted.journal.aclose()
