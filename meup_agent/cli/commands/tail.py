"""``meup tail``: a space as a live timeline."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import anyio
import typer

from meup_agent.agent.agent import Agent
from meup_agent.cli.address import Address, SpaceOptions
from meup_agent.cli.options import NoColour, TakeOver, complete_kind, flag, option
from meup_agent.cli.render.logs import log_nothing
from meup_agent.cli.render.output import Output, Stderr
from meup_agent.cli.render.timeline import (
    ExpiryWatch,
    TimelineFilter,
    suggest_kinds,
)
from meup_agent.cli.session import ReportingConnector, format_loss
from meup_agent.cli.signals import STOPPING, run_until_signal
from meup_agent.escape import as_json_line
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.wording import shown_name

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from meup_agent.client import space as client
    from meup_agent.transport.base import CloseInfo

UNPRINTED: Final = 64
"""Lines that wait for a slow reader; beyond them envelopes wait in the watcher, which counts what
it drops."""


def tail(
    *,
    where: SpaceOptions,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="PATTERN",
            help="Only these kinds, as in capabilities: `mcp.*`, `acme/**`, `!system.*`; or a word"
            " of the timeline, such as proposal or cancel. It and the next three may be given"
            " several times.",
            autocompletion=complete_kind,
        ),
    ] = None,
    sender: Annotated[
        list[str] | None,
        option("NAME", "Only what this participant sends.", "--from"),
    ] = None,
    to: Annotated[
        list[str] | None,
        option("NAME", "Only what is addressed to this participant by name."),
    ] = None,
    who: Annotated[
        list[str] | None,
        option(
            "NAME", "Only what this participant sends or is sent by name, and its coming and going."
        ),
    ] = None,
    about: Annotated[
        str | None,
        option(
            "ID",
            "Only one exchange, all of it: a proposal, who rejects it or carries it out, the"
            " response, and what is said about it. The id as on the left, or more of it.",
            "--about",
            "--proposal",
        ),
    ] = None,
    take_over: TakeOver = False,
    as_json: Annotated[
        bool, flag("--json", "Each envelope as one line of JSON, as it came.")
    ] = False,
    no_colour: NoColour = False,
) -> None:
    """Show a space as a live timeline, until Ctrl-C.

    The ids on the left belong together: a proposal, the request that fulfills it and the response
    begin with the same one. It only looks on: any participant's token will do, and an agent that
    runs with it is not disturbed.

    Thoughts of a line of thought are folded into its end, which counts them; `--kind reasoning/*`
    or `--about` shows them.

    Example: `MEUP_TOKEN=… meup tail --url ws://localhost:8420 --space demo`

    Example: `meup tail --kind 'mcp.*' --who alice`

    Example: `meup tail --about 4f2a`
    """
    shown = TimelineFilter(
        kind=kind or (),
        sender=sender or (),
        to=to or (),
        who=who or (),
        about=about,
        fold=not as_json,
    )
    address = where.address()
    output, stderr = Output(colour=not no_colour), Stderr(colour=not no_colour)
    for remark in suggest_kinds(kind or ()):
        stderr.note(remark)
    log_nothing()
    command = _Tail(address, output, shown, as_json=as_json, take_over=take_over)
    run_until_signal(command.run, STOPPING)


@dataclass
class _Tail:
    """One run of the command."""

    where: Address
    output: Output
    shown: TimelineFilter
    as_json: bool
    take_over: bool
    _me: str = ""
    _expiries: ExpiryWatch | None = None

    def __post_init__(self) -> None:
        self._timeline = self.output.timeline()
        # Text: a line about our connection.
        self._send, self._receive = anyio.create_memory_object_stream[Envelope | str](UNPRINTED)

    async def run(self, tasks: TaskGroup) -> None:
        """Follow the space."""
        with self._send, self._receive:
            tasks.start_soon(self._until_unread, tasks.cancel_scope)
            tasks.start_soon(self._print)
            await self._follow()

    async def _follow(self) -> None:
        dial = ReportingConnector(
            self.where.url, self.where.space, self._note_connection, patient=False
        )
        joining = Agent("meup tail").join(
            dial,
            **self.where.identity,
            grace=0.0,
            observe=True,
            take_over=self.take_over,
        )
        async with joining as space:
            self._expiries = ExpiryWatch(space)
            with space.watch() as envelopes:
                for note in self._greeting(space):
                    await self._send.send(note)
                missed = 0
                async for envelope in envelopes:
                    if envelopes.missed > missed:
                        lost = envelopes.missed - missed
                        await self._send.send(f"missed {lost} envelopes, read too slowly")
                        missed = envelopes.missed
                    await self._send.send(envelope)

    def _greeting(self, space: client.Space) -> Iterator[str]:
        self._me = shown_name(space.me)
        here = ", ".join(
            shown_name(each.id)
            for each in space.participants
            if each.id != space.me or space.observing
        )
        where = f"{self.where.space} at {self.where.url}"
        yield f"connected to {where}; here: {here or 'no others'}"
        if space.gateway.guarantees.hidden_targets:
            yield "this gateway shows only what is for everybody, or for us"
        if self.shown.chain is not None:
            wanted = shown_name(self.shown.chain.wanted)
            yield f"waiting for {wanted}; what came before this moment is not shown"

    async def _note_connection(self, closed: CloseInfo | None) -> None:
        """A line for what becomes of the connection; the first welcome has one of its own."""
        if closed is not None:
            await self._send.send(format_loss(closed))
        elif self._me:
            await self._send.send("connected again")

    # --- what is printed ---

    async def _print(self) -> None:
        while True:
            item: Envelope | str | None = None
            watch = self._expiries
            look = math.inf if watch is None else watch.next_look
            with anyio.CancelScope(deadline=look):
                try:
                    item = await self._receive.receive()
                except anyio.EndOfStream:
                    return
            if item is None:
                await self._print_expired()
            elif isinstance(item, str):
                await self._print_note(item)
            else:
                await self._print_if_shown(item)

    async def _print_note(self, note: str) -> None:
        if self.as_json:
            sys.stderr.write(f"meup: {note}\n")
            sys.stderr.flush()
        else:
            await self.output.show(self._timeline.note(self._me, "tail", note))

    async def _print_expired(self) -> None:
        for record in () if self._expiries is None else self._expiries.pop():
            # As JSON each line is an envelope, and no envelope tells of it.
            entry = self._timeline.expiry(record.envelope, anyio.current_time())
            if not self.as_json and self.shown.shows(entry):
                await self.output.show(self._timeline.line(entry))

    async def _print_if_shown(self, envelope: Envelope) -> None:
        if self._expiries is not None:
            await self._print_expired()
            self._expiries.add(envelope)
        entry = self._timeline.observe(envelope, anyio.current_time())
        chain = self.shown.chain
        was_clear = chain is None or not chain.other
        if self.shown.shows(entry):
            if self.as_json:
                await self.output.write(_frame_line(envelope))
            else:
                await self.output.show(self._timeline.line(entry))
        if chain is not None and chain.other and was_clear:
            wanted, shown, other = (
                shown_name(each) for each in (chain.wanted, chain.exchange, chain.other)
            )
            await self._print_note(
                f"more than one id begins with {wanted}: this is {shown}; for {other}, give more"
                " of it"
            )

    # --- when it ends ---

    async def _until_unread(self, scope: anyio.CancelScope) -> None:
        await self.output.until_closed()
        scope.cancel()


def _frame_line(envelope: Envelope) -> str:
    """An envelope as it came, as one line of JSON."""
    try:
        value = json.loads(envelope.frame.decode(errors="replace"))
    except (ValueError, RecursionError):
        # Not every gateway checks what it lets through.
        value = {"id": envelope.id, "from": envelope.sender, "kind": envelope.kind}
    return as_json_line(value)
