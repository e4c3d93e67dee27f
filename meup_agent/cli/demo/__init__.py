"""``meup demo``: four agents at work on a real folder, over a real gateway.

The agents (``files``, ``reviewer``, ``proposer``, ``auditor``) are written as one writes agents of
one's own; each scene is a story in a file of its own; ``stage`` brings them together.
"""

from __future__ import annotations
