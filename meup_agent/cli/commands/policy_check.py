"""``meup policy check``: a good policy ends with 0, and a journal shows what it would change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio

from meup_agent.cli.audit.journal_readers import DamageNote, JournalOptions, Pages
from meup_agent.cli.failures import Failure, OutputClosed, require_extra
from meup_agent.cli.options import AcceptDamage, argument
from meup_agent.cli.render.console import Stderr, log_nothing
from meup_agent.cli.render.formatting import counted
from meup_agent.cli.render.output import Output
from meup_agent.escape import visible
from meup_agent.protocol import kinds

if TYPE_CHECKING:
    from meup_agent.approval.allowed_calls import AllowedCalls, TurnedCall
    from meup_agent.approval.policy import Policy


def check(
    file: Annotated[Path, argument("FILE", "The policy, in YAML.")],
    source: JournalOptions,
    accept_damage: AcceptDamage = False,
) -> None:
    """Check a policy, and end with 0 only if it is good.

    Not good are unknown keys, patterns that do not compile, rules that can never match, an allow
    that takes calls from a rule behind it, and an allow of any tool, or of all that begin with a
    letter.

    With a journal it also lists the calls that a rule allowed there, and that this policy would ask
    about or deny, each with the arguments that its rule would have to name. The schemas of tools,
    and so their defaults, are not looked at.

    Example: `meup policy check policy.yaml`

    Example: `meup policy check policy.yaml --journal journal.db --since 30d`
    """
    require_extra("a policy file")
    from meup_agent.approval.policy_file import findings_of, load_policy

    loaded = load_policy(file)
    if source.journal is not None or source.http is not None:
        pages = source.open_pages((kinds.MCP_REQUEST,), accept_damage=accept_damage)
        log_nothing()
        anyio.run(_compare, loaded, pages)
    findings = findings_of(loaded)
    for each in findings:
        sys.stdout.write(f"{visible(f'{file}: {each}', 500)}\n")
    if findings:
        raise Failure(f"{file} is not good: {counted(len(findings), 'rule')} should be changed")
    sys.stdout.write(f"{file}: {counted(len(loaded.rules), 'rule')}, digest {loaded.digest}\n")


async def _compare(policy: Policy, pages: Pages) -> None:
    from meup_agent.approval.allowed_calls import AllowedCalls

    allowed, damage, output = AllowedCalls(policy), DamageNote(), Output(colour=False)
    async with aclosing(pages):
        async for page in pages:
            for entry in page.entries:
                allowed.add(entry.envelope)
            damage.add(page)
    damage.write(Stderr(colour=False))
    try:
        await output.show_all(_lines(allowed))
    except OutputClosed:
        output.abandon()


def _lines(allowed: AllowedCalls) -> Iterator[str]:
    verb = "is" if allowed.turned_count == 1 else "are"
    yield (
        f"{allowed.turned_count:,} of {counted(allowed.count, 'call')} that a rule allowed"
        f" {verb} allowed no longer\n"
    )
    yield from map(_line, allowed.turned)
    more = allowed.turned_count - len(allowed.turned)
    if more:
        yield f"… and {more:,} more\n"


def _line(each: TurnedCall) -> str:
    said = (
        f"{each.proposer}/{each.proposal}: {each.tool} was allowed by {each.before}, and is now"
        f" {each.verdict} by {each.rule}"
    )
    if each.lacking:
        said += f"; {each.lacking} does not name {', '.join(each.unnamed)}"
    return f"{visible(said, 500)}\n"
