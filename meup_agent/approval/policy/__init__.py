"""Policies: files of rules, and the decision that they make of a call.

In: YAML files, a call with its proposer and history. Out: a decision with its rule, findings about
rules, suggestions. A decision is a pure function; only the decider sends anything, as its policy
says.
"""
