"""The exchange table: PROTOCOL 4 and 5 as plain code, without I/O, clock, tasks or randomness.

What it owns
============

An :class:`ExchangeTable` owns the state of every exchange of one participant: the requests and
proposals that it began, those of others that its handlers are for, and a record of each proposal
that it has seen. No other object changes that state. A session has one table for its whole life,
over as many connections as it takes; so a race is a sequence of calls on one object, and a test
plays it without a network.

Events in, effects out
======================

Each method of the table is one event. It is applied to the end before the next one, and returns a
list of *effects*, which the session carries out in that order.

========================  =======================================================================
event                     method
========================  =======================================================================
an envelope came          ``receive`` (with its number, where the gateway numbers them)
our user or a handler     ``open``, ``give_up``, ``reject``, ``send``
a handler                 ``returned``, ``raised``, ``count_waits``
the transport             ``sent``, ``unsendable``, ``connection_lost``, ``stopped``
the clock                 ``tick``, at the time that ``next_deadline`` names
our own end               ``shutdown``, ``shutdown_over``, ``close``
========================  =======================================================================

========================  =======================================================================
effect                    what the session does
========================  =======================================================================
``Send``, ``Unsend``      puts an envelope into the outbox, or takes it out
``Start``, ``Cancel``     starts a handler, or ends its scope with a cause
``Wake``, ``Progressed``  wakes the caller that waits for an exchange of ours, or reports progress
``CaughtUp``              tells observers that the replay of missed envelopes is over
``Leave``                 leaves the space, since another participant has shut us down
``Drop``                  counts an envelope that was left out, and logs it where it should not be
========================  =======================================================================

The road of an envelope goes down through these files, never up::

    table                    receive: collects the effects; its dispatcher chooses
                             by number, by sender (gateway, others, ourselves, a sibling), by kind
      inbound_calls          welcome, presence, refusals  -> roster, both sides
                             pause, status, shutdown ...  -> what runs, what is begun
                             proposal, withdraw, reject   -> addressing, the store of proposals
                             request, cancel              -> resolve: which proposal it means
        responses            response, progress           -> outbound, Relays
          handlers           admission, queue, Start      -> the answers

Streams are not exchanges: ``streams`` has those that are open and those that we write, and
a ``StreamBuffer`` the frames that a reader has not taken. They are told of envelopes by the
dispatcher and of welcomes by ``inbound_calls``, and start handlers as all notices do.

The road of our own request or proposal: ``table.open`` -> ``outbound`` -> its
``OutboundExchange`` -> ``table_context``, which also keeps what may have to be sent again. An
``AbsenceWatch``, beside the exchange, tells when no participant is left
that could answer; a fulfillment that is not wanted any more is refused there, too. What depends on
others waits for their end in ``outbound``, which also gives more time; ``responses`` keeps
what senders say later about their rejects and withdraws. All parts share one ``TableContext``.

States
======

Three tables have every step: that of a proposal in ``proposals``, those of exchanges in
``effects``. A step that they do not have raises ``IllegalStep`` and changes nothing.

* A proposal, as all can see it (4.2): *pending* <-> *in progress* -> *fulfilled*, or -> *rejected*,
  *withdrawn*, *expired*.
* An inbound exchange (5, first and second table): *queued* -> *running* -> *settled*, or *running*
  -> *cancelling* -> *settled*. Settled means that the answer is in the outbox.
* An outbound exchange (5, third table): *unsent* -> *waiting* -> *done*, or -> *given up*, after
  which an answer is late. A proposal that depends on others is *blocked* before it is *unsent*.

Names are pairs of sender and id, never an id alone: two participants may use one id, and one may
use its own again after a restart (``fingerprint_of`` tells a copy from another envelope).

Where a handler can start
=========================

Handlers start in one line, in ``HandlerScheduler``, and only if :class:`handlers.Admission` admits
them: on arrival and again when a slot is free, since a queued exchange may be taken back. The paths
are the roles:

* ``request``: not cancelled before it came, not a copy; as a fulfillment, of one known or claimed
  proposal that is pending, another's, and neither begun nor rejected here.
* ``proposal``: pending, in time, broadcast or addressed to us, and the first under its id.
* ``reject``, ``withdraw``, ``expire``, ``explanation``, ``conflict``, ``chat``,
  ``acknowledge``, ``join``,
  ``leave``, ``gap``, ``grant``, ``revoke``, ``pause``, ``resume``, ``status_request``, ``status``,
  ``forget``, ``compact``, ``compact_done``, ``clear``, ``restart``, ``shutdown``, ``stream``,
  ``kind``: notices, which owe no answer and carry nothing out.

In the modes *beside* and *observing* none of them starts anything, and nothing is answered, but for
what is asked beside about an exchange that this session began.

What it never does
==================

* It never waits, and calls no user code but ``find_handler``, ``new_id`` and ``wall_clock``.
* It never answers a withdraw, a reject, a notification, or a request that its sender cancelled; nor
  anything twice.
* It never starts a handler for a proposal of ours, or for an echo that does not name us.
* It never sends a request or proposal again unless it is idempotent. (After a replay the session
  repeats, under the same id, what a gateway that resumes had not taken.)
* It never remembers without a bound: see ``ttl_map``. What is open is bounded by ``Limits``, and is
  not forgotten before it ends.
* It never trusts a name where the gateway does not check names (``Guarantees``).
"""

from __future__ import annotations

from meup_agent.protocol.exchange.effects import (
    Cancel,
    CaughtUp,
    Conflict,
    Drop,
    Effect,
    Gap,
    Key,
    Leave,
    Priority,
    Progressed,
    Role,
    Send,
    Start,
    StreamBuffer,
    StreamEnd,
    Unsend,
    Wake,
    Work,
)
from meup_agent.protocol.exchange.handlers import Limits
from meup_agent.protocol.exchange.outbound import FulfillmentTarget, Wait
from meup_agent.protocol.exchange.streams import OwnStream
from meup_agent.protocol.exchange.table import ExchangeTable
from meup_agent.protocol.exchange.table_context import Mode
from meup_agent.protocol.proposals import ProposalEntry, ProposalKey
from meup_agent.protocol.roster import Participant

__all__ = [
    "Cancel",
    "CaughtUp",
    "Conflict",
    "Drop",
    "Effect",
    "ExchangeTable",
    "FulfillmentTarget",
    "Gap",
    "Key",
    "Leave",
    "Limits",
    "Mode",
    "OwnStream",
    "Participant",
    "Priority",
    "Progressed",
    "ProposalEntry",
    "ProposalKey",
    "Role",
    "Send",
    "Start",
    "StreamBuffer",
    "StreamEnd",
    "Unsend",
    "Wait",
    "Wake",
    "Work",
]
