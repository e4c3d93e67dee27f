"""The fold of proposals, from the envelopes about them to their states.

A record has all that is known of one proposal, a store keeps records by proposer and id, and
:func:`~meup_agent.protocol.proposals.resolution.resolve` finds the one that an envelope means.
The exchange table of an agent and the audit fold by it. The gateway's space folds in ``space``, by
the lifecycle, the withdrawals and the deadlines of this folder. Nothing here sends, starts, or
checks a capability.
"""
