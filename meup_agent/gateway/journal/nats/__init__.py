"""The engine on NATS JetStream: each space's log is a stream of its own.

``records`` are the messages of a stream, and the names that streams have. ``link`` is the
connection to NATS, in a thread of its own, so that the gateway's loop never waits for a network.
``log`` appends to one stream and reads it: its fence lets one owner append, and no other. What the
spaces see is ``journal``.
"""

from __future__ import annotations
