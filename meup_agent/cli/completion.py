"""What a shell may complete; nobody is asked over the network for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meup_agent.cli.render.formatting import NOUNS
from meup_agent.protocol.kinds import KINDS, dotted
from meup_agent.protocol.reasons import Reason


def complete_kind(incomplete: str) -> list[str]:
    """Kinds, with dots or with slashes, as the beginning has them, and words of the timeline."""
    names = KINDS if "/" in incomplete else map(dotted, KINDS)
    return list(_beginning(incomplete, [*NOUNS, *names]))


def complete_reason(incomplete: str) -> list[str]:
    """Reason codes of a rejection (PROTOCOL 4.3)."""
    return list(_beginning(incomplete, (reason.value for reason in Reason)))


def _beginning(incomplete: str, names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name.startswith(incomplete))
