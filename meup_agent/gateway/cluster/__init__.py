"""Several gateways with one configuration and one journal on NATS: each space is at one of them.

``placement`` works out which space is to be at which gateway, from those that are there.
``membership`` knows which there are, and what each has, which is a matter of time alone: that two
never accept anything in a space at once is its log's matter, whose fence holds whatever is believed
here (:mod:`meup_agent.gateway.journal.nats.log`). ``keeper`` begins the spaces of this gateway, and
hands over those that are to be elsewhere. ``forwarding`` passes
connections on to the gateways that own their spaces.

``standby`` is for a journal in PostgreSQL: all spaces are at one gateway, and the others wait.
"""

from __future__ import annotations
