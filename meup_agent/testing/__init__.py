"""Tools to test agents with."""

from __future__ import annotations
