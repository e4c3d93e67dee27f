"""Tools to test agents with."""

from __future__ import annotations

from meup_agent.testing.faults import FaultPlan, Faults, FaultyConnector
from meup_agent.testing.memory import MemorySpace

__all__ = ["FaultPlan", "Faults", "FaultyConnector", "MemorySpace"]
