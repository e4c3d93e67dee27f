"""The engine on PostgreSQL: one gateway at work, and others that wait to take over.

``log`` is a connection, and by it the log of all spaces for as long as one gateway owns it, with
the fence that lets no other write there; ``tables`` is what it asks. ``journal`` is how the spaces
see it, on the gateway's loop, and how other programs read it.
"""

from __future__ import annotations
