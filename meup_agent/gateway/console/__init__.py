"""The console: a space in a browser, where a person decides.

It owns the sign-in of browsers, and the pages: inbox, timeline, proposal, participants, tools,
health. A person signs in with a participant's token or a one-time link (:mod:`sign_in`); from then
on a cookie stands for the participant, and each request is checked before a page sees it: session,
``Origin``, CSRF token, pace. What a page changes it changes by the verbs of a
:class:`~meup_agent.client.space.Space` that joined as that participant, beside its other
connections (:mod:`presence`): so capabilities, limits and audit are those of every participant. One
such presence serves all browsers and tabs of a participant; its session is in the gateway's
process, and has no connection (:mod:`local_session`). What a page shows comes from the
:class:`~meup_agent.approval.inbox.inbox.Inbox`, from the audit's fold, and from the runtime; the
console decides nothing itself, keeps nothing on disk, and computes no state of its own.

HTML is made on the server (``templates/``), each fragment once per participant, and pushed by one
event stream per browser (:mod:`event_queue`), which its tabs share (``static/console.js``). Text of
participants gets into a page through Jinja's escaping alone, once
:func:`.templating.shown` has made what is invisible visible, and never into an attribute
that a script reads as code. No page needs a script to list and to decide.

It stands above ``approval``: the gateway gets it handed in, as an ASGI application
(:class:`~meup_agent.gateway.console.console.Console`).
"""

from __future__ import annotations

from meup_agent.gateway.console.console import Console

__all__ = ["Console"]
