"""Several gateways with one configuration and one journal on NATS: one is active, the others wait.

``seat`` decides when a gateway tries to be the active one, which is a matter of time alone: that
two never accept anything at once is the journal's matter, whose fence holds whatever is believed
here (:mod:`meup_agent.gateway.journal.nats.log`). ``door`` passes connections on, from a gateway
that waits to the active one.
"""

from __future__ import annotations
