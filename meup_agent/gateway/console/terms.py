"""The words of MEUP, each with the one sentence that explains it on a page.

A page explains a word where it first stands on it. Templates name the words
wherever they use them, by ``explain``, and :class:`PageTerms` leaves out what the page has
explained before.
"""

from __future__ import annotations

import re
from typing import Final

from markupsafe import Markup

TERMS: Final = {
    "capability": "What one may send is its *capabilities*; the gateway refuses the rest.",
    "envelope": "An *envelope* is one message.",
    "expire": "It *expires* when its time is up before it is decided.",
    "frame": "A *frame* is an envelope on its way to one reader.",
    "fulfill": "To *fulfill* it is to approve it: the real *request* is made, and runs.",
    "gateway": "The *gateway* is the server that all are connected to.",
    "grant": "To *grant* is to give a capability, to *revoke* is to take it away.",
    "journal": "The *journal* keeps what was said.",
    "member": "A *member* is a program or a person that is connected.",
    "observer": "An *observer* hears what is said, and says nothing.",
    "participant": "A *participant* is a program or a person that takes part here.",
    "pattern": "A *pattern* is how a capability is written.",
    "proposal": "A *proposal* is a call that does not run before it is approved by one who may.",
    "reject": "To *reject* it is to say no to it, with a reason.",
    "rule": "A *rule* says which calls run by themselves, and which ones people are asked about.",
    "space": "A *space* is a room in which all hear what one says.",
    "stream": "A *stream* is data that is sent piece by piece.",
    "vote": "A *vote* is a yes or a no where it takes several to decide.",
    "withdraw": "To *withdraw* it is to take it back, as the one who proposed it can.",
}
"""Word → its sentence, with the words that it explains in stars; "it" is a proposal."""

_FOLD: Final = Markup('<details class="terms"><summary>What these words mean</summary>{}</details>')

_STARRED: Final = re.compile(r"\*(\w+)\*")


class PageTerms:
    """The words that one page has explained so far."""

    def __init__(self) -> None:
        self._explained: set[str] = set()

    def __call__(self, *words: str) -> Markup:
        """A paragraph that explains some words; those that the page has explained are left out."""
        fresh = [each for each in dict.fromkeys(words) if each not in self._explained]
        if not fresh:
            return Markup()
        self._explained.update(fresh)
        said = Markup(" ").join(sentence(each) for each in fresh)
        return Markup('<p class="muted small">{}</p>').format(said)

    def folded(self, *words: str) -> Markup:
        """The same, to be opened where it would take much of a narrow page."""
        said = self(*words)
        return said and _FOLD.format(said)


def sentence(word: str) -> Markup:
    """The sentence that explains a word, with what it explains in ``<em>``."""
    # Nothing of it comes from strangers.
    return Markup(_STARRED.sub(r"<em>\1</em>", TERMS[word]))
