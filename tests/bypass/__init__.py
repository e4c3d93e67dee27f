"""Incidents that users of other approval systems reported, each tried here, step by step.

:mod:`.place` has a space with an agent that is not trusted; each ``*_incidents`` module has
scenarios and what was reported; ``test_bypass.py`` tries each with the rule that stops it, and
again with that rule switched off, where it must succeed: else the scenario would prove nothing.
``python -m tests.bypass`` writes docs/explanation/bypasses.md from the same records.
"""
