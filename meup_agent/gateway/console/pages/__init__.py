"""The pages, in one table: each is a function of a checked request.

In comes a :class:`~meup_agent.gateway.console.context.PageContext`, once the guard has let the
request through; out goes a response: HTML, a redirect, or an event stream. What is shown is read
from the participant's inbox, the envelopes of its space and the gateway's runtime; what is changed
is changed by the verbs of its :class:`~meup_agent.client.space.Space`. A page never decides what
the participant may do, never shows what is said in another space, and keeps nothing itself but the
samples that ``health`` plots.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from meup_agent.gateway.console.context import PageFunction
from meup_agent.gateway.console.pages.events import get_events
from meup_agent.gateway.console.pages.health import show_health
from meup_agent.gateway.console.pages.inbox import (
    approve,
    approve_edited,
    check_edit,
    reject,
    show_again,
    show_inbox,
    vote,
)
from meup_agent.gateway.console.pages.participants import (
    ask_status,
    grant,
    invite,
    kick,
    pause,
    resume,
    revoke,
    show_participants,
    try_capability,
)
from meup_agent.gateway.console.pages.proposal import export_proposal, show_proposal
from meup_agent.gateway.console.pages.sign_in import (
    enter_by_link,
    show_link,
    show_sign_in,
    sign_in,
    sign_out,
)
from meup_agent.gateway.console.pages.timeline import show_envelope, show_timeline
from meup_agent.gateway.console.pages.tools import accept_shown_tools, show_tools


class PageRoute(NamedTuple):
    """The way to a page."""

    method: str
    path: str
    function: PageFunction
    open: bool = False  # also for those who are not signed in


PAGES: Final = (
    PageRoute("GET", "/sign-in", show_sign_in, open=True),
    PageRoute("POST", "/sign-in", sign_in, open=True),
    PageRoute("GET", "/link", show_link, open=True),
    PageRoute("POST", "/link", enter_by_link, open=True),
    PageRoute("POST", "/sign-out", sign_out),
    PageRoute("GET", "/inbox", show_inbox),
    PageRoute("GET", "/inbox/{key}", show_inbox),
    PageRoute("GET", "/inbox/{key}/{verb}", show_again),
    PageRoute("POST", "/inbox/{key}/approve", approve),
    PageRoute("POST", "/inbox/{key}/edit", approve_edited),
    PageRoute("POST", "/inbox/{key}/check", check_edit),
    PageRoute("POST", "/inbox/{key}/reject", reject),
    PageRoute("POST", "/inbox/{key}/vote", vote),
    PageRoute("GET", "/timeline", show_timeline),
    PageRoute("GET", "/envelopes/{seq:int}", show_envelope),
    PageRoute("GET", "/proposals/{key}", show_proposal),
    PageRoute("GET", "/proposals/{key}/export", export_proposal),
    PageRoute("GET", "/participants", show_participants),
    PageRoute("GET", "/participants/try", try_capability),
    PageRoute("POST", "/participants/grant", grant),
    PageRoute("POST", "/participants/revoke", revoke),
    PageRoute("POST", "/participants/invite", invite),
    PageRoute("POST", "/participants/kick", kick),
    PageRoute("POST", "/participants/status", ask_status),
    PageRoute("POST", "/participants/pause", pause),
    PageRoute("POST", "/participants/resume", resume),
    PageRoute("GET", "/tools", show_tools),
    PageRoute("POST", "/tools/accept", accept_shown_tools),
    PageRoute("GET", "/health", show_health),
    PageRoute("GET", "/events", get_events),
)
"""Every page of the console."""
