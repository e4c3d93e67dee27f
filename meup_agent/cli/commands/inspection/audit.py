"""``meup audit``: every proposal with its state, who decided it, when and why."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from enum import StrEnum
from typing import Annotated

import anyio
from rich.text import Text

from meup_agent.cli.audit import (
    AuditListing,
    AuditTimeline,
    DamageNote,
    JournalOptions,
    time_of,
)
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.cli.options import NoColour, flag, option
from meup_agent.cli.render.formatting import counted
from meup_agent.cli.render.logs import log_nothing
from meup_agent.cli.render.output import Output, Stderr, progress_line
from meup_agent.errors import ConfigurationError
from meup_agent.escape import as_json_line
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
