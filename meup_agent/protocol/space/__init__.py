"""The gateway's decisions: who is in a space, what is let through, to whom (PROTOCOL 3).

Nothing here opens a socket, reads a clock or draws an id. The real gateway and the in-memory one
of the tests carry out the same decisions.
"""

from __future__ import annotations
