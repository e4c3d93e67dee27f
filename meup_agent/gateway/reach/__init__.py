"""Notices: services outside are told that proposals wait, and that they wait no longer.

In come the proposals that wait, read from the state of each space by the rule of its
``space/list-proposals`` question, so a notice and an inbox never disagree; a change of a proposal
wakes (:mod:`notices`). Out go notices: one for a burst, and one when all of it is settled
(:mod:`bursts`), as signed webhooks and by Apprise (:mod:`services`). One task for each service asks
and sends, so one that is slow is late itself and holds up no other; nothing is queued for it. What
a rule decides at once is never told.

A notice has no arguments of a call, and no link that decides; it never takes part in the space.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meup_agent.gateway.config import Config
    from meup_agent.gateway.runtime import GatewayRuntime


def notices_of(config: Config, runtime: GatewayRuntime) -> AbstractAsyncContextManager[None]:
    """Send the notices of a configuration for the length of a block, if it has any.

    Raises:
        ConfigurationError: One of its services cannot be.
    """
    if not config.notify:
        return nullcontext()
    # Loaded only where it is wanted: a client of HTTP takes its time.
    from meup_agent.gateway.reach.notices import send_notices

    return send_notices(config, runtime)
