"""The edges of the gateway: here bytes come in from strangers.

The head of a connection's first request (:mod:`listener`) decides between WebSocket and HTTP.
In come handshakes, frames and requests; :mod:`handshake` admits them by the rules of
:mod:`~meup_agent.gateway.auth`. A member's connection (:mod:`connection`) then hands whole
messages to its space, and writes what its member's queue gives it. :mod:`listener` moves the bytes
of WebSocket, :mod:`mount` those of an ASGI server, and :mod:`http` answers requests. What is read
is bounded and counted before it costs anything: the gate of :mod:`connection` leaves what comes too
fast in the socket, so nothing is lost. No edge decides what an envelope may do, and none knows
another.
"""
