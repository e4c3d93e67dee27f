"""The journal in an SQLite file: what was accepted outlives the gateway's process.

The contract is :class:`meup_agent.protocol.space.journal.Journal`. One thread writes, in batches;
another reads. An envelope is delivered when the batch that it is in has been committed.
"""

from __future__ import annotations
