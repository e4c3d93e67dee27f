"""``meup journal``: what to do with the file in which a gateway keeps what was said."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio

from meup_agent.cli.commands import CommandTyper
from meup_agent.cli.failures import require_extra
from meup_agent.cli.options import argument, option
from meup_agent.cli.render.formatting import counted
from meup_agent.cli.render.logs import log_to_stderr
from meup_agent.cli.render.output import Stderr, progress_line
from meup_agent.cli.signals import ENDING, end_by_signals, run_until_signal
from meup_agent.errors import ConfigurationError
from meup_agent.escape import visible

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

journal = CommandTyper("journal")


@journal.callback()
def journal_group() -> None:
    """Copy the journal of a gateway, to keep it or to move it.

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


def copy(
    source: Annotated[
        Path,
        option("FILE", "The journal to copy: its file, or a space's file (YAML).", "--from"),
    ],
    target: Annotated[
        Path,
        option(
            "FILE",
            "Where the copy goes, a place without a journal: a file, or a space's file (YAML).",
            "--to",
        ),
    ],
) -> None:
    """Copy a journal to another place: from a file to NATS, or back.

    A space's file says under `journal` where its journal is. No gateway may run on either place,
    and none starts on a copy that is not complete. If it was interrupted, run the same command
    again, and it goes on. Entries keep their times and get new numbers, so members that come back
    are told of a gap.

    At the end the copy is read back and compared. The SHA-256 that is printed is that of both.

    Example: `meup journal copy --from journal.db --to space.yaml`

    Example: `meup journal copy --from space.yaml --to journal.db`
    """
    require_extra("a gateway")
    from meup_agent.gateway.journal.copying import copy_journal
    from meup_agent.gateway.journal.places import place_of
    from meup_agent.gateway.runtime import wall_clock

    log_to_stderr("warning")
    origin, place = place_of(source), place_of(target)
    if origin._replace(name="") == place._replace(name=""):
        raise ConfigurationError(f"--from and --to are both {origin.name}; give two places")
    stderr = Stderr(colour=False)

    async def act(_: TaskGroup) -> None:
        async with progress_line(stderr.console, "copying the journal") as waiting:

            def tell(count: int) -> None:
                waiting.rename(f"copying the journal: {count:,} envelopes")

            try:
                done = await copy_journal(origin, place, wall_clock, tell)
            except anyio.get_cancelled_exc_class():
                stderr.note("interrupted; the same command goes on where it stopped")
                raise
        where = f"{place.name}: {counted(done.envelopes, 'envelope')}"
        where += f" of {counted(done.spaces, 'space')}"
        if done.was_there:
            where += ", which were there already"
        elif done.went_on:
            where += f", {done.went_on:,} of them from a copy that was interrupted"
        sys.stdout.write(f"{visible(where, 500)}\nSHA-256 {done.digest}\n")

    run_until_signal(act, ENDING)


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
journal.add("copy", copy)
