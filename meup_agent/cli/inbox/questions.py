"""Questions of the screen: which are asked, in which words, and the keys that answer them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from meup_agent.causes import Reason
from meup_agent.cli.inbox.card import title
from meup_agent.cli.inbox.rows import Part, theirs
from meup_agent.escape import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meup_agent.approval.inbox_item import InboxItem

MAX_MARKED: Final = 20
"""Proposals that are approved at once: those that a question can name."""

REASONS: Final = {
    "d": (Reason.DISAGREE, "I disagree"),
    "n": (Reason.INAPPROPRIATE, "not appropriate here"),
    "u": (Reason.UNSAFE, "unsafe"),
    "b": (Reason.BUSY, "no time for it now"),
    "c": (Reason.INCAPABLE, "cannot be done here"),
    "p": (Reason.POLICY, "against a rule"),
    "t": (Reason.DUPLICATE, "was done already"),
    "i": (Reason.INVALID, "wrong arguments"),
    "l": (Reason.RESOURCE_LIMIT, "costs too much"),
    "x": (Reason.TIMEOUT, "it came too late"),
    "o": (Reason.OTHER, "another reason"),
}
"""The key of each reason, and what it says to a person."""

HELP: Final = (
    ("j  k", "the next proposal, the one before"),
    ("a", "approve: carry it out, or vote for it where votes count"),
    ("e", "edit its arguments in $EDITOR, see the difference, approve"),
    ("r", "reject: a key for the reason; w first for words of yours"),
    ("v", "vote, for or against"),
    ("s", "how the tools of its server have changed; y accepts them"),
    ("y", "yes, where approving asks once more"),
    ("space  ↓ ↑", "scroll; home, end, page up and page down as well"),
    ("m", "mark it; a then approves all that are marked"),
    ("t", "light or dark"),
    ("q", "leave; what you did not decide goes on waiting, or expires"),
)


SHORT_HELP: Final = (
    *(("j k", "next, previous"), ("a", "approve"), ("e", "edit"), ("r", "reject"), ("v", "vote")),
    *(("y", "yes"), ("space", "scroll"), ("m", "mark"), ("s", "tools"), ("t", "theme")),
    ("q", "leave"),
)
"""The same for a terminal of a few lines."""

REASON_CODES: Final = tuple((key, str(code)) for key, (code, _) in REASONS.items())
"""The reasons for a terminal of a few lines."""


class ScreenQuestion(StrEnum):
    """The question that is open, which the next key answers."""

    NOTHING = ""
    SURE = "sure"
    EDITED = "edited"
    MARKED = "marked"
    REASON = "reason"
    VOTE = "vote"
    TOOLS = "tools"
    HELP = "help"
    LEAVE = "leave"


NOT_OFFERED: Final = {
    "e": "you may not carry it out",
    "r": "you may not reject it",
    "v": "no vote of yours is counted here",
}

ScreenLine = tuple[Part, ...]

_BACK: Final = Part("   any other key goes back", "dim")


def lines_of(
    question: ScreenQuestion,
    doubts: Sequence[str],
    marked: Sequence[InboxItem],
    words: str,
    underway: int,
    *,
    is_small: bool = False,
) -> list[ScreenLine]:
    """The lines of the question that is open.

    Args:
        question: The question.
        doubts: Reasons to look twice before it is approved, or voted for.
        marked: The proposals that are marked.
        words: The words that go with the answer.
        underway: Approved calls that run.
        is_small: There are few lines and columns for it.
    """
    match question:
        case ScreenQuestion.SURE:
            return [*_doubted(doubts), _yes("approve it all the same")]
        case ScreenQuestion.EDITED:
            return [_yes("carry out what you made of it")]
        case ScreenQuestion.TOOLS:
            return [_yes("accept these tools as they are now")]
        case ScreenQuestion.MARKED:
            return [*map(_listed, marked), _yes("approve all of these")]
        case ScreenQuestion.REASON:
            return [*(_wrap_keys(REASON_CODES) if is_small else _in_columns()), _words(words)]
        case ScreenQuestion.VOTE:
            for_it = (Part("a ", "key"), Part("for it"))
            against = (Part("r ", "key"), Part("against it"))
            return [*_doubted(doubts), for_it, against, _words(words)]
        case ScreenQuestion.HELP:
            if is_small:
                return _wrap_keys(SHORT_HELP)
            return [(Part(f"{keys:<14}", "key"), Part(said)) for keys, said in HELP]
        case ScreenQuestion.LEAVE:
            said = f"{underway} approved calls still run; leaving cancels them."
            return [(Part(said, "danger"),), _yes("leave")]
        case ScreenQuestion.NOTHING:
            return []


def _doubted(doubts: Sequence[str]) -> list[ScreenLine]:
    return [(Part("! ", "danger"), *theirs(each, "danger")) for each in doubts]


def _yes(what: str) -> ScreenLine:
    return Part("y ", "key"), Part(what), _BACK


def _words(words: str) -> ScreenLine:
    if words:
        return Part("with your words: ", "dim"), *theirs(words)
    return Part("w ", "key"), Part("say something with it"), _BACK


def _listed(item: InboxItem) -> ScreenLine:
    return Part("● ", "late"), *title(item), Part(f"  of {visible(item.proposer, 40)}", "dim")


def _wrap_keys(cells: Sequence[tuple[str, str]]) -> list[ScreenLine]:
    """Keys and words on one line, which is wrapped."""
    return [tuple(part for key, said in cells for part in (Part(key, "key"), Part(f" {said}  ")))]


def _in_columns() -> list[ScreenLine]:
    """The reasons with their keys, two on a line."""
    cells = [(Part(f"{key} ", "key"), Part(f"{words:<26}")) for key, (_, words) in REASONS.items()]
    half = (len(cells) + 1) // 2
    return [
        (*cells[at], *(cells[at + half] if at + half < len(cells) else ())) for at in range(half)
    ]
