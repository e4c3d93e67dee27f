"""Agents: handlers, and what runs them.

**Owns** the handlers of a participant (:mod:`.decorators` is their table, and finds those
for an envelope), their scopes, tasks and contexts, their middleware, and the block or script
that an agent lives in.

**In** come, from the session: the question which handler an envelope has (``find``, once for each),
the order to start it (``start``), and to stop it with a cause (``cancel``). The road of a request:
session → :meth:`.runner.Runner.start` → a task of :mod:`.runner` → :class:`.context.Scope`, one
cancel scope with one cause → :func:`.middleware.pass_inbound`, where there is middleware → the
arguments, bound by :mod:`.signature` → the function, with its injected values.

**Out** go its result (:mod:`.tool`) or error, to the session, at most one; and what it sends, by
the verbs of its space, through :func:`.middleware.outbound_through`, where there is middleware.

**Never**: it decides nothing of the state of an exchange, which the exchange table alone owns; it
settles by the scope's cause, and not by what a loop says of a cancellation; a cancelled handler
answers nothing; nothing that a handler started outlives it; the reader of a connection never waits
for a function of the user's.
"""

from __future__ import annotations
