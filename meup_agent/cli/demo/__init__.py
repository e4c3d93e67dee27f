"""``meup demo``: four agents at work on a real folder, over a real gateway.

``participants`` are written as users write theirs, and keep to the folder; ``scenes`` joins them to
a gateway, shows what happens, and has the stories: each is played, and what happened is compared
with what was expected. Nothing of it is used by another command. It never
overwrites a file of the folder, and removes what it wrote there.
"""

from __future__ import annotations
