"""The thread that writes a journal."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from meup_agent.gateway.config import JournalConfig
from meup_agent.gateway.journal.waiting import WriteJob, WriterThread
from tests.patience import PATIENCE

JOBS = [cast("WriteJob", SimpleNamespace(row=SimpleNamespace(seq=seq))) for seq in (1, 2)]


class Writer(WriterThread):
    """Is handed the second batch while it writes the first."""

    def __init__(self) -> None:
        super().__init__(JournalConfig(), lambda: 0)
        self.written: list[Sequence[WriteJob]] = []
        self.wakes: list[bool] = []

    @property
    def interval(self) -> None:
        # It is about to wait; what it would be woken by at once is noted.
        self.wakes.append(not self._bell.locked())
        (self.stop if self.written else lambda: self.put(JOBS[:1]))()

    def _write(self, work: Sequence[WriteJob]) -> None:
        self.written.append(work)
        if work == JOBS[:1]:
            self.put(JOBS[1:])

    def on_written(self, seq: int) -> None:
        pass

    def on_failed(self, error: Exception) -> None:
        raise error

    def _execute(self, statement: str, values: tuple[Any, ...]) -> None:
        raise NotImplementedError

    def _find_old(self, limit: int, oldest: int, max_bytes: int | None) -> None:
        raise NotImplementedError

    def _forget(self, until: int) -> None:
        raise NotImplementedError


def test_it_is_not_woken_for_what_it_has_taken() -> None:
    """On PostgreSQL each time costs a question to the server."""
    writer = Writer()
    writer.start()
    writer.join(PATIENCE)
    assert not writer.is_alive()
    assert writer.written == [JOBS[:1], JOBS[1:]]
    assert writer.wakes == [False, False]
