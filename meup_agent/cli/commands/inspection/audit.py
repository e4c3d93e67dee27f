"""``meup audit``: every proposal with its state, who decided it, when and why."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import anyio
from rich.text import Text

from meup_agent.cli.audit import (
    DamageNote,
    JournalOptions,
    Pages,
    ProposalListing,
    ProposalTimeline,
    time_of,
)
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.cli.options import AcceptDamage, NoColour, flag, option
from meup_agent.cli.render.formatting import counted
from meup_agent.cli.render.output import Output, Stderr, log_nothing, progress_line
from meup_agent.errors import ConfigurationError
from meup_agent.escape import as_json_line
from meup_agent.protocol.audit import (
    Audit,
    ProposalAudit,
    SettledProposals,
    SpaceOperation,
    operation_as_json,
    proposal_as_json,
)
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.wording import shown_name, shown_names

if TYPE_CHECKING:
    from meup_agent.gateway.journal.decisions import DecisionQuery


class StateName(StrEnum):
    """The states that can be asked for, as a person writes them."""

    PENDING = "pending"
    IN_PROGRESS = "in-progress"
    FULFILLED = "fulfilled"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class AuditFilter(NamedTuple):
    """Selects what is shown of an audit."""

    proposal: str | None  # its id, or the beginning of it
    proposer: str | None
    states: frozenset[ProposalState]
    grants: bool  # operations on the space, and no proposals
    as_json: bool

    @property
    def query(self) -> DecisionQuery | None:
        """The query to a journal's file; ``None``: all of it."""
        if self.proposal is None and not self.states:
            return None
        from meup_agent.gateway.journal.decisions import DecisionQuery  # loads SQLite

        return DecisionQuery(self.proposal, self.proposer, self.states)


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
            "Only proposals in this state: pending, in-progress, fulfilled, rejected,"
            " withdrawn or expired; may be given several times.",
        ),
    ] = None,
    grants: Annotated[
        bool,
        flag(
            "--grants",
            "Grants, revocations, invitations, removals and acceptances of tools instead of"
            " the proposals.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        flag("--json", "Each proposal, or each thing that was done, as one line of JSON."),
    ] = False,
    accept_damage: AcceptDamage = False,
    no_colour: NoColour = False,
) -> None:
    """Show what was proposed, what became of it, and who decided that, when and why.

    It reads the journal of a gateway: its file, or over HTTP the journal of a running one, for the
    space of the token. It changes nothing, and the participants do not notice it.

    Example: `meup audit --journal journal.db --space demo`

    Example: `MEUP_TOKEN=… meup audit --http http://localhost:8420 --state rejected`

    Example: `meup audit --journal journal.db --proposal 4f2a`
    """
    if grants and (proposal or state):
        raise ConfigurationError("--grants shows no proposals; leave --proposal and --state out")
    states = frozenset(ProposalState(each.value.replace("-", "_")) for each in state or ())
    shown = AuditFilter(proposal, proposer, states, grants, as_json)
    log_nothing()
    pages = source.open_pages(accept_damage=accept_damage, query=shown.query)
    run = _AuditRun(shown, time.time(), colour=not no_colour, all_kept=source.since is None)
    anyio.run(run.run, pages)


class _AuditRun:
    """One run of the command."""

    def __init__(self, shown: AuditFilter, now: float, *, colour: bool, all_kept: bool) -> None:
        self._shown = shown
        self._all_kept = all_kept
        self._begin: int | None = None
        self._found = 0
        self._output, self._stderr = Output(colour=colour), Stderr(colour=colour)
        self._listing = ProposalListing(self._output.width, now)

    async def run(self, pages: Pages) -> None:
        """Take the journal in, and show what is settled as soon as it is."""
        async with aclosing(pages), AsyncExitStack() as meanwhile:
            audit, count, wanted = Audit(), 0, self._shown.proposal
            damage = DamageNote()
            settled = SettledProposals(
                audit, keep=lambda item: wanted is not None and item.id.startswith(wanted)
            )
            waiting = await meanwhile.enter_async_context(
                progress_line(self._stderr.console, "reading the journal")
            )
            async for page in pages:
                for entry in page.entries:
                    audit.add(entry)
                if page.entries and not count:
                    self._begin = page.entries[0].at
                count += len(page.entries)
                damage.add(page)
                if page.now is not None:
                    audit.pass_time(page.now)
                waiting.rename(f"reading the journal: {count:,} envelopes")
                lines = self._lines(list(settled.pop(count)), audit.pop_operations())
                if lines and self._output.is_terminal:
                    # The lines themselves show how far it is; on one terminal the two would mix.
                    await meanwhile.aclose()
                await self._output.show_all(lines)
            await meanwhile.aclose()
            damage.write(self._stderr)
            if wanted is not None:
                await self._show_chain(audit, wanted)
                return
            await self._output.show_all(self._lines(list(audit.proposals), []))
            self._remark(0 if self._shown.grants else audit.unknown)

    def _lines(
        self, proposals: Sequence[ProposalAudit], operations: Sequence[SpaceOperation]
    ) -> list[str | Text]:
        """The entries that the filters let through."""
        shown = self._shown
        if shown.proposal is not None:
            return []
        if shown.grants:
            done = [item for item in operations if shown.proposer in (None, item.by)]
            self._found += len(done)
            if shown.as_json:
                return [as_json_line(operation_as_json(item)) for item in done]
            return list(self._listing.operations(done))
        found = [
            item
            for item in proposals
            if (not shown.states or item.state in shown.states)
            and shown.proposer in (None, item.proposer)
        ]
        self._found += len(found)
        if shown.as_json:
            return [as_json_line(proposal_as_json(item)) for item in found]
        return list(self._listing.proposals(found))

    def _remark(self, unknown: int) -> None:
        """Say how many there are, and where the journal begins: before that, nothing is known."""
        if self._shown.as_json or (self._found and not self._output.is_terminal):
            return
        said = counted(self._found, "operation" if self._shown.grants else "proposal")
        if self._begin is not None and self._all_kept:
            begin = f"{time_of(self._begin)}"
            said += f"; what is kept begins {begin}"
            if unknown:
                said += f"; about older proposals: {counted(unknown, 'decision')}"
        self._stderr.note(said)

    async def _show_chain(self, audit: Audit, wanted: str) -> None:
        found = _one(audit.named(wanted, proposer=self._shown.proposer), wanted)
        if self._shown.as_json:
            await self._output.write(as_json_line(proposal_as_json(found, timeline=True)))
        else:
            await self._output.show_all(
                ProposalTimeline(self._output.width, self._output.glyphs).lines(found)
            )


def _one(found: Sequence[ProposalAudit], wanted: str) -> ProposalAudit:
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
