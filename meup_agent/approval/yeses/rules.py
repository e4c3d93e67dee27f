"""Yeses as rules of a policy, for one that should hold for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meup_agent.approval.policy.rules import AllowRule
from meup_agent.approval.yeses.scopes import is_plain
from meup_agent.errors import ConfigurationError

NOTE: Final = "Yeses as rules: without their ends and counts, so read each before you take it."

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.protocol.wire.scoped_yes import ScopedYes


def rule_of(yes: ScopedYes) -> AllowRule:
    """The rule that allows what a yes covers, without its end and its count.

    Raises:
        ConfigurationError: A policy has no rule for it.
    """
    if yes.arguments == {}:
        raise ConfigurationError(
            f"{yes.name}: it is for calls without arguments, which no rule tells from others"
        )
    for what, each in (("tool", yes.tool), ("target", yes.target), ("proposer", yes.proposer)):
        if not is_plain(each):
            raise ConfigurationError(f"{yes.name}: its {what} {each!r} would mean others in a rule")
    others = None if yes.arguments is None else yes.others or None
    return AllowRule(
        yes.tool,
        arguments=yes.arguments,
        target=yes.target,
        proposer=yes.proposer,
        others=others,
        name=yes.name,
    )


def write_policy(yeses: Iterable[ScopedYes]) -> tuple[str, list[str]]:
    """A policy file of some yeses, and why some of them are not in it."""
    from meup_agent.approval.policy.decider import Policy
    from meup_agent.approval.policy.file import policy_text

    rules: list[AllowRule] = []
    left_out: list[str] = []
    for yes in yeses:
        try:
            rule = rule_of(yes)
            Policy([rule])
            rules.append(rule)
        except ConfigurationError as error:
            left_out.append(str(error))
    return policy_text(rules, NOTE), left_out
