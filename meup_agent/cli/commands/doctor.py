"""``meup doctor``: check the way to a space, hooks of coding agents, and a journal on a server."""

from __future__ import annotations

import json
import math
import os
import sys
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
from anyio import from_thread, to_thread
from msgspec import structs
from rich.text import Text

from meup_agent.cli import exit_codes
from meup_agent.cli.address import SpaceOptions, running_here
from meup_agent.cli.doctor import NOT_TRIED, Check, Report, diagnose, failed_names
from meup_agent.cli.failures import Failure
from meup_agent.cli.options import NoColour, argument, flag, option, seconds
from meup_agent.cli.render.formatting import hang
from meup_agent.cli.render.logs import log_nothing
from meup_agent.cli.render.output import Output
from meup_agent.cli.signals import STOPPING, run_until_signal
from meup_agent.errors import ConfigurationError

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from meup_agent.cli.guard.agents import CodingAgent
    from meup_agent.cli.guard.examination import DoorReport
    from meup_agent.protocol.wire.membership import Guarantees

STEP_SECONDS: Final = 5.0  # time for one check, unless the user says otherwise
QUIET_SECONDS: Final = 2.0  # time after which the check that is waited for is named
NAME_COLUMNS: Final = 17

FOLLOWS: Final[dict[str, tuple[str, str]]] = {
    "identity_checked": (
        "an approval comes from whom it names",
        "anybody can approve, reject or withdraw in anybody's name: take no approval for proof of"
        " who gave it",
    ),
    "echo": (
        "whether an approval or a withdrawal came first is decided here, the same for all",
        "of an approval and a withdrawal that cross, each end believes what it saw first",
    ),
    "resume": (
        "an approval that comes while the connection is away is sent again",
        "an approval that comes while the connection is away is lost here; participants of this"
        " package say it again themselves when the other one joins",
    ),
    "hidden_targets": (
        "what is addressed to one participant is hidden from all others: the proposer hears of an"
        " approval only from its sender, and no other participant can look on",
        "everybody sees who proposed, approved and carried out what",
    ),
    "lists_proposals": (
        "who comes later is told of every open proposal, and of those that were decided lately",
        "who comes later hears of no proposal that was made before",
    ),
    "keeps_yeses": (
        "a person can say yes for a time and a number of calls, and the gateway counts each use",
        "a person is asked about each call anew",
    ),
}
"""Consequences for approvals of each guarantee, where a gateway gives it and where not."""

_BETTER_WITHOUT: Final = frozenset({"hidden_targets"})


def doctor(
    gateway: Annotated[
        str | None,
        argument("URL", "The gateway, for example ws://localhost:8420; else `--url` or MEUP_URL."),
    ] = None,
    *,
    where: SpaceOptions,
    timeout: Annotated[
        float,
        option("SECONDS", "How long each step may take, in seconds; inf: as long as it takes."),
    ] = STEP_SECONDS,
    doors: Annotated[
        bool, flag("--doors", "Check the hooks of coding agents alone, also where MEUP_URL is set.")
    ] = False,
    journal: Annotated[
        Path | None,
        option("PATH", "Check only the journal of a gateway's file, on NATS or in PostgreSQL."),
    ] = None,
    as_json: Annotated[
        bool, flag("--json", "One JSON document with everything that was found.")
    ] = False,
    no_colour: NoColour = False,
) -> None:
    """Check the way to a space and the hooks of coding agents, and say what is wrong.

    From the address over name, port, TLS, handshake and token to what one may do there, and what
    approvals are worth at that gateway. It only looks on, and a program that is connected with the
    same token is not disturbed. A gateway that knows no
    observers it joins for a moment, and takes that program's connection over: there, give it a
    token of its own. The exit code is 0 if all is good, 3 if there is no connection, else 1.

    Without an address it checks each hook that `meup guard` has set up, and tries those of Claude
    Code and Codex: the agent's own program, with a stand-in for its model on this machine, asks for
    a command that a policy denies, and asks again while there is no gateway. The command must not
    run. Of Cursor, Gemini, Copilot, VS Code and Zed the settings are read, and nothing is run.
    Nothing of yours is changed, and nothing is sent to a model's provider. What remains open is
    said, and how to close it.

    With `--journal` it checks the NATS servers that a gateway's file names: whether they can be
    reached and let the gateway do what it needs, whether the streams are as configured and their
    copies up to date, which gateways run, with which configuration, and who owns which space. Of a
    journal in PostgreSQL: the server, whether a power cut takes what it keeps, the tables, what its
    user may do, which gateway is at work, and which others wait.

    Example: `MEUP_TOKEN=… meup doctor ws://localhost:8420 --space demo`

    Example: `meup doctor --doors`

    Example: `meup doctor --journal space.yaml`
    """
    named = gateway or where.url
    if gateway is not None and where.url is not None:
        raise ConfigurationError("the url is given twice; give it as an argument or by --url")
    if named and doors:
        raise ConfigurationError("--doors looks at no other gateway; leave the url out")
    limit = seconds(timeout, "--timeout") or math.inf
    output = Output(colour=not no_colour)
    if journal is not None:
        if named or doors:
            raise ConfigurationError("--journal looks at no gateway or hook; leave the rest out")
        log_nothing()
        run_until_signal(_Doctor(None, [], output, limit, as_json, journal).run, STOPPING)
        return
    from meup_agent.cli.guard.examination import guarded_agents

    found = None if doors else named or os.environ.get("MEUP_URL")
    agents = [] if named else guarded_agents()
    if doors and not agents:
        raise Failure("no coding agent here has a hook of meup guard; add one with `meup guard`")
    if not found and not agents:
        said = "the url is missing; give it as an argument or set MEUP_URL"
        raise ConfigurationError(said + running_here())
    log_nothing()
    given = structs.replace(where, url=found) if found else None
    run_until_signal(_Doctor(given, agents, output, limit, as_json).run, STOPPING)


@dataclass(slots=True)
class _Doctor:
    """One run of the command."""

    _given: SpaceOptions | None
    _agents: list[CodingAgent]
    _output: Output
    _limit: float
    _as_json: bool
    _journal: Path | None = None
    _waits_for: str = ""
    _seconds: float = math.inf
    _changed: anyio.Event = field(default_factory=anyio.Event)

    async def run(self, tasks: TaskGroup) -> int:
        """Look into everything; the exit code."""
        tasks.start_soon(self._say_what_takes_long)
        if self._journal is not None:
            return await self._examine_journal(self._journal)
        report = None
        if self._given is not None:
            report = await diagnose(self._given, self, timeout=self._limit)
            await self._show(report)
        examined = [await self._examine(agent) for agent in self._agents]
        if self._as_json:
            await self._output.write(json.dumps(as_document(report, examined)) + "\n")
        if all(each.ok for each in examined) and (report is None or report.ok):
            return exit_codes.OK
        return exit_codes.FAILED if report is None or report.connected else exit_codes.NO_CONNECTION

    async def _examine(self, agent: CodingAgent) -> DoorReport:
        """Check the hook of an agent."""
        from meup_agent.cli.guard.examination import DoorReport, examine

        show, report = self._output.show, DoorReport(agent)
        if not self._as_json:
            blank = [Text()] if self._given is not None or agent is not self._agents[0] else []
            await show(*blank, Text(agent.title, style="bold"))
        async with aclosing(examine(agent, self, timeout=self._limit)) as checks:
            async for check in checks:
                report.checks.append(check)
                await self.report_check(check)
        self.begin_attempt("")
        if not self._as_json:
            await show(Text(), _verdict(report.checks))
        return report

    async def _examine_journal(self, file: Path) -> int:
        """Check the journal of a gateway's file; the exit code."""
        from meup_agent.cli.cluster.examination import examine_journal

        done: list[Check] = []

        def begin(what: str) -> None:
            from_thread.run_sync(self.begin_attempt, what, math.inf)

        def examine() -> None:
            for check in examine_journal(file, begin):
                done.append(check)
                from_thread.run(self.report_check, check)

        await to_thread.run_sync(examine, abandon_on_cancel=True)
        failed = failed_names(done)
        if self._as_json:
            checks = [asdict(check) for check in done]
            await self._output.write(json.dumps({"ok": not failed, "checks": checks}) + "\n")
        else:
            await self._output.show(Text(), _verdict(done))
        return exit_codes.FAILED if failed else exit_codes.OK

    # --- on the way ---

    def begin_attempt(self, what: str, seconds: float | None = None) -> None:
        """Note that something begins that may take a while."""
        self._waits_for, self._seconds = what, self._limit if seconds is None else seconds
        self._changed.set()

    async def report_check(self, check: Check) -> None:
        """A check is done."""
        self.begin_attempt("")
        if not self._as_json and check.said != NOT_TRIED:
            await self._output.show(*self._lines(check))

    async def _say_what_takes_long(self) -> None:
        while True:
            self._changed = anyio.Event()
            with anyio.move_on_after(QUIET_SECONDS if self._waits_for else float("inf")):
                await self._changed.wait()
                continue
            until = "" if math.isinf(self._seconds) else f", up to {self._seconds:g} s in all"
            sys.stderr.write(f"meup: waiting for {self._waits_for}{until}\n")
            sys.stderr.flush()
            self._waits_for = ""

    # --- what is shown ---

    async def _show(self, report: Report) -> None:
        if self._as_json:
            return
        show = self._output.show
        untried = [check.name for check in report.checks if check.said == NOT_TRIED]
        if untried:
            await show(self._line("-", "dim", NOT_TRIED, ", ".join(untried), "dim"))
        if report.guarantees is not None:
            await show(Text(), Text("What the gateway guarantees", style="bold"))
            await show(*self._guarantees(report.guarantees))
        await show(Text(), _verdict(report.checks))

    def _lines(self, check: Check) -> list[Text]:
        glyphs = self._output.glyphs
        sign, style = {
            True: ("!", "yellow") if _is_remark(check) else (glyphs.yes, "green"),
            False: (glyphs.no, "bold red"),
            None: ("-", "dim"),
        }[check.ok]
        lines = [self._line(sign, style, check.name, check.said, "dim" if check.ok is None else "")]
        if check.advice:
            look = "yellow" if check.ok else "bold"
            lines.append(self._line("", "", "", f"{glyphs.arrow} {check.advice}", look))
        return lines

    def _guarantees(self, guarantees: Guarantees) -> list[Text]:
        lines: list[Text] = []
        for name, given in structs.asdict(guarantees).items():
            is_good = given is (name not in _BETTER_WITHOUT)
            sign, style = (self._output.glyphs.yes, "green") if is_good else ("!", "yellow")
            said = f"yes: {FOLLOWS[name][0]}" if given else f"no: {FOLLOWS[name][1]}"
            lines.append(self._line(sign, style, name.replace("_", " "), said))
        return lines

    def _line(self, sign: str, style: str, name: str, said: str, look: str = "") -> Text:
        """Sign, name and what is said, wrapped where there is a terminal."""
        widest = max(len(self._output.glyphs.yes), len(self._output.glyphs.no))
        line = Text(no_wrap=True)
        line.append(f"{sign:<{widest}} ", style=style)
        line.append(f"{name:<{NAME_COLUMNS}}", style="bold" if style == "bold red" else "")
        indent = widest + 1 + NAME_COLUMNS
        return line.append(hang(said, self._output.width, indent), style=look)


def _verdict(checks: list[Check]) -> Text:
    if failed := failed_names(checks):
        return Text(f"not good: {', '.join(failed)}", style="bold red")
    remarks = "; mind what is marked with !" if any(map(_is_remark, checks)) else ""
    return Text(f"all is good{remarks}", style="bold green")


def _is_remark(check: Check) -> bool:
    return check.ok is True and bool(check.advice)


def as_document(report: Report | None, doors: list[DoorReport]) -> dict[str, Any]:
    """The reports as JSON values."""
    shown = [
        {
            "agent": each.agent.name,
            "ok": each.ok,
            "checks": [asdict(check) for check in each.checks],
        }
        for each in doors
    ]
    all_good = all(each.ok for each in doors)
    if report is None:
        return {"ok": all_good, "doors": shown}
    more = {"ok": report.ok and all_good, "doors": shown} if doors else {}
    return _way_document(report) | more


def _way_document(report: Report) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "connected": report.connected,
        "url": report.url,
        "space": report.space,
        "checks": [asdict(check) for check in report.checks],
        "me": report.me or None,
        "dialect": {"asked": report.asked or None, "adopted": report.adopted or None},
        "guarantees": None if report.guarantees is None else structs.asdict(report.guarantees),
        "guarantees_said_by_gateway": report.said_guarantees,
        "capabilities": list(report.capabilities),
        "may": {
            each.verb.replace(" ", "_"): {"allowed": each.allowed, "only": list(each.limits)}
            for each in report.permissions
        },
        "participants": list(report.participants),
        "round_trip_seconds": report.round_trip,
        "clock_difference_seconds": report.clock_difference,
    }
