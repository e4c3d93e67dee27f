"""The engine on PostgreSQL: one gateway at work, and others that wait to take over.

``session`` is a connection, and ``tables`` what it asks. ``log`` is the log of all spaces for as
long as one gateway owns it, with the fence that lets no other write there. ``journal`` is how the
spaces see it, on the gateway's loop; ``archive`` reads it from outside.
"""

from __future__ import annotations
