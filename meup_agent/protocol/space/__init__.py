"""A space: its members, what they may send, and what is open between them (PROTOCOL 3).

The road of a frame leads down through four steps. What a lower one has to tell later, such as the
number of what is kept, it tells by a callback that it was handed:

1. An edge (``meup_agent.gateway``, or a space in memory) hands a member's frame to
   :class:`SpaceServer`, which joins ``owner``, :class:`SpaceOwner` (decides, and appends), and
   ``delivery``, :class:`SpaceDelivery` (has the connections); between them go the messages of
   ``link``, and nothing else.
2. ``state/``, :class:`SpaceState`, decides in one call: ``rules`` fills in what a frame lacks,
   decodes it and checks its form, sender and capabilities; ``grants`` has what changes the
   space, ``control`` pauses and shutdowns, ``streams`` the open streams. An accepted frame has
   taken effect when the call returns; a refused one has changed nothing.
3. ``journal`` keeps what was accepted and gives it its number, at once or later.
4. ``delivery``, :class:`Fanout`, then encodes it once per dialect, packs it once per form, and puts
   it into the queue of each subscriber; one that resumes reads pages of the journal first.

Frames of streams take a shorter way, and are not kept: the owner asks the state whose stream a
frame is on, and the :class:`FrameRelay` in ``delivery`` hands it to the readers, and counts what
slow ones lose.

The state consists of ``grants`` (capabilities), ``inflight`` (open requests and proposals),
``indexes`` (by sender and id, bounded), and, in ``streams``, who is present: joins, absences, and
welcomes for newcomers. The limits and rates of each participant are in ``allowance``. What follows
from a decision is in ``journal``; after a restart the owner reads the state from the journal.

Nothing here opens a socket, reads a clock, draws an id or starts a task: time and ids are
arguments, and whatever waits is called back. It never delivers a member's envelope
before it is kept, and never writes a payload that it did not make itself: a member's frame is
forwarded as it came, or translated.
"""

from __future__ import annotations
