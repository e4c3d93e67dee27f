"""The verbs of a participant: propose, call, decide, talk."""

from __future__ import annotations
