"""The protocol as plain code: envelopes, dialects, lifecycles and rules.

Nothing in this folder does I/O, reads a clock, starts a task or draws a random number: times and
new ids are arguments. The same code serves agents, the gateway and the tests; both ends of the wire
keep the same rules.

========================  =======================================================================
``envelope``, ``kinds``   one message: a decoded header around a raw payload, and its kind
``payloads``              the MCP messages inside, read leniently and written strictly
``dialects/``             the wire forms of an envelope
``lifecycle``             every step of a proposal and of an exchange, as tables
``outcomes``              the endings of an exchange, as records
``capability/``           the patterns that say what a participant may send
``exchange/``             one participant's exchanges
``space/``                the gateway's decisions
``audit/``                the history of proposals, from a journal
========================  =======================================================================
"""
