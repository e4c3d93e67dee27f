"""``meup demo``: the command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from meup_agent.cli import exit_codes
from meup_agent.cli.failures import require_extra
from meup_agent.cli.options import NoColour, option
from meup_agent.cli.render.logs import log_nothing
from meup_agent.cli.render.output import Output
from meup_agent.cli.signals import ENDING, run_until_signal

if TYPE_CHECKING:
    from anyio.abc import TaskGroup


def demo(
    folder: Annotated[
        Path | None,
        option(
            "PATH",
            "The folder that the agents work on; else a sample in a temporary place. What the"
            " demo writes there is called meup-demo-… and removed at the end.",
            "--dir",
        ),
    ] = None,
    no_colour: NoColour = False,
) -> None:
    """Watch four agents work on real files over a real gateway, in under 15 seconds.

    A proposal is fulfilled, one is edited, one rejected, one withdrawn while it runs, and the
    gateway is killed under a running tool. The exit code says whether all went as expected.

    Example: `meup demo --dir ~/notes`
    """
    require_extra("a gateway")
    log_nothing()
    output = Output(colour=not no_colour)

    async def act(_: TaskGroup) -> int:
        # A gateway needs its extra, so what uses one is imported when that is known to be here.
        from meup_agent.cli.demo.participants import workspace_in
        from meup_agent.cli.demo.scenes import perform

        with workspace_in(folder) as workspace:
            return exit_codes.OK if await perform(workspace, output) else exit_codes.FAILED

    run_until_signal(act, ENDING)
