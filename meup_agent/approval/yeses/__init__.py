"""Scoped yeses of a participant: given, listed, revoked, suggested and previewed (PROTOCOL 5).

The gateway keeps and counts them. Here is what a giver is shown before, and what a reviewer asks.
"""
