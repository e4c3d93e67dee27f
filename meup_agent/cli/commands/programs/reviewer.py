"""``meup reviewer``: a participant that decides proposals by a policy file, and by yeses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meup_agent.cli.address import SpaceOptions
from meup_agent.cli.failures import require_extra, run_joined
from meup_agent.cli.options import LogLevel, option


def reviewer(
    policy: Annotated[
        Path | None,
        option("FILE", "The policy, in YAML; without one everything is asked about."),
    ] = None,
    *,
    votes: Annotated[
        Path | None,
        option("FILE", "Where votes are kept; by default the policy's path with .votes behind it."),
    ] = None,
    at: SpaceOptions,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged.")] = LogLevel.INFO,
) -> None:
    """Decide proposals by a policy, and by yeses in advance, until Ctrl-C or SIGTERM.

    What the policy allows is fulfilled, what it denies rejected, and the rest left to people, who
    are reminded by chat where a rule says so. Of a quorum it counts the votes, which people give in
    an inbox. What people would be asked about, and have said yes to in advance (`meup inbox yes`),
    is fulfilled as a use of that yes. A file that changes is read again at once, or refused whole
    with the reason, and the policy before it stays.

    Example: `MEUP_TOKEN=… meup reviewer --policy policy.yaml --space demo`
    """
    require_extra("a policy file")
    from meup_agent.approval.reviewer.reviewer import Reviewer
    from meup_agent.cli.render.logs import log_to_stderr
    from meup_agent.session import Settings

    deciding = Reviewer(policy, votes)
    where = at.address()
    log_to_stderr(log_level.value)
    run_joined(
        lambda hurry: deciding.join(
            where.url, **where.identity, settings=Settings(first_welcome=None), hurry=hurry
        )
    )
