"""Plugin of pytest that runs the tests in several processes, forked when all are collected.

`python -m pytest -p tests.workers --workers=4`. Processes that each import and collect everything,
and tell of each test in six messages, cost a sixth of what the tests themselves do. Here one
process collects, and its forks tell of many tests at a time. Each has a part of the tests, in their
order, and takes the next of it whenever it begins the last that it has; when its part is over, it
helps where most is left, with fewer towards the end, so that all end together. The parts lie apart,
since neighbours are alike: tests that wait for programs share a core with tests that compute.

Where a process ends in a test, as it does when the test's time is over, that test has failed.
Another process goes on, and repeats what had not been told of.
"""

import mmap
import multiprocessing
import os
import random
import struct
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

import pytest
from _pytest.capture import FDCapture

AT_ONCE = 24
"""Tests that a process takes at most; neighbours share what is made once for a file."""

SILENCE = 1.0
"""Seconds after which a process tells of what has run, though it has more to do."""

_INDEX = struct.Struct("!i")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("workers").addoption(
        "--workers", type=int, default=0, help="processes that run the tests; 0: this one alone"
    )


def pytest_configure(config: pytest.Config) -> None:
    count = config.option.workers
    if count and hasattr(os, "fork") and not config.option.usepdb:
        config.pluginmanager.register(_Pool(count), "workers")


class _Pool:
    """The processes, as the one that collected the tests sees them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._running: dict[Connection, _Worker] = {}
        self._parts: list[range] = []
        self._session: pytest.Session

    @pytest.hookimpl
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest's own loop says so
        self._session = session
        terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        terminal.showfspath = False  # the files' tests come in between each other's
        # Before there are processes that would each make one.
        _folders(session.config).getbasetemp()
        bounds = [session.testscollected * i // self._count for i in range(self._count + 1)]
        self._parts = [range(*each) for each in pairwise(bounds)]
        try:
            for part in range(self._count):
                self._start(part, self._take(part))
            while self._running:
                for connection in cast("list[Connection]", wait(list(self._running))):
                    self._hear(connection)
        finally:
            for worker in self._running.values():
                worker.process.terminate()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _take(self, own: int) -> list[int]:
        """The indices of a part's next tests, or of another's last, when that part is over.

        None where there are no more, or no more are wanted.
        """
        if self._is_over():
            return []
        count = min(AT_ONCE, -(-sum(map(len, self._parts)) // (4 * self._count)))
        if part := self._parts[own]:
            taken, self._parts[own] = part[:count], part[count:]
        else:
            most = max(range(self._count), key=lambda each: len(self._parts[each]))
            part = self._parts[most]
            self._parts[most], taken = part[:-count], part[-count:]
        return list(taken)

    def _start(self, part: int, indices: list[int]) -> None:
        if indices:
            worker = _Worker(self._session, part, indices, list(self._running))
            self._running[worker.connection] = worker

    def _hear(self, connection: Connection) -> None:
        worker = self._running[connection]
        try:
            events, asks = connection.recv()
        except EOFError:
            del self._running[connection]
            connection.close()
            worker.process.join()
            if worker.untold and not self._is_over():
                self._replace(worker)
            return
        for name, arguments in events:
            if name == "told":
                worker.untold.remove(arguments)
            else:
                self._tell(name, arguments)
        if asks:
            taken = self._take(worker.part)
            worker.untold += taken
            connection.send(taken)

    def _tell(self, name: str, arguments: Any) -> None:
        config = self._session.config
        if name == "stop":
            self._session.shouldstop = self._session.shouldstop or arguments
            return
        if name == "warning":
            config.hook.pytest_warning_recorded.call_historic(kwargs=arguments)
            return
        report = config.hook.pytest_report_from_serializable(config=config, data=arguments)
        config.hook.pytest_runtest_logreport(report=report)

    def _replace(self, ended: "_Worker") -> None:
        """Fail the test that a process ended in, and let another do the rest."""
        index = ended.current()
        item = self._session.items[index]
        report = pytest.TestReport(
            item.nodeid,
            item.location,
            {},
            "failed",
            f"the process of the test ended, with {ended.process.exitcode}",
            "call",
        )
        self._session.config.hook.pytest_runtest_logreport(report=report)
        left = [untold for untold in ended.untold if untold != index]
        if not self._is_over():
            self._start(ended.part, left or self._take(ended.part))

    def _is_over(self) -> bool:
        """True when no more tests are wanted, as after the failure that was to be the last."""
        return bool(self._session.shouldfail or self._session.shouldstop)


class _Worker:
    """One of the processes, as the one that collected the tests sees it."""

    def __init__(
        self, session: pytest.Session, part: int, indices: list[int], others: Sequence[Connection]
    ) -> None:
        self.part = part
        fork = multiprocessing.get_context("fork")
        self.connection, theirs = fork.Pipe()
        # Shared, since a process may end without a word.
        self._place = mmap.mmap(-1, _INDEX.size)
        self.untold = list(indices)

        def run() -> None:
            # Or they would stay open when the process that collected the tests has ended.
            for connection in (*others, self.connection):
                connection.close()
            _Runner(session, theirs, self._place).run(indices)

        self.process: BaseProcess = fork.Process(target=run)
        with warnings.catch_warnings():
            # Python warns of forks beside threads; a thread that collection has left behind waits.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()

    def current(self) -> int:
        """The index of the test that runs, or ran last."""
        return int(_INDEX.unpack_from(self._place)[0])


class _Runner:
    """The tests of one process, in that process."""

    def __init__(self, session: pytest.Session, connection: Connection, place: mmap.mmap) -> None:
        self._session = session
        self._connection = connection
        self._place = place
        self._events: list[tuple[str, Any]] = []
        self._told_at = time.monotonic()
        self._settle()

    def run(self, indices: list[int]) -> None:
        session = self._session
        items, hook = session.items, session.config.hook
        queue = deque(indices)
        while queue:
            index = queue.popleft()
            _INDEX.pack_into(self._place, 0, index)
            if not queue:
                # Before the last: fixtures that the next test takes as well are kept for it.
                self._flush(asks=True)
                queue.extend(self._connection.recv())
            following = items[queue[0]] if queue else None
            hook.pytest_runtest_protocol(item=items[index], nextitem=following)
            self._events.append(("told", index))
            if session.shouldfail or session.shouldstop:
                # Failures are counted where they are told of, too; other reasons are known here.
                self._events += [("stop", session.shouldstop)] if session.shouldstop else []
                break
            if time.monotonic() - self._told_at > SILENCE:
                self._flush()
        self._flush()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        self._events.append(("report", data))
        if report.failed:
            self._told_at = 0.0  # when the test has ended, told at once

    @pytest.hookimpl
    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        # Another process may not be able to read the warning itself.
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        told = warnings.WarningMessage(
            UserWarning(text), UserWarning, warning_message.filename, warning_message.lineno
        )
        arguments = {"warning_message": told, "when": when, "nodeid": nodeid, "location": location}
        self._events.append(("warning", arguments))

    def _flush(self, asks: bool = False) -> None:
        self._connection.send((self._events, asks))
        self._events = []
        self._told_at = time.monotonic()

    def _settle(self) -> None:
        """Have what is a process's own: random numbers, a folder, captured output, reports."""
        random.seed()
        config = self._session.config
        factory = _folders(config)
        factory._basetemp = factory.mktemp("worker")
        _own_captured_output(config.pluginmanager.get_plugin("capturemanager"))
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        config.pluginmanager.unregister(terminal)
        config.pluginmanager.register(_Silent(terminal), "terminalreporter")
        config.pluginmanager.register(self, "worker")
        # A process in the place of another: pytest repeats to it each warning that has been told.
        self._events.clear()


class _Silent:
    """A reporter that tells of nothing; what is written when a test's time is over still comes."""

    def __init__(self, terminal: Any) -> None:
        self._tw = terminal._tw


def _own_captured_output(manager: Any) -> None:
    """Put a file of this process's own in the place of those into which pytest captures output.

    In their place, since a library that is imported may have kept what `sys.stderr` was.
    """
    capture = manager._global_capturing
    manager.suspend_global_capture()
    for each in (capture.out, capture.err):
        if isinstance(each, FDCapture):
            with tempfile.TemporaryFile(buffering=0) as own:
                os.dup2(own.fileno(), each.tmpfile.fileno(), inheritable=False)
    manager.resume_global_capture()


def _folders(config: Any) -> Any:
    """The factory of temporary folders, which pytest keeps to itself."""
    return config._tmp_path_factory
