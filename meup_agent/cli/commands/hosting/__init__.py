"""Commands for a gateway of one's own: its file and tokens, itself, and what joins it."""

from __future__ import annotations
