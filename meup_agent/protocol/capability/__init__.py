"""Capability patterns: what a participant may say (PROTOCOL 7).

Patterns come in as JSON and are compiled once; an envelope comes in many times, and out goes
whether one of them allows it. Matching takes time linear in the value: globs and regular
expressions become RE2, a pattern that looks through a whole payload cannot be nested, and a check
that takes more than its share of work allows nothing. This folder never refuses an
envelope itself: the space and the roster do.
"""

from __future__ import annotations

from meup_agent.protocol.capability.compiled_capabilities import (
    Capabilities,
    compile_announced,
    compile_capabilities,
    is_reserved_kind,
    refuse_reserved,
)
from meup_agent.protocol.capability.patterns import Pattern, compile_kind, compile_pattern

__all__ = [
    "Capabilities",
    "Pattern",
    "compile_announced",
    "compile_capabilities",
    "compile_kind",
    "compile_pattern",
    "is_reserved_kind",
    "refuse_reserved",
]
