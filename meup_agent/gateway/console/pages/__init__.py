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
from meup_agent.gateway.console.pages import (
    events,
    health,
    history,
    inbox,
    participants,
    sign_in,
    timeline,
)


class PageRoute(NamedTuple):
    """The way to a page."""

    method: str
    path: str
    function: PageFunction

    @property
    def is_open(self) -> bool:
        """True if it is there for those, too, who are not signed in."""
        return self.path in OPEN


OPEN: Final = ("/sign-in", "/link")
"""The pages for those who are not signed in."""

_READ: Final[dict[str, PageFunction]] = {
    "/sign-in": sign_in.show_sign_in,
    "/link": sign_in.show_link,
    "/inbox": inbox.show_inbox,
    "/inbox/{key}": inbox.show_inbox,
    "/inbox/{key}/yes": inbox.show_yes,
    "/inbox/{key}/file": inbox.show_file,
    "/inbox/{key}/{verb}": inbox.show_again,
    "/yeses": inbox.show_yeses,
    "/history": history.show_history,
    "/history/unseen": history.show_unseen,
    "/timeline": timeline.show_timeline,
    "/envelopes/{seq:int}": timeline.show_envelope,
    "/proposals/{key}": history.show_proposal,
    "/proposals/{key}/export": history.export_proposal,
    "/participants": participants.show_participants,
    "/participants/try": participants.try_capability,
    "/tools": participants.show_tools,
    "/health": health.show_health,
    "/events": events.get_events,
}

_SENT: Final[dict[str, PageFunction]] = {
    "/sign-in": sign_in.sign_in,
    "/link": sign_in.enter_by_link,
    "/sign-out": sign_in.sign_out,
    "/inbox": inbox.decide_together,
    "/inbox/{key}/approve": inbox.approve,
    "/inbox/{key}/edit": inbox.approve_edited,
    "/inbox/{key}/check": inbox.check_edit,
    "/inbox/{key}/reject": inbox.reject,
    "/inbox/{key}/vote": inbox.vote,
    "/inbox/{key}/yes": inbox.give_yes,
    "/yeses/revoke": inbox.end_yes,
    "/history/seen": history.mark_seen,
    "/participants/grant": participants.grant,
    "/participants/revoke": participants.revoke,
    "/participants/invite": participants.invite,
    "/participants/kick": participants.kick,
    "/participants/status": participants.ask_status,
    "/participants/pause": participants.pause,
    "/participants/resume": participants.resume,
    "/push": events.subscribe,
    "/push/off": events.unsubscribe,
    "/tools/accept": participants.accept_shown_tools,
}

PAGES: Final = (
    *(PageRoute("GET", *each) for each in _READ.items()),
    *(PageRoute("POST", *each) for each in _SENT.items()),
)
"""Every page of the console."""
