"""A yes, before it is given and as a rule: the calls that it takes, those near it, its policy."""

from __future__ import annotations

from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meup_agent.approval.policy.rules import AllowRule
from meup_agent.approval.yeses import YesScope, is_plain
from meup_agent.errors import ConfigurationError, MeupError
from meup_agent.protocol.wire.payloads import Call, read_proposal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meup_agent.approval.inbox.item import InboxItem
    from meup_agent.client.space import Space
    from meup_agent.protocol.wire.scoped_yes import ScopedYes


MAX_PAST: Final = 200
"""Decided proposals that are looked at, the latest."""

MAX_SHOWN: Final = 5
"""Calls of each kind that are shown."""

MAX_NEAR: Final = 3
"""Calls that a scope does not take, and that are shown."""


FEW: Final = 5
"""Calls of which it says something that a scope takes all."""


class SeenCall(NamedTuple):
    """A call as a preview shows it.

    Attributes:
        arguments: Its arguments.
        state: Its proposal's state; ``waiting`` for one that waits, empty for an example.
        by: The participant that decided it, if one did.
    """

    arguments: dict[str, Any]
    state: str = ""
    by: str = ""


class YesPreview(NamedTuple):
    """The calls that a scope takes, and calls near it that it does not.

    Attributes:
        covered: Decided and waiting calls that it takes, the latest first.
        near: Calls like them that it does not take, three at the most.
        looked_at: Calls of that tool by that proposer that were looked at.
    """

    covered: tuple[SeenCall, ...]
    near: tuple[SeenCall, ...]
    looked_at: int

    @property
    def summary(self) -> str:
        """The number of known calls that it takes, as a verb phrase: its subject is the yes."""
        if not self.looked_at:
            return "is for calls of which no other is known yet"
        return f"takes {len(self.covered)} of {self.looked_at} other calls that are known"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to choose another scope, in words."""
        known, taken = self.looked_at, len(self.covered)
        against = sum(each.state == "rejected" for each in self.covered)
        found = (
            (against, f"it takes {against} of the calls that were rejected"),
            (taken == known >= FEW, f"it takes each of the {known} other calls that are known"),
            (known and not taken, "it takes no other call that is known"),
            (not self.near, "it takes every call of this tool"),
        )
        return tuple(words for is_so, words in found if is_so)


async def read_past(space: Space, item: InboxItem) -> list[SeenCall]:
    """The other calls of an item's tool at its target by its proposer, the latest first."""
    found: list[SeenCall] = []
    for state in ("decided", "open"):
        try:
            query = space.proposals.list(state=state, proposer=item.proposer, tool=item.tool)
            async with aclosing(query) as records:
                async for record in records:
                    call = read_proposal(record.envelope.payload)
                    if record.id == item.id or call.target != item.target:
                        continue
                    said = str(record.state) if state == "decided" else "waiting"
                    found.append(SeenCall(call.arguments, said, record.decided_by or ""))
        except MeupError:
            pass  # what is not known is not shown
    return found[::-1][:MAX_PAST]


def choose_scope(scopes: list[YesScope], past: list[SeenCall], arguments: dict[str, Any]) -> int:
    """The place of the narrowest scope that takes another call than this one; else the first."""
    others = [each for each in past if each.arguments != arguments and each.state != "rejected"]
    for number, scope in enumerate(scopes[:-1]):
        if any(scope.takes(each.arguments) for each in others):
            return number
    return 0


def preview_scope(scope: YesScope, call: Call, past: list[SeenCall]) -> YesPreview:
    """The preview of a scope at a call, beside the other calls that are known."""
    covered = [each for each in past if scope.takes(each.arguments)]
    left = [each for each in past if not scope.takes(each.arguments)]
    made = (each for each in _near(call.arguments) if not scope.takes(each.arguments))
    seen: list[SeenCall] = []
    for each in (*left, *islice(made, MAX_NEAR)):
        if all(each.arguments != other.arguments for other in seen):
            seen.append(each)
    return YesPreview(tuple(covered), tuple(seen[:MAX_NEAR]), len(past))


def _near(arguments: dict[str, Any]) -> Iterator[SeenCall]:
    """Calls that differ from one by one argument, or have one more."""
    for key, value in arguments.items():
        for each in _like(value):
            yield SeenCall({**arguments, key: each})
    more = next(name for name in _names() if name not in arguments)
    yield SeenCall({**arguments, more: "a"})
    for key in arguments:
        yield SeenCall({name: each for name, each in arguments.items() if name != key})


def _names() -> Iterator[str]:
    yield "other"
    yield from (f"other{number}" for number in range(1_000))


def _like(value: object) -> Iterable[Any]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int | float):
        return (value + 1,)
    if not isinstance(value, str):
        return ()
    head, _, tail = value.rpartition("/")
    if not head:
        return (f"{value}x", f"other {value}"[:80])
    upper = head.rpartition("/")[0]
    return (f"{upper}/other/{tail}" if upper else f"other/{tail}", f"{head}/a/{tail}", f"{head}/.a")


NOTE: Final = "Yeses as rules: without their ends and counts, so read each before you take it."


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
