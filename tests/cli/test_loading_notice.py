"""The notice that a command takes its time to load: at a terminal, and only while it does."""

import io
import threading

import pytest

from meup_agent.cli.loading_notice import LoadingNotice
from tests.patience import PATIENCE


class Terminal(io.StringIO):
    """A standard error that counts the lines which come."""

    def __init__(self, terminal: bool = True) -> None:
        super().__init__()
        self._terminal = terminal
        self.lines = threading.Semaphore(0)

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        count = super().write(text)
        self.lines.release()
        return count


def test_slow_loading_is_told_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    notice = LoadingNotice(patience=0.001)
    notice.begin()
    notice.begin()  # of the same loading
    for _ in range(2):
        assert terminal.lines.acquire(timeout=PATIENCE)
    notice.end()
    for each in threading.enumerate():
        if each.name.endswith("(_write_notices)"):
            each.join(PATIENCE)
            assert not each.is_alive()
    first, second, *_ = terminal.getvalue().splitlines()
    assert first == "meup: loading; the first start after an installation takes longest"
    assert second == "meup: still loading"


@pytest.mark.parametrize("terminal", [True, False], ids=["at once", "no terminal"])
def test_nothing_is_said_of(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal(terminal)
    monkeypatch.setattr("sys.stderr", shown)
    notice = LoadingNotice(patience=3_600.0 if terminal else 0.0)
    notice.begin()
    sayers = [each for each in threading.enumerate() if each.name.endswith("(_write_notices)")]
    assert len(sayers) == terminal
    notice.end()
    for each in sayers:
        each.join(PATIENCE)
    assert shown.getvalue() == ""
