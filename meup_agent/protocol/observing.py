"""Words that a gateway and a connection that only looks on say to each other (PROTOCOL 3)."""

from __future__ import annotations

from typing import Final

OBSERVING: Final = "observing"
"""In a welcome, ``true``: its reader is not present. As the code of a ``system/error``: its reader
sent something, and observers send nothing."""
