"""The verbs of a participant: propose, call, decide, chat, manage a space.

**Owns** the waits of callers and the records that they read, and nothing of the wire: no state of
an exchange is kept here but in the session's exchange table.

**In** come calls of :class:`~meup_agent.client.space.Space`, of a :class:`ProposalHandle` (one of
our proposals) and of a :class:`Proposal` (another participant's). Each verb checks its arguments,
drafts one envelope, opens an exchange in the session (its ``pending_calls``) and waits for its
ending.

**Out** goes the value, or the exception that :func:`meup_agent.protocol.wire.outcomes.raise_for`
makes of the ending. A caller that stops waiting, by a timeout or a cancellation, ends the exchange:
a request is cancelled, a proposal withdrawn, for the reason of the handler that runs there
(``cause_of_leaving``). What a handler begins is a child of its exchange.

**Never**: writes a frame, decides who may what, retries, or refuses arguments that a tool might
take (``schema_check`` leaves to the tool what it cannot tell).

The road of a call: ``space`` → ``messages`` (the middleware, if there is any) → ``offers``
(checks the arguments, if the list is known) → ``messages`` or ``proposal`` → the session.
"""

from __future__ import annotations
