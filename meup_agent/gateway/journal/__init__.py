"""The engines of the journal, of which a gateway opens one.

The contract is :class:`meup_agent.protocol.space.journal.Journal`: envelopes and facts come in,
entries with their numbers go out, in order, when they are kept. ``engines`` is the table of them; a
new one is a module of this folder and a row there, and the tests of the contract run on it.

``sqlite`` is the engine in a file. Two threads do its work, so that the gateway's loop never waits
for a disk: one writes, in batches, and removes what is too old; the other reads pages. An envelope
is delivered when its batch has been committed. The file has a form (``rows``), a lock against a
second gateway, an index (``decisions``), and perhaps damage that SQLite would not report
(``damage``).
``nats`` is the engine on NATS JetStream, with a stream for each space.
``postgres`` is the engine in PostgreSQL, in the tables of a schema, with two such threads.
``waiting`` has the bases of all three: what is not kept yet, and the threads.
``archive`` reads such a file from outside, for the audit; it never changes it. ``copying`` copies a
journal into another place.

An engine never drops silently: what cannot be kept stops the gateway, what is removed raises the
floor of its space, and members that come back are told of the gap.
"""

from __future__ import annotations
