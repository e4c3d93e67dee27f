"""The inbox in a terminal: what a proposal looks like, the live screen, and what was before.

A ``card`` is rows of styled text, made without a terminal; the screen and the plain list print the
same ones. Everything that a stranger wrote goes through ``protocol.shown_text`` here. The screen
needs textual (extra ``tui``) and asyncio, and decides nothing itself: the ``Inbox`` does.
"""
