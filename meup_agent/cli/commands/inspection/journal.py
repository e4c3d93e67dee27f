"""``meup journal``: what to do with the file in which a gateway keeps what was said."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from meup_agent.cli.commands import CommandTyper
from meup_agent.cli.failures import require_extra
from meup_agent.cli.options import argument, option
from meup_agent.cli.render.formatting import counted
from meup_agent.cli.signals import end_by_signals
from meup_agent.errors import ConfigurationError
from meup_agent.escape import visible

journal = CommandTyper("journal")


@journal.callback()
def journal_group() -> None:
    """Copy the journal of a gateway.

    Example: `meup journal backup copy.db --journal journal.db`
    """


def backup(
    file: Annotated[Path, argument("FILE", "The copy, a new file.")],
    journal_file: Annotated[
        Path | None,
        option(
            "FILE",
            "The journal to copy; else that of the space's file, or the one that `meup up` keeps.",
            "--journal",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option(
            "FILE",
            "The space's file, as `meup gateway` takes it; else `.mew/space.yaml` or `space.yaml`.",
        ),
    ] = None,
) -> None:
    """Copy a journal into a new file, also while its gateway runs.

    The copy is as the journal is at one moment, is readable for its owner alone, and has been
    looked through when it has its name. A damaged journal is not copied.

    Example: `meup journal backup copy.db --journal journal.db`

    Example: `meup journal backup "backups/$(date +%F).db"`
    """
    if journal_file is not None and config is not None:
        raise ConfigurationError("give --journal or --config, not both")
    source = journal_file or _configured(config)
    from meup_agent.gateway.journal.archive import back_up

    with end_by_signals():
        count = back_up(source, file)
    sys.stdout.write(f"{visible(str(file), 500)}: {counted(count, 'envelope')}\n")


def _configured(config: Path | None) -> Path:
    """The journal of a space's file."""
    require_extra("a gateway")
    from meup_agent.cli.up.state import find_journal, journal_path
    from meup_agent.gateway.config_file import load_config
    from meup_agent.gateway.space_yaml import find_space_file

    config = config or find_space_file()
    if config is None and (kept := find_journal()) is not None:
        return kept
    if config is None:
        raise ConfigurationError(
            "what to copy is missing: there is no space.yaml in this folder; give --journal FILE or"
            " --config FILE"
        )
    settings = load_config(config, needs_tokens=False).journal
    path = settings.path
    if settings.nats is not None:
        raise ConfigurationError(
            f"{config}: its journal is on NATS, so there is no file to copy; copy its streams with"
            " 'nats stream backup'"
        )
    if path is None:
        kept = journal_path(config)
        if kept.is_file():
            return kept
        raise ConfigurationError(
            f"{config}: its journal is in memory, so there is no file to copy; set journal.path"
        )
    return path


journal.add("backup", backup)
