"""``meup demo``: the command."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from meup_agent.cli import exit_codes
from meup_agent.cli.commands.gateway import require_extra
from meup_agent.cli.logs import log_nothing
from meup_agent.cli.options import NoColour
from meup_agent.cli.render.output import Output, OutputClosed
from meup_agent.cli.signals import ENDING, exit_code, watch_signals
from meup_agent.transport.task_groups import background_tasks


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="PATH",
            help="The folder that the agents work on; else a sample in a temporary place. What the"
            " demo writes there is called meup-demo-… and removed at the end.",
        ),
    ] = None,
    no_colour: NoColour = False,
) -> None:
    """Watch four agents work on real files over a real gateway, in under 15 seconds.

    A proposal is fulfilled, one is edited, one rejected, one withdrawn while it runs, and the
    gateway is killed under a running tool. The exit code says whether all went as expected.

    Example: `meup demo --dir ~/notes`
    """
    require_extra()
    log_nothing()
    code = anyio.run(_Demo(Output(colour=not no_colour), folder).run)
    if code:
        raise typer.Exit(code)


class _Demo:
    """One run of the command."""

    def __init__(self, output: Output, folder: Path | None) -> None:
        self._output = output
        self._folder = folder
        self._code = exit_codes.OK

    async def run(self) -> int:
        """Play, and clean up whatever happens; the exit code."""
        try:
            async with background_tasks() as tasks:
                await tasks.start(watch_signals, ENDING, partial(self._end, tasks.cancel_scope))
                await self._play()
        except OutputClosed:
            self._output.abandon()
        return self._code

    async def _play(self) -> None:
        # A gateway needs its extra, so what uses one is imported when that is known to be here.
        from meup_agent.cli.demo.play import perform
        from meup_agent.cli.demo.workspace import workspace_in

        with workspace_in(self._folder) as workspace:
            if not await perform(workspace, self._output):
                self._code = exit_codes.FAILED

    def _end(self, scope: anyio.CancelScope, number: int) -> None:
        self._code = exit_code(number)
        scope.cancel()
