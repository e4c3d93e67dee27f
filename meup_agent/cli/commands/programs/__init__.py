"""Commands that run a program in a space until Ctrl-C: an agent, a bridge, a reviewer, a demo."""

from __future__ import annotations
