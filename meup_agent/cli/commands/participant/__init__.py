"""Commands of a participant: each joins a space, does or shows one thing, and leaves."""

from __future__ import annotations
