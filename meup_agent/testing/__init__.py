"""Tools to test agents with: a gateway in memory, and connections that fail.

A :class:`MemorySpace` (:mod:`.memory`) owns one space, with the decisions and limits of the real
gateway. Frames of agents come in by its connector, as by any; they go out to every member before
``send`` returns, so a test in virtual time runs the same way each time. A :class:`FaultyConnector`
(:mod:`.faults`) stands around any connector, and loses, repeats and reorders frames, or ends the
connection, as its :class:`FaultPlan` says. Nothing here opens a socket, patches other code, or
decides by rules of its own what an envelope may do.
"""

from __future__ import annotations

from meup_agent.testing.faults import FaultPlan, Faults, FaultyConnector
from meup_agent.testing.memory import MemorySpace

__all__ = ["FaultPlan", "Faults", "FaultyConnector", "MemorySpace"]
