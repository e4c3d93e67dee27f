"""``meup audit`` and ``journal``: a gateway's journal, read for people, and its file copied."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from rich.text import Text

from meup_agent.cli.audit import (
    AuditListing,
    AuditTimeline,
    DamageNote,
    JournalOptions,
    time_of,
)
from meup_agent.cli.commands import CommandTyper
from meup_agent.cli.failures import Failure, Misuse, require_extra
from meup_agent.cli.options import NoColour, argument, flag, option
from meup_agent.cli.render.formatting import counted
from meup_agent.cli.render.logs import log_nothing, log_to_stderr
from meup_agent.cli.render.output import Output, Stderr, progress_line
from meup_agent.cli.signals import ENDING, end_by_signals, run_until_signal
from meup_agent.errors import ConfigurationError
from meup_agent.escape import as_json_line, visible
from meup_agent.protocol.audit import (
    Audit,
    AuditRecord,
    SettledRecords,
    SpaceOperation,
    operation_as_json,
    proposal_as_json,
)
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.wording import shown_name, shown_names

if TYPE_CHECKING:
    from anyio.abc import TaskGroup


class StateName(StrEnum):
    """The states that can be asked for, as a person writes them."""

    PENDING = "pending"
    IN_PROGRESS = "in-progress"
    PERMITTED = "permitted"
    FULFILLED = "fulfilled"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


def audit(
    *,
    source: JournalOptions,
    proposal: Annotated[
        str | None,
        option(
            "ID",
            "Only this one, with everything that was said about it, as a timeline. The id, or"
            " the beginning of it.",
        ),
    ] = None,
    proposer: Annotated[
        str | None,
        option("NAME", "Only what this participant proposed.", "--from"),
    ] = None,
    state: Annotated[
        list[StateName] | None,
        option(
            "STATE",
            "Only proposals in this state: pending, in-progress, permitted, fulfilled,"
            " rejected, withdrawn or expired; may be given several times.",
        ),
    ] = None,
    grants: Annotated[
        bool,
        flag(
            "--grants",
            "Grants, revocations, invitations, removals, acceptances of tools and yeses in advance"
            " instead of the proposals.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        flag("--json", "Each proposal, or each thing that was done, as one line of JSON."),
    ] = False,
    no_colour: NoColour = False,
) -> None:
    """Show what was proposed, what became of it, and who decided that, when and why.

    It reads the journal of a gateway: its file, or over HTTP the journal of a running one, for the
    space of the token. Where neither is named, it finds the one that `meup up` keeps. It changes
    nothing, and the participants do not notice it.

    Example: `meup audit`

    Example: `meup audit --journal journal.db --space demo`

    Example: `MEUP_TOKEN=… meup audit --http http://localhost:8420 --state rejected`

    Example: `meup audit --journal journal.db --proposal 4f2a`
    """
    if grants and (proposal or state):
        raise ConfigurationError("--grants shows no proposals; leave --proposal and --state out")
    states = frozenset(ProposalState(each.value.replace("-", "_")) for each in state or ())
    log_nothing()
    query = None  # all of the journal
    if proposal is not None or states:
        from meup_agent.gateway.journal.decisions import DecisionQuery  # loads SQLite

        query = DecisionQuery(proposal, proposer, states)
    pages = source.open_pages(query=query)
    output, stderr = Output(colour=not no_colour), Stderr(colour=not no_colour)
    listing, shown = AuditListing(output.width, time.time()), 0

    def lines(
        proposals: Iterable[AuditRecord], operations: Iterable[SpaceOperation]
    ) -> list[str | Text]:
        """The entries that the filters let through."""
        nonlocal shown
        if grants:
            done = [each for each in operations if proposer in (None, each.by)]
            shown += len(done)
            if as_json:
                return [as_json_line(operation_as_json(each)) for each in done]
            return list(listing.operations(done))
        found = [
            each
            for each in proposals
            if (not states or each.state in states) and proposer in (None, each.proposer)
        ]
        shown += len(found)
        if as_json:
            return [as_json_line(proposal_as_json(each)) for each in found]
        return list(listing.proposals(found))

    async def run() -> None:
        """Take the journal in, and show what is settled as soon as it is."""
        async with aclosing(pages), AsyncExitStack() as meanwhile:
            audit, count, damage = Audit(), 0, DamageNote()
            begin: int | None = None
            settled = SettledRecords(
                audit, keep=lambda each: proposal is not None and each.id.startswith(proposal)
            )
            waiting = await meanwhile.enter_async_context(
                progress_line(stderr.console, "reading the journal")
            )
            async for page in pages:
                for entry in page.entries:
                    audit.add(entry)
                if page.entries and not count:
                    begin = page.entries[0].at
                count += len(page.entries)
                damage.add(page)
                if page.now is not None:
                    audit.pass_time(page.now)
                waiting.rename(f"reading the journal: {count:,} envelopes")
                settled_now, done = list(settled.pop(count)), audit.pop_operations()
                found = [] if proposal is not None else lines(settled_now, done)
                if found and output.is_terminal:
                    # The lines themselves show how far it is; on one terminal the two would mix.
                    await meanwhile.aclose()
                await output.show_all(found)
            await meanwhile.aclose()
            damage.write(stderr)
            if proposal is not None:
                one = _one(audit.named(proposal, proposer=proposer), proposal)
                if as_json:
                    await output.write(as_json_line(proposal_as_json(one, timeline=True)))
                else:
                    timeline = AuditTimeline(output.width, output.glyphs)
                    await output.show_all(timeline.lines(one))
                return
            await output.show_all(lines(list(audit.proposals), []))
            if not as_json and (output.is_terminal or not shown):
                said = counted(shown, "operation" if grants else "proposal")
                if begin is not None and source.since is None:
                    # Before that, nothing is known.
                    said += f"; what is kept begins {time_of(begin)}"
                    if audit.unknown and not grants:
                        said += f"; about older proposals: {counted(audit.unknown, 'decision')}"
                stderr.note(said)

    anyio.run(run)


def _one(found: Sequence[AuditRecord], wanted: str) -> AuditRecord:
    """The proposal that is meant."""
    if not found:
        raise Failure(f"no proposal in the journal has an id that begins with {wanted!r}")
    if len(found) == 1:
        return found[0]
    if len({item.id for item in found}) == 1:
        proposers = list(dict.fromkeys(item.proposer for item in found))
        if len(proposers) > 1:
            raise Misuse(
                f"several participants have used the id {wanted!r}: {shown_names(proposers)};"
                " say with --from whose is meant"
            )
        raise Misuse(
            f"{shown_names(proposers)} has used the id {wanted!r} {len(found)} times; meup audit"
            " --json shows all of them, and --since tells them apart"
        )
    ids = ", ".join(shown_name(item.id) for item in found[:4])
    raise Misuse(f"several proposals begin with {wanted!r}: {ids}")


# --- meup journal ---

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
    """Copy a journal to another place: from a file to NATS or PostgreSQL, or back.

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
    from meup_agent.gateway.journal.engines import place_of
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
    if settings.postgres is not None:
        raise ConfigurationError(
            f"{config}: its journal is in PostgreSQL, so there is no file to copy; copy its schema"
            f" with 'pg_dump --schema={settings.postgres.schema}'"
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
