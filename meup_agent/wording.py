"""Wording: states, reasons, durations, edits and calls, in the same words in every face.

A terminal, a page and a text for a model take them from here, and add their own markup alone. What
strangers wrote is on one line and printable in all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from meup_agent.causes import Reason
from meup_agent.errors import InvalidPattern
from meup_agent.escape import ELLIPSIS, arguments, compact, visible, visible_name
from meup_agent.protocol.audit import Ignored
from meup_agent.protocol.capability import compile_capabilities
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.payloads import Call, Change

MAX_NAME: Final = 64
"""Characters of a participant's, a tool's or a kind's name."""

MAX_CALL: Final = 4_000
"""Characters of a call in a list, a screen or two; a longer one says that it is cut, and what shows
all of it: lists are read by the dozen, and a call has megabytes."""

WHOLE: Final = sys.maxsize
"""Characters of a call where it is the only one, or is decided: all of them."""

MAX_CHANGES: Final = 10
"""Changes of an edit that are told; of more, only how many."""

MAX_CHANGED: Final = 1_000
"""Characters of a value that was edited: enough to see where two long texts differ."""

FAILED: Final = "failed"
"""State of a proposal that was fulfilled, by an answer that is an error."""

AT_TERMINAL: Final = (
    "May have been answered there: its agent's terminal asks as well, and the first answer counts."
)
"""Of a call that a terminal is asked about at the same time, until that is settled."""

STATES: Final[Mapping[ProposalState, str]] = {
    state: state.value.replace("_", " ") for state in ProposalState
}
"""State of a proposal → its name."""

MEANINGS: Final = {
    ProposalState.PENDING: "waits for a decision",
    ProposalState.IN_PROGRESS: "is being carried out",
    ProposalState.PERMITTED: "was permitted; its outcome is not reported",
    ProposalState.FULFILLED: "was approved and carried out",
    ProposalState.REJECTED: "was rejected",
    ProposalState.WITHDRAWN: "was withdrawn",
    ProposalState.EXPIRED: "expired: no participant decided it in time",
}
"""State of a proposal → what it means, after the proposal."""

REASON_WORDS: Final[Mapping[str, str]] = {
    Reason.UNSAFE: "it could do harm",
    Reason.DISAGREE: "it is not what should be done",
    Reason.INAPPROPRIATE: "it does not belong here",
    Reason.INVALID: "it is wrong as it stands",
    Reason.POLICY: "a rule forbids it",
    Reason.RESOURCE_LIMIT: "it takes too much",
    Reason.INCAPABLE: "it cannot be done there",
    Reason.BUSY: "too much to do already",
    Reason.DUPLICATE: "it was proposed before",
    Reason.TIMEOUT: "the time ran out",
    Reason.NO_LONGER_NEEDED: "it is not needed any more",
    Reason.REVOKED: "the right to it was taken away",
}
"""Reason code → its words; any other is a participant's own."""

IGNORED: Final = {
    Ignored.LATE: "too late",
    Ignored.AGAIN: "again",
    Ignored.NOT_THEIRS: "not theirs",
    Ignored.OWN_PROPOSAL: "own proposal",
    Ignored.REFUSED: "not carried out",
    Ignored.AMBIGUOUS: "ambiguous",
    Ignored.FORGED: "forged",
}
"""Reason for which a step changed nothing → its words."""


def state_name(state: str, *, failed: bool = False, ran_anyway: bool = False) -> str:
    """The name of a state; of a proposal that was fulfilled by an error, that it failed.

    ``ran_anyway``: its call ran in spite of that.
    """
    is_failed = failed and state == ProposalState.FULFILLED
    name = FAILED if is_failed else state.replace("_", " ")
    return f"ran though {name}" if ran_anyway else name


def shown_name(name: str) -> str:
    """The name of a participant, a tool or a kind; also an id, or another word of its length."""
    return visible(name, MAX_NAME)


def shown_names(names: Iterable[str]) -> str:
    """Some names."""
    return ", ".join(map(shown_name, names))


def describe_reason(code: str) -> str:
    """A reason code in words that go on after a colon; one of a participant's own as it is."""
    return REASON_WORDS.get(code, code)


def duration(seconds: float) -> str:
    """A length of time, in its largest units: ``4 ms``, ``3 min 5 s``, ``2 d 4 h``."""
    if 0 < seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 10 and seconds != int(seconds):
        return f"{max(seconds, 0):.1f} s"
    rest, parts = max(round(seconds), 0), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 ")) or "0 s"


def time_left(seconds: float | None) -> str:
    """The time that is left until a deadline, or has passed since."""
    if seconds is None:
        return "no deadline"
    whole = round(seconds)
    return f"{duration(whole)} left" if seconds >= 0 else f"{duration(-whole)} past its time"


def _path(path: str) -> str:
    return visible(path.removeprefix("arguments."), MAX_NAME)


def _value(value: object) -> str:
    return compact(value, MAX_CHANGED)


def describe_changes(
    changes: Sequence[Change],
    path: Callable[[str], str] = _path,
    value: Callable[[object], str] = _value,
) -> str:
    """The changes of an edit: ``path is "b.txt" instead of "a.txt"``."""
    said = list[str]()
    for each in changes[:MAX_CHANGES]:
        now, before = (
            "nothing" if given is None else value(given)
            for given in (each.fulfilled, each.proposed)
        )
        said.append(f"{path(each.path)} is {now} instead of {before}")
    more = len(changes) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")


def format_call(call: Call, limit: int = MAX_CALL, more: str = "") -> str:
    """A call as it would stand in Python, with what stands beside its arguments.

    Args:
        call: The call.
        limit: Characters of it that are shown.
        more: What shows all of one that is cut.
    """
    if call.method == payloads.TOOL_CALL:
        given = mark_cut(arguments(call.arguments, limit), limit, more)
        said = f"{visible_name(call.name, limit)}({given})"
        if beside := call.beside:
            said += f" and, beside its arguments, {mark_cut(compact(beside, limit), limit, more)}"
        return said
    params = payloads.without_meta(call.params)
    said = f" {mark_cut(compact(params, limit), limit, more)}" if params else ""
    return visible_name(call.method, limit) + said


def format_proposed(call: Call, limit: int = MAX_CALL, more: str = "") -> str:
    """A proposed call, with the participant that is to carry it out."""
    target = "" if call.target is None else f"{visible_name(call.target, MAX_NAME)}."
    return f"{target}{format_call(call, limit, more)}"


def mark_cut(said: str, limit: int = MAX_CALL, more: str = "") -> str:
    """Arguments as they are, or with a word that there are more of them."""
    # None that are whole end like this: a text among them ends with its quotation mark.
    if not said.endswith(ELLIPSIS):
        return said
    return f"{said} [cut: {limit:,} characters are shown{more and f'; {more} shows all'}]"


# --- participants ---

PERSON: Final = "person or reviewer"
AGENT: Final = "agent"
SERVER: Final = "server"


def role_of(capabilities: Sequence[Any]) -> str:
    """The role of a participant by its capabilities: it decides, proposes, or answers.

    Which arguments and addressees they name makes no difference. Answers need no capability.
    """
    if _may(capabilities, kinds.MCP_REJECT, {}):
        return PERSON
    call = {"method": payloads.TOOL_CALL}
    if any(_may(capabilities, each, call) for each in (kinds.MCP_PROPOSAL, kinds.MCP_REQUEST)):
        return AGENT
    return SERVER


def _may(capabilities: Sequence[Any], kind: str, payload: dict[str, Any]) -> bool:
    bare: list[dict[str, Any]] = []
    for each in capabilities:
        said = payloads.as_object(each)
        method = payloads.as_object(said.get("payload")).get("method")
        named = {} if method is None else {"payload": {"method": method}}
        bare.append({"kind": said.get("kind"), **(named if payload else {})})
    try:
        return compile_capabilities(bare).allow(kind, payload)
    except InvalidPattern:
        return False  # of a gateway of other make
