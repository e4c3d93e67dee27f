"""A cluster on this machine: servers of NATS, gateways and agents, to be killed under work.

``programs`` starts, kills and pauses the servers and the gateways, in a folder and at ports of
their own. ``members`` are agents that work in a space, and what each of them read on its
connections. ``checker`` compares that with the stream itself: what was lost, came twice, or stands
in another order. ``demo`` is ``meup cluster demo``. The tests that break clusters at random use the
same three. Nothing here serves anybody: it plays on loopback, and leaves nothing behind.
"""

from __future__ import annotations
