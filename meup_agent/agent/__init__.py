"""Agents: handlers, and what runs them."""

from __future__ import annotations
