"""Commands that look into what is there, and change nothing of it: a way, a journal, a policy."""

from __future__ import annotations
