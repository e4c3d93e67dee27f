"""Texts that a model reads about a call that waits, or that was not carried out as it asked.

Each says what happened, to what, by whom, and what to do now. Words of other participants stand
in quotation marks, on one line, shortened: they are data, and must not read as ours.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Final

from meup_agent.causes import Reason
from meup_agent.errors import printable
from meup_agent.escape import compact, visible
from meup_agent.protocol.wire.outcomes import (
    Expiry,
    Fulfillment,
    Gone,
    Outcome,
    Rejection,
    Withdrawal,
)
from meup_agent.wording import MAX_NAME, describe_changes, duration, time_left

if TYPE_CHECKING:
    from collections.abc import Sequence


MAX_WORDS: Final = 1000
"""Characters of another participant's words."""

MAX_NAMED: Final = 3
"""Participants that may decide which a waiting text names."""

PRONOUNS: Final = frozenset({"you", "i", "me", "it", "user", "assistant", "system"})
"""Names of participants that a model would take for itself, or for another part of its chat."""

MAX_CHANGE: Final = 200
"""Characters of each value of an edited call that are told."""

EXPLANATION_SECONDS: Final = 0.5
"""Wait for an explanation behind its rejection; none is owed (PROTOCOL 4.3)."""

CANCELLED: Final = "Operation cancelled"
"""The last word on a stream that its client cancelled."""

_ADVICE: Final[dict[str, str]] = {
    Reason.BUSY: "It may be tried again later; do not retry it at once.",
    Reason.INVALID: "Do not retry the same call; correct its arguments first.",
    Reason.INCAPABLE: "Do not retry the same call; this cannot be done here.",
    Reason.DUPLICATE: "Do not retry the same call; it was proposed before.",
    Reason.RESOURCE_LIMIT: "Do not retry it at once; ask for less, or wait.",
    Reason.TIMEOUT: "Do not retry it at once; tell the user that it took too long.",
    Reason.NO_LONGER_NEEDED: "Do not retry the same call.",
}
"""Advice after a rejection, by its reason."""

_NO_RETRY: Final = (
    "Do not retry the same call, nor try to do the same by another way; change what was objected"
    " to, or ask the user how to go on."
)


def describe_waiting(may_decide: Sequence[str], seconds_left: float | None) -> str:
    """The state of a call that is not decided yet."""
    *first, by = [participant(each) for each in may_decide[:MAX_NAMED]] or [
        "a participant that may decide"
    ]
    by = f"{', '.join(first)} or {by}" if first else by
    by += f" and {len(may_decide) - MAX_NAMED} more" if len(may_decide) > MAX_NAMED else ""
    left = "" if seconds_left is None else f", {time_left(max(seconds_left, 0))}"
    return f"waiting for a decision by {by}{left}"


INSTRUCTIONS: Final = (
    "A call of a tool here may wait until a person has decided about it, which can take minutes or"
    " more. A call that still waits is answered with an id: call meup_result with this id to wait"
    " for its outcome, and tell the user that it waits. A rejection is final: do not repeat the"
    " call, nor try to do the same by another way."
)
"""Instructions that a model gets with the tools of a space."""


def still_waits(
    tool: str, proposal: str, waiting: str, *, in_progress: bool, result_tool: str
) -> str:
    """The text for a call that is not decided, or not done, when its client would give up."""
    state = (
        "was approved, and is still being carried out"
        if in_progress
        else f"is still {waiting}; it has not been carried out so far"
    )
    return (
        f"The call of {name(tool)} {state}. Its id is {proposal}. Call {result_tool} with"
        f' {{"id": "{proposal}"}} to wait for its outcome, now or later: it is carried out as soon'
        " as it is approved, also if nobody asks meanwhile. The same call with the same arguments"
        " asks for that outcome, too, and makes no second one. Do not try to do the same by another"
        " way; tell the user that it waits."
    )


def answer_gone(tool: str) -> str:
    """The text for a call that was carried out, and whose result is not kept any more."""
    return (
        f"The call of {name(tool)} was approved and carried out, and its result is not kept any"
        " more. Do not call it again; look at what it has done, or ask the user."
    )


def unknown_result(proposal: str) -> str:
    """The text for an id under which no outcome is kept."""
    return (
        f"No call of yours waits under the id {words(proposal)}: its outcome was told already, or"
        " its time is over, or the id is mistyped."
    )


async def undone(tool: str, outcome: Outcome, seconds: float | None) -> str:
    """The text for a proposed call, which had some seconds, that was not carried out."""
    match outcome:
        case Rejection():
            return rejected(tool, outcome, await outcome.explanation(EXPLANATION_SECONDS))
        case Expiry():
            return expired(tool, outcome, seconds)
        case Withdrawal():
            return withdrawn(tool, outcome)
        case Gone():
            return gone(tool, outcome)
        case Fulfillment():
            raise AssertionError("a fulfilled call was carried out")


def rejected(tool: str, outcome: Rejection, explanation: str) -> str:
    """The text for a rejection."""
    said = explanation and f": {words(explanation)}"
    advice = _ADVICE.get(outcome.reason, _NO_RETRY)
    return (
        f"The call of {name(tool)} was rejected as {name(outcome.reason)} by"
        f" {participant(outcome.by)}{said}. It was not carried out. {advice}"
    )


def expired(tool: str, outcome: Expiry, seconds: float | None) -> str:
    """The text for an expiry."""
    within = "in time" if seconds is None else f"within {duration(seconds)}"
    if not outcome.sent:
        return (
            f"The call of {name(tool)} could not be proposed {within}, since there was no"
            " connection to the space. It was not carried out. It may be tried again later."
        )
    if outcome.begun_by:
        return (
            f"{participant(outcome.begun_by)} began to carry out the call of {name(tool)}, and no"
            f" result came {within}: it may have been done, or not. Do not call it again before"
            " that is known; ask the user."
        )
    failed = outcome.failed
    if failed is not None and not failed.refused:
        return (
            f"{participant(failed.by)} began to have the call of {name(tool)} carried out, and"
            f" {participant(failed.cause.by)} cancelled that ({words(str(failed.cause))}); then it"
            f" was not decided {within}. It may have been done, or not. Do not call it again before"
            " that is known; ask the user."
        )
    tried = ""
    if failed is not None:
        said = failed.cause.text and f": {words(failed.cause.text)}"
        tried = (
            f" {participant(failed.by)} tried to have it carried out, and"
            f" {participant(failed.cause.by)} refused to{said}."
        )
    return (
        f"No participant decided on the call of {name(tool)} {within}, so it was not carried out."
        f"{tried} That is neither a refusal nor a permission: do not try to do the same by another"
        " way. Tell the user; it may be called again when a participant is there to decide."
    )


def withdrawn(tool: str, outcome: Withdrawal) -> str:
    """The text for a proposal that was withdrawn before its end."""
    return (
        f"The call of {name(tool)} was withdrawn ({name(str(outcome.reason))}) before it was"
        " decided. Do not retry it unless the user asks for it."
    )


def gone(tool: str, outcome: Gone) -> str:
    """The text for a proposal that no participant is left to decide."""
    absent = ", ".join(participant(each) for each in outcome.participants[:MAX_NAMED])
    why = f"{absent} left the space" if absent else "no participant that may decide is present"
    if outcome.missing is not None or outcome.failed:
        why = printable(str(outcome)[:MAX_WORDS])
    return (
        f"No participant can decide on the call of {name(tool)}: {why}. It was not carried out."
        " Do not try to do the same by another way; tell the user."
    )


def failed(tool: str, why: str) -> str:
    """The text for a call that could not be made, or whose outcome is not known."""
    return f"The call of {name(tool)} failed: {words(why)}."


def asks_first(tool: str) -> str:
    """The text for a proposed call whose result asks its caller something."""
    return (
        f"The call of {name(tool)} was approved, but the tool answered with a question instead of"
        " a result, and a proposed call cannot be continued. Do not retry the same call; tell the"
        " user."
    )


def edited(outcome: Fulfillment) -> str:
    """A note that something other than the proposed call was carried out."""
    if not outcome.knows_edits:
        return (
            f"Note: {participant(outcome.by)} carried out this call, and it is not known whether it"
            " was as proposed."
        )
    return (
        f"Note: {participant(outcome.by)} changed this call before it was carried out"
        f"{_changes(outcome) or ', and does not say how'}. The result is that of the changed call."
    )


def edited_read(what: str, outcome: Fulfillment) -> str:
    """The text for something that was read in place of what a client asked for."""
    told = _changes(outcome) or ", or it is not known whether it was as proposed"
    return (
        f"{participant(outcome.by)} changed {name(what)} before it was carried out{told}. The"
        " answer is left out, since it is not what was asked for."
    )


def _changes(outcome: Fulfillment) -> str:
    told = describe_changes(outcome.changes, _path, partial(compact, limit=MAX_CHANGE))
    return told and f": {told}"


def words(text: str) -> str:
    """Words of another participant, in quotation marks, on one line, at most so many."""
    cut = text if len(text) <= MAX_WORDS else f"{text[: MAX_WORDS - 1]}…"
    return json.dumps(printable(" ".join(cut.split())), ensure_ascii=False)


def name(text: str) -> str:
    """A name that another participant chose, made safe to stand in a sentence."""
    safe = visible(text, MAX_NAME)
    # A name of several words would read as a part of our sentence.
    return safe if safe and not any(each in safe for each in " \"'.:;,") else json.dumps(safe)


def participant(text: str) -> str:
    """A participant's name, which must not read as a word for the model, or for its user."""
    if text.casefold() in PRONOUNS:
        return f"the participant {json.dumps(text)}"
    return name(text)


def _path(path: str) -> str:
    """The path of a value, whose dots are ours."""
    return ".".join(name(part) for part in path.removeprefix("arguments.").split("."))
