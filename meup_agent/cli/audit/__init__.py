"""``meup audit``: the proposals of a space, with who decided each, when and why.

``journal_readers`` read the entries of a journal, from its file or over HTTP;
:class:`~meup_agent.protocol.audit.Audit` folds them; ``listing`` and ``proposal_timeline`` make
lines of the result, in the words of ``phrases``. Nothing is written to a journal or sent into a
space.
"""
