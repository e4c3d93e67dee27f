"""Connections that carry frames: over WebSockets, over HTTP, or in memory.

A transport owns one connection: bytes of whole frames in and out, in order, and the code and reason
of its end. It reads no envelope but where HTTP has to answer in the gateway's place, and it never
retries: :mod:`meup_agent.session` dials again. ``base`` is the contract, which one suite of tests
holds every transport to; a connector opens a transport for the length of a block.
"""

from __future__ import annotations
