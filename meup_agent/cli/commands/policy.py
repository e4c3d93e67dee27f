"""``meup policy``: check, explain and test the rules by which proposals are decided."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from meup_agent.cli.arguments import read_json
from meup_agent.cli.commands import CommandTyper
from meup_agent.cli.commands.policy_check import check
from meup_agent.cli.commands.policy_suggest import suggest
from meup_agent.cli.failures import Failure, Misuse, require_extra
from meup_agent.cli.options import Json, argument, option
from meup_agent.cli.render.formatting import counted, counted_as
from meup_agent.errors import ConfigurationError
from meup_agent.escape import as_json_line, visible

if TYPE_CHECKING:
    from meup_agent.protocol.payloads import Call

MAX_ENVELOPE_BYTES: Final = 4 << 20
"""Bytes of an envelope that is read: as many as a frame has."""

_SAID: Final = {
    "": "does not match",
    "narrow": "matches",
    "wide": "matches in the wide reading",
}

PolicyFilePath = Annotated[Path, argument("FILE", "The policy, in YAML.")]

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
    args: Annotated[str, option("JSON", "The arguments as a JSON object.")] = "{}",
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

    Example: `meup policy explain policy.yaml shell_run --args '{"line": "ls"}' --proposer bob`
    """
    require_extra("a policy file")
    from meup_agent.approval.policy_file import load_policy

    if (tool is None) == (envelope is None):
        raise Misuse("give either a tool or --envelope PATH; see meup policy explain --help")
    if tool is not None and _is_file(tool):
        raise Misuse(f"{tool} names a file, not a tool; write --envelope {shlex.quote(tool)}")
    loaded = load_policy(file)
    if envelope is not None:
        call, proposer = _proposed(envelope)
    else:
        from meup_agent.approval.cases import call_from

        call = call_from(tool or "", _object(args, "--args"), target=target)
    found = loaded.decide(call, proposer)
    matching = {
        name: reading.value for name, reading in loaded.find_matching(call, proposer).items()
    }
    if as_json:
        sys.stdout.write(
            as_json_line(
                {
                    **found.told,
                    "why": found.why,
                    "reason": found.reason or None,
                    "matching": matching,
                }
            )
        )
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
    from meup_agent.approval.cases import load_cases
    from meup_agent.approval.policy_file import load_policy

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
    from meup_agent.protocol.payloads import read_proposal

    try:
        with path.open("rb") as file:
            raw = file.read(MAX_ENVELOPE_BYTES + 1)
    except OSError as error:
        raise Misuse(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_ENVELOPE_BYTES:
        raise Misuse(f"{path} is larger than any envelope")
    found = _object(raw.decode(errors="replace"), str(path))
    sender = found.get("from")
    if not isinstance(sender, str) or not isinstance(found.get("payload"), dict):
        raise Misuse(f"{path} is no envelope: it has no from, or no payload")
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
