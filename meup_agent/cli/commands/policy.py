"""``meup policy``: check, explain, test and suggest the rules that decide proposals."""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import anyio
import typer

from meup_agent.cli.arguments import convert_arguments, read_arguments, read_json
from meup_agent.cli.commands import CommandTyper
from meup_agent.cli.commands.journal import DamageNote, JournalOptions, Pages
from meup_agent.cli.failures import Failure, Misuse, OutputClosed, require_extra
from meup_agent.cli.options import Args, Json, argument, option
from meup_agent.cli.render.formatting import counted, counted_as
from meup_agent.cli.render.logs import log_nothing
from meup_agent.cli.render.output import Output, Stderr, progress_line
from meup_agent.errors import ConfigurationError
from meup_agent.escape import as_json_line, visible
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from meup_agent.approval.policy.cases import AllowedCalls
    from meup_agent.approval.policy.decider import Policy
    from meup_agent.approval.policy.suggest import LoggedDecision, Suggestion
    from meup_agent.protocol.wire.payloads import Call


# --- policy check ---
# `meup policy check`: a good policy ends with 0, and a journal shows what it would change.


PolicyFilePath = Annotated[Path, argument("FILE", "The policy, in YAML.")]


def check(
    file: PolicyFilePath,
    source: JournalOptions,
) -> None:
    """Check a policy, and end with 0 unless there is an error in it.

    Errors are unknown keys, patterns that do not compile, rules that can never match since one
    before them decides otherwise, an allow that takes a part of the calls of a deny behind it, and
    an allow of any tool, or of all that begin with a letter. Warnings are rules that say nothing
    new, and an allow that takes a part of the calls of an ask behind it. Hints tell of exceptions:
    an allow before a rule that holds back all that it allows, and more.

    For the patterns of each rule it lists up to three texts that they take, and three like them
    that they do not.

    With a journal it also lists the calls that a rule allowed there, and that this policy would ask
    about or deny, each with the arguments that its rule would have to name. The schemas of tools,
    and so their defaults, are not looked at.

    Example: `meup policy check policy.yaml`

    Example: `meup policy check policy.yaml --journal journal.db --since 30d`
    """
    require_extra("a policy file")
    from meup_agent.approval.policy.cases import samples_of
    from meup_agent.approval.policy.file import findings_of, load_policy

    loaded = load_policy(file)
    if source.journal is not None or source.http is not None:
        pages = source.open_pages((kinds.MCP_REQUEST,))
        log_nothing()
        anyio.run(_compare, loaded, pages)
    for name, pattern, sample in samples_of(loaded):
        sys.stdout.write(f"{visible(f'{name}: {pattern} {sample}', 500)}\n")
    findings = findings_of(loaded)
    for each in findings:
        sys.stdout.write(f"{visible(f'{file}: {each.level}: {each.text}', 500)}\n")
    errors = [each for each in findings if each.level == "error"]
    if errors:
        raise Failure(f"{file} is not good: {counted(len(errors), 'rule')} should be changed")
    sys.stdout.write(f"{file}: {counted(len(loaded.rules), 'rule')}, digest {loaded.digest}\n")


async def _compare(policy: Policy, pages: Pages) -> None:
    from meup_agent.approval.policy.cases import AllowedCalls

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
    for each in allowed.turned:
        said = (
            f"{each.proposer}/{each.proposal}: {each.tool} was allowed by {each.before}, and is now"
            f" {each.verdict} by {each.rule}"
        )
        if each.lacking:
            said += f"; {each.lacking} does not name {', '.join(each.unnamed)}"
        yield f"{visible(said, 500)}\n"
    more = allowed.turned_count - len(allowed.turned)
    if more:
        yield f"… and {more:,} more\n"


# --- policy suggest ---
# `meup policy suggest`: rules that would have decided as people did, read from a journal.

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
) -> None:
    """Suggest rules that would have decided as people did. It only suggests.

    It reads a journal, and prints a policy in YAML, which `meup policy check` takes. Above each
    rule stands how many decisions it covers, how many it would have changed, the part of such
    calls that people decide so at the least (95 %), and the proposals to look at before the rule is
    taken. No rule allows what was rejected or edited. Decisions by a policy are not evidence.

    Example: `meup policy suggest --journal journal.db --space demo > suggested.yaml`
    """
    require_extra("a policy file")
    pages = source.open_pages(DECIDING)
    log_nothing()
    anyio.run(_run, pages, least, as_json)


async def _run(pages: Pages, least: int, as_json: bool) -> None:
    from meup_agent.approval.policy.file import END
    from meup_agent.approval.policy.suggest import DecisionLog, suggest_rules
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
    document = {"rules": [_suggestion_document(each) for each in found], END: True}
    await output.show_all([as_json_line(document)] if as_json else _yaml_lines(found))
    if not found:
        total = counted(len(decided), "decision")
        sys.stderr.write(f"meup: nothing to suggest: no {least} of {total} are alike\n")


def _yaml_lines(found: list[Suggestion]) -> Iterator[str]:
    """The policy, with what speaks for each rule above it."""
    import yaml

    from meup_agent.approval.policy.file import END, rule_to_file

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
        said = yaml.safe_dump(  # pyright: ignore[reportUnknownMemberType]  # its stubs' `width`
            rule_to_file(each.rule), default_flow_style=True, sort_keys=False, width=10**9
        )
        yield f"  - {said.strip().removeprefix('{').removesuffix('}')}\n"
    if found:
        yield f"{END}: true\n"


def _proposals(some: tuple[LoggedDecision, ...]) -> str:
    more = len(some) - SHOWN_PROPOSALS
    listed = _listed([f"{each.proposer}/{each.id}" for each in some[:SHOWN_PROPOSALS]])
    return listed + (f" and {more:,} more (--json has them all)" if more > 0 else "")


def _listed(words: tuple[str, ...] | list[str]) -> str:
    return ", ".join(visible(each, MAX_SHOWN) for each in words)


def _suggestion_document(each: Suggestion) -> dict[str, Any]:
    from meup_agent.approval.policy.file import rule_to_file

    return {
        "rule": rule_to_file(each.rule),
        "covers": len(each.covered),
        "changed": len(each.changed),
        "bound": round(each.bound, 4),
        "unseen": list(each.unseen),
        "would_have_changed": [_named(one) for one in each.changed],
        "proposals": [_named(one) for one in each.covered],
    }


def _named(one: LoggedDecision) -> dict[str, Any]:
    return {"id": one.id, "proposer": one.proposer}


# --- policy ---

_SAID: Final = {
    "": "does not match",
    "narrow": "matches",
    "wide": "matches in the wide reading",
}

policy = CommandTyper("policy")


@policy.callback()
def policy_group() -> None:
    """Check, explain, test and suggest the rules of `meup reviewer`.

    Example: `meup policy check policy.yaml`
    """


def explain(
    file: PolicyFilePath,
    tool: Annotated[
        str | None,
        argument("[TOOL]", "The tool that is called."),
    ] = None,
    words: Annotated[
        list[str] | None,
        argument("KEY=VALUE", "Its arguments, as `meup call` takes them."),
    ] = None,
    args: Args = None,
    proposer: Annotated[str, option("NAME", "The participant that proposes it.")] = "proposer",
    target: Annotated[
        str | None,
        option("NAME", "The participant that should carry it out."),
    ] = None,
    envelope: Annotated[
        Path | None,
        option("PATH", "A proposal as it was sent, in JSON, in place of a tool."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell which rule decides a call, and why.

    Every rule stands on a line: whether it matches, and which one decides. The schema of the tool
    is not looked at: what does not fit it is rejected before any rule.

    Example: `meup policy explain policy.yaml shell_run line="ls -l" --proposer bob`
    """
    require_extra("a policy file")
    from meup_agent.approval.policy.file import load_policy

    if (tool is None) == (envelope is None):
        raise Misuse("give either a tool or --envelope PATH; see meup policy explain --help")
    if tool is not None and _is_file(tool):
        raise Misuse(f"{tool} names a file, not a tool; write --envelope {shlex.quote(tool)}")
    loaded = load_policy(file)
    if envelope is not None:
        call, proposer = _proposed(envelope)
    else:
        from meup_agent.approval.policy.cases import call_from

        given = convert_arguments(read_arguments(words or [], args, None))
        call = call_from(tool or "", given, target=target)
    found = loaded.decide(call, proposer)
    matching = {
        name: reading.value for name, reading in loaded.find_matching(call, proposer).items()
    }
    if as_json:
        told = {"why": found.why, "reason": found.reason or None, "matching": matching}
        sys.stdout.write(as_json_line(found.told | told))
        return
    for rule, name in zip(loaded.rules, loaded.names, strict=True):
        said = _SAID[matching.get(name, "")]
        mark = " <- decides" if name == found.rule else ""
        sys.stdout.write(f"{visible(name, 100)} ({rule.verdict}): {said}{mark}\n")
    more = f", {found.reason}" if found.reason else ""
    sys.stdout.write(f"{found.verdict}{more}: {visible(found.why, 500)}\n")


def run_cases(
    file: Annotated[
        Path,
        argument("CASES", "Calls and the decisions that are expected, in YAML."),
    ],
    policy_file: Annotated[
        Path | None,
        option("FILE", "The policy, if not the one CASES names.", "--policy"),
    ] = None,
) -> None:
    """Test a policy by cases, and end with 0 only if each is decided as expected.

    A case has `call` (with `tool`, `arguments`, `proposer`, `target`), `expect`, and where they
    matter `rule` and `earlier`, the number of equal calls just before.

    Example: `meup policy test cases.yaml --policy policy.yaml`
    """
    require_extra("a policy file")
    from meup_agent.approval.policy.cases import load_cases
    from meup_agent.approval.policy.file import load_policy

    cases, named = load_cases(file)
    path = policy_file or named
    if path is None:
        raise ConfigurationError(f"{file}: names no policy; write one, or give --policy FILE")
    loaded = load_policy(path)
    failed = [said for each in cases if (said := each.failure(loaded))]
    for each in failed:
        sys.stdout.write(f"{visible(f'{file}: {each}', 500)}\n")
    if failed:
        total = counted(len(cases), "case")
        verb = "is" if len(failed) == 1 else "are"
        raise Failure(f"{len(failed):,} of {total} {verb} decided otherwise by {path}")
    sys.stdout.write(f"{counted_as(len(cases), 'case')} decided as expected by {path}\n")


def _is_file(tool: str) -> bool:
    """True for a tool's name that must be meant for an envelope's file."""
    try:
        return tool.endswith(".json") or Path(tool).is_file()
    except OSError:  # too long for a file's name
        return False


def _proposed(path: Path) -> tuple[Call, str]:
    """The call in an envelope, and its proposer."""
    from meup_agent.protocol.wire.payloads import read_proposal

    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FRAME_BYTES + 1)
    except OSError as error:
        raise Misuse(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_FRAME_BYTES:
        raise Misuse(f"{path} is larger than any envelope")
    found = _object(raw.decode(errors="replace"), str(path))
    sender = found.get("from")
    if not isinstance(sender, str) or not isinstance(found.get("payload"), dict):
        raise Misuse(f"{path} is not an envelope: it has no from, or no payload")
    return read_proposal(found["payload"]), sender


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        found = read_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Misuse(f"{what}: expected a JSON object")
    return cast("dict[str, Any]", found)


policy.add("check", check)
policy.add("explain", explain)
policy.add("test", run_cases)
policy.add("suggest", suggest)
