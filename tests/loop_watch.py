"""Plugin of pytest that ends a run in which an event loop stands still.

A task that never lets others run holds up everything, the test's own limits of time as well. Where
a loop has not turned for :data:`STANDING_SECONDS` of its thread's processor time, in which nothing
that waits has a part, however slow the machine is, the stacks are told and the process ends: the
test that ran has failed. Loops of other threads are watched too, such as those of gateways.
"""

import asyncio
import faulthandler
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, Final, Protocol

import pytest

STANDING_SECONDS: Final = 20.0
"""Processor time of a thread without a turn of its loop; a turn of a test takes a part of one."""

LOOK_SECONDS: Final = 1.0

ASK_SECONDS: Final = 0.5
"""Processor time after which a loop is asked for a turn: most tests never take as much."""

_watched: "list[WatchedLoop]" = []
"""The loops that have begun and not ended."""


class WatchedLoop(Protocol):
    """A loop of one thread."""

    thread: int

    def standing(self) -> float:
        """Seconds of its thread's processor time since its last turn."""
        ...


class ThreadClock:
    """The processor time of a thread, to be made in that thread, and then read in any."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())

    def now(self) -> float:
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # the thread has ended
            return 0.0


class AsyncioLoop:
    """A loop of asyncio, or uvloop; one that works is asked for a turn, others are left alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self._clock = ThreadClock()
        self._asked = False
        self._turned_at = self._clock.now()

    def standing(self) -> float:
        now = self._clock.now()
        if self.loop.is_closed():
            _watched.remove(self)
        if not self.loop.is_running():
            self._turned_at = now
        elif not self._asked and now - self._turned_at >= ASK_SECONDS:
            self._asked, self._turned_at = True, now
            with suppress(RuntimeError):  # it has been closed just now
                self.loop.call_soon_threadsafe(self._turn)
        return now - self._turned_at if self._asked else 0.0

    def _turn(self) -> None:
        self._asked, self._turned_at = False, self._clock.now()


class TrioLoop:
    """A run of trio, as its instrument."""

    def __init__(self) -> None:
        self._turns = self._seen = 0
        self._waits = True
        self._turned_at = 0.0
        self._clock: ThreadClock
        self.thread: int

    def before_run(self) -> None:
        self.thread = threading.get_ident()
        self._clock = ThreadClock()
        _watched.append(self)

    def after_run(self) -> None:
        _watched.remove(self)

    def before_io_wait(self, timeout: float) -> None:
        # The run of several tests stays here between two of them.
        self._waits = True

    def after_io_wait(self, timeout: float) -> None:
        self._waits = False
        self._turns += 1

    def standing(self) -> float:
        now = self._clock.now()
        if self._waits or self._seen != self._turns:
            self._seen, self._turned_at = self._turns, now
        return now - self._turned_at


def _watch_asyncio() -> None:
    begin: Callable[[Any], None] = asyncio.Runner._lazy_init  # type: ignore[attr-defined]

    @wraps(begin)
    def begin_watched(runner: Any) -> None:
        is_new = runner._state.value == "created"
        begin(runner)
        if is_new:
            _watched.append(AsyncioLoop(runner._loop))

    asyncio.Runner._lazy_init = begin_watched  # type: ignore[attr-defined]


def _watch_trio() -> None:
    import trio

    for module, name in ((trio, "run"), (trio.lowlevel, "start_guest_run")):
        begin = getattr(module, name)

        def begin_watched(*given: Any, _begin: Any = begin, **options: Any) -> Any:
            instruments = [*options.pop("instruments", ()), TrioLoop()]
            return _begin(*given, instruments=instruments, **options)

        setattr(module, name, wraps(begin)(begin_watched))


# --- what pytest calls ---


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("loops").addoption("--standing-seconds", type=float, default=STANDING_SECONDS)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(time, "pthread_getcpuclockid") and not config.option.collectonly:
        config.pluginmanager.register(_Watch(config), "loop watch")
        _watch_asyncio()


class _Watch:
    """The thread that looks at the loops, and the test that runs."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._most = getattr(config.option, "standing_seconds", STANDING_SECONDS)
        self._process = 0
        self._test = ""

    @pytest.hookimpl
    def pytest_collection_finish(self) -> None:
        if "trio" in sys.modules:
            _watch_trio()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._test = item.nodeid
        if self._process != os.getpid():  # a fork has none of its parent's threads
            self._process = os.getpid()
            threading.Thread(target=self._look, name="loop watch", daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(min(LOOK_SECONDS, self._most))
            for loop in tuple(_watched):
                if loop.standing() >= self._most:
                    self._end(loop)

    def _end(self, loop: WatchedLoop) -> None:
        """Tell where each thread is, and end the process."""
        try:
            capture: Any = self._config.pluginmanager.get_plugin("capturemanager")
            capture.suspend_global_capture(in_=True)
            said = "".join(capture.read_global_capture())
            terminal = self._config.get_terminal_writer()
            terminal.line()
            terminal.sep(
                "+", f"the loop of thread 0x{loop.thread:016x} stands still in {self._test}"
            )
            with tempfile.TemporaryFile("w+") as stacks:
                # Not by the frames themselves, which go on meanwhile.
                faulthandler.dump_traceback(stacks)
                stacks.seek(0)
                terminal.write(stacks.read())
            terminal.sep("+", "what was written")
            terminal.write(said)
            terminal.flush()
        finally:
            os._exit(1)
