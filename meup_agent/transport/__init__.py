"""How frames travel: one contract, over WebSockets or in memory."""

from __future__ import annotations
