"""The fold of proposals, from the envelopes about them to their states.

A record has all that is known of one proposal, a store keeps records by proposer and id, and
:func:`~meup_agent.protocol.proposals.resolution.resolve` finds the one that an envelope means.
Every reader is on it: the exchange table of an agent, the gateway's space, the audit. It sends
nothing, starts nothing, and checks no capability.
"""
