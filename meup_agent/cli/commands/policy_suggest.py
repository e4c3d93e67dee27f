"""``meup policy suggest``: rules that would have decided as people did, read from a journal."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import typer

from meup_agent.cli.audit.journal_readers import DamageNote, JournalOptions, Pages
from meup_agent.cli.failures import require_extra
from meup_agent.cli.options import AcceptDamage, Json
from meup_agent.cli.render.console import Stderr, log_nothing
from meup_agent.cli.render.formatting import counted
from meup_agent.cli.render.output import Output
from meup_agent.cli.render.progress import progress_line
from meup_agent.escape import as_json_line, visible
from meup_agent.protocol import kinds

if TYPE_CHECKING:
    from meup_agent.approval.decision_log import LoggedProposal
    from meup_agent.approval.suggest import Suggestion

SHOWN_PROPOSALS: Final = 10
"""Proposals that are listed with a rule; ``--json`` has all of them."""

MAX_SHOWN: Final = 100  # characters of an id or a value in a comment


DECIDING: Final = (kinds.MCP_PROPOSAL, kinds.MCP_REQUEST, kinds.MCP_REJECT)
"""Kinds of which a decision is made; most of a journal are others."""


def suggest(
    source: JournalOptions,
    least: Annotated[
        int,
        typer.Option(min=2, metavar="COUNT", help="Decisions that a rule covers at the least."),
    ] = 20,
    as_json: Json = False,
    accept_damage: AcceptDamage = False,
) -> None:
    """Suggest rules that would have decided as people did. It only suggests.

    It reads a journal, and prints a policy in YAML, which `meup policy check` takes. Above each
    rule stands how many decisions it covers, how many it would have changed, the part of such
    calls that people decide so at the least (95 %), and the proposals to look at before the rule is
    taken. No rule allows what was rejected or edited. Decisions by a policy are no evidence.

    Example: `meup policy suggest --journal journal.db --space demo > suggested.yaml`
    """
    require_extra("a policy file")
    pages = source.open_pages(DECIDING, accept_damage=accept_damage)
    log_nothing()
    anyio.run(_run, pages, least, as_json)


async def _run(pages: Pages, least: int, as_json: bool) -> None:
    from meup_agent.approval.decision_log import DecisionLog
    from meup_agent.approval.policy_file import END
    from meup_agent.approval.suggest import suggest_rules
    from meup_agent.client.messages import Progress

    # Hundreds of thousands of records, none in a circle: looking for circles takes an eighth of it.
    gc.disable()
    log, count, stderr, output = DecisionLog(), 0, Stderr(colour=False), Output(colour=False)
    damage = DamageNote()
    async with progress_line(stderr.console, "reading the journal") as shown:
        async with aclosing(pages):
            async for page in pages:
                for entry in page.entries:
                    log.add(entry.envelope)
                count += len(page.entries)
                damage.add(page)
                shown.rename(f"reading the journal: {counted(count, 'envelope')}")
        decided = log.decided()

        def told(done: float, total: float) -> None:
            progress = Progress(done, total, "looking for rules")
            anyio.from_thread.run_sync(shown.update, progress)

        # In a thread, so that the bar moves meanwhile.
        found = await anyio.to_thread.run_sync(
            lambda: suggest_rules(decided, least=least, told=told)
        )
    damage.write(stderr)
    document = {"rules": [_document(each) for each in found], END: True}
    await output.show_all([as_json_line(document)] if as_json else _yaml_lines(found))
    if not found:
        total = counted(len(decided), "decision")
        sys.stderr.write(f"meup: nothing to suggest: no {least} of {total} are alike\n")


def _yaml_lines(found: list[Suggestion]) -> Iterator[str]:
    """The policy, with what speaks for each rule above it."""
    import yaml

    from meup_agent.approval.policy_file import END, document_of

    if found:
        yield "# Look at the proposals of a rule before you take it.\nrules:\n"
    for each in found:
        covers, changes = len(each.covered), len(each.changed)
        yield f"  # covers {counted(covers, 'decision')}, would have changed {changes:,};"
        yield f" of such calls at least {each.bound:.1%} are decided so (95 %)\n"
        if each.unseen:
            yield f"  # does not look at: {_listed(each.unseen)}\n"
        if each.changed:
            yield f"  # would have changed: {_proposals(each.changed)}\n"
        yield f"  # proposals: {_proposals(each.covered)}\n"
        said = yaml.safe_dump(
            document_of(each.rule), default_flow_style=True, sort_keys=False, width=10**9
        )
        yield f"  - {said.strip().removeprefix('{').removesuffix('}')}\n"
    if found:
        yield f"{END}: true\n"


def _proposals(some: tuple[LoggedProposal, ...]) -> str:
    more = len(some) - SHOWN_PROPOSALS
    listed = _listed([f"{each.proposer}/{each.id}" for each in some[:SHOWN_PROPOSALS]])
    return listed + (f" and {more:,} more (--json has them all)" if more > 0 else "")


def _listed(words: tuple[str, ...] | list[str]) -> str:
    return ", ".join(visible(each, MAX_SHOWN) for each in words)


def _document(each: Suggestion) -> dict[str, Any]:
    from meup_agent.approval.policy_file import document_of

    return {
        "rule": document_of(each.rule),
        "covers": len(each.covered),
        "changed": len(each.changed),
        "bound": round(each.bound, 4),
        "unseen": list(each.unseen),
        "would_have_changed": [_named(one) for one in each.changed],
        "proposals": [_named(one) for one in each.covered],
    }


def _named(one: LoggedProposal) -> dict[str, Any]:
    return {"id": one.id, "proposer": one.proposer}
