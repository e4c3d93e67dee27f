"""The protocol as plain code: envelopes, dialects, lifecycles and rules.

Nothing in this folder does I/O, reads a clock, starts a task or draws a random number: times and
new ids are arguments. The same code serves agents, the gateway and the tests; both ends of the wire
keep the same rules.

==================  =============================================================================
``wire/``           one message: a decoded header around a raw payload, its kind, the MCP messages
                    inside, read leniently and written strictly, and the endings of an exchange
``dialects/``       the wire forms of an envelope
``proposals/``      the one fold of proposals: their records, states, and which one is meant
``capability/``     the patterns that say what a participant may send
``exchange/``       one participant's exchanges
``space/``          the gateway's decisions
``audit/``          the history of proposals, from a journal
==================  =============================================================================
"""
