"""The scenes, in the order in which they are played."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from meup_agent.cli.demo.checks import Expectation
from meup_agent.cli.demo.scenes import edited, fulfilled, rejected, restarted, withdrawn
from meup_agent.cli.demo.stage import Stage


@dataclass(frozen=True, slots=True)
class Scene:
    """A story with an end that can be checked.

    Attributes:
        title: What it shows, in a word or two.
        story: What happens, in a sentence.
        play: Plays it; what was expected, and what happened.
    """

    title: str
    story: str
    play: Callable[[Stage], Awaitable[list[Expectation]]]


SCENES: Final = (
    Scene("Fulfilled", fulfilled.STORY, fulfilled.play),
    Scene("Fulfilled, edited", edited.STORY, edited.play),
    Scene("Rejected", rejected.STORY, rejected.play),
    Scene("Withdrawn", withdrawn.STORY, withdrawn.play),
    Scene("Gateway killed", restarted.STORY, restarted.play),
)
