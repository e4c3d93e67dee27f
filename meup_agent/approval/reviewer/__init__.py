"""Reviewers: agents that decide by a policy file, count votes, and judge edits.

In: proposals of a space, votes and questions of people. Out: decisions, and which rule asks whom.
Knows policies; nothing of how a person is shown what waits.
"""
