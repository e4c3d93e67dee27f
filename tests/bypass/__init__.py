"""Incidents that users of other approval systems reported, each tried here, step by step.

:mod:`.place` has a space with an agent that is not trusted; the modules of :mod:`.catalog` have
scenarios; ``test_bypass.py`` tries each with the rule that stops it, and again with that rule
switched off, where it must succeed: else the scenario would prove nothing. What was reported, and
what stops it here, is written in docs/explanation/bypasses.md, under the name of its scenario.
"""
