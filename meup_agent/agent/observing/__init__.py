"""What happens to an agent: told to its observers, written to a log, counted."""

from __future__ import annotations
