"""``python -m meup_agent.cli`` is ``meup``."""

from __future__ import annotations

from meup_agent.cli import main

if __name__ == "__main__":
    main()
